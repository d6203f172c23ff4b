//! `sluice top`: a screen where there is a terminal, lines where there is none.

mod rows;
mod sample;
mod view;
mod words;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use sluice_xdr::control::{ADMIN_ACTIVITY, ADMIN_ACTIVITY_res};

use crate::cli;
use crate::reach::Admin;
use crate::status::{self, duration, size, table, text};
use sample::{Rates, Sample};
use view::Looks;
use words::{bytes_rate, count, plain_rate};

/// How long a key may have to wait.
const KEY: Duration = Duration::from_millis(50);
/// Lines of each part where there is no screen to fill.
const LINES: usize = 20;

pub(crate) async fn run(options: cli::Top) -> Result<()> {
    let admin = Admin::reach(&options.reach).await?;
    if options.json || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return lines(&admin, &options).await;
    }
    // The first look, and its errors, before the screen is taken.
    let first = look(&admin).await?;
    let mut terminal = ratatui::try_init().context("cannot use this terminal: try `sluice top | cat`")?;
    let ended = screen(&mut terminal, &admin, &options, first).await;
    ratatui::restore();
    ended
}

async fn look(admin: &Admin) -> Result<Sample> {
    let status = status::ask(admin).await?;
    match admin.call(ADMIN_ACTIVITY, &()).await? {
        ADMIN_ACTIVITY_res::CTL_OK(activity) => Ok(Sample { status, activity }),
        ADMIN_ACTIVITY_res::Default(_, reason) => bail!("{}", text(&reason)),
    }
}

enum Key {
    Quit,
    Pause,
    Faster,
    Slower,
    Redraw,
}

async fn screen(
    terminal: &mut DefaultTerminal,
    admin: &Admin,
    options: &cli::Top,
    first: Sample,
) -> Result<()> {
    // https://no-color.org
    let colour = std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let mut looks = Looks { colour, paused: false };
    let mut interval = options.interval;
    let mut left = options.count;
    let (mut last, mut rates) = (first.clone(), Rates::between(None, &first));
    loop {
        let due = Instant::now() + Duration::from_secs(interval.into());
        loop {
            terminal.draw(|frame| view::draw(frame, &rates, looks)).context("cannot draw")?;
            match wait(if looks.paused { None } else { Some(due) })? {
                Some(Key::Quit) => return Ok(()),
                Some(Key::Pause) => looks.paused = !looks.paused,
                Some(Key::Faster) => interval = interval.saturating_sub(1).max(1),
                Some(Key::Slower) => interval += 1,
                Some(Key::Redraw) => {}
                None => break,
            }
        }
        let now = look(admin).await?;
        rates = Rates::between(Some(&last), &now);
        last = now;
        if let Some(left) = &mut left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                return Ok(());
            }
        }
    }
}

/// The next key that means something; `None` when it is time for the next look.
fn wait(due: Option<Instant>) -> Result<Option<Key>> {
    loop {
        if due.is_some_and(|due| Instant::now() >= due) {
            return Ok(None);
        }
        if !event::poll(KEY).context("cannot read the keyboard")? {
            continue;
        }
        let key = match event::read().context("cannot read the keyboard")? {
            Event::Key(key) if key.kind != KeyEventKind::Release => key,
            Event::Resize(..) => return Ok(Some(Key::Redraw)),
            _ => continue,
        };
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(Some(Key::Quit)),
            KeyCode::Char('c') if control => return Ok(Some(Key::Quit)),
            KeyCode::Char(' ') => return Ok(Some(Key::Pause)),
            KeyCode::Char('-') => return Ok(Some(Key::Faster)),
            KeyCode::Char('+') => return Ok(Some(Key::Slower)),
            _ => {}
        }
    }
}

/// Without a screen: each look after the first as text or as a line of JSON.
async fn lines(admin: &Admin, options: &cli::Top) -> Result<()> {
    let mut last = look(admin).await?;
    let mut left = options.count;
    while left != Some(0) {
        tokio::time::sleep(Duration::from_secs(options.interval.into())).await;
        let now = look(admin).await?;
        let rates = Rates::between(Some(&last), &now);
        last = now;
        if options.json {
            say!("{}", serde_json::to_string(&rates)?);
        } else {
            print(&rates);
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}

fn print(rates: &Rates) {
    say!(
        "sluice {}  up {}  {} files, {} used; {}/s read and {}/s written at the data servers, {}/s proxied, {} operations/s, {} commits/s",
        rates.listen,
        duration(rates.uptime_seconds),
        count(rates.files),
        size(rates.used_bytes),
        bytes_rate(rates.direct_read),
        bytes_rate(rates.direct_written),
        bytes_rate(rates.proxied),
        plain_rate(rates.operations_rate),
        plain_rate(rates.commits)
    );
    table(&with_head(rows::DATA_SERVERS, rates.data_servers.iter().map(rows::data_server)));
    let busy = rates.operations.iter().filter(|operation| operation.rate > 0.0);
    table(&with_head(rows::OPERATIONS, busy.take(LINES).map(rows::operation)));
    table(&with_head(rows::CLIENTS, rates.clients.iter().take(LINES).map(rows::client)));
    say!();
}

fn with_head<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> Vec<[String; N]> {
    [head.map(str::to_owned)].into_iter().chain(rows).collect()
}

#[cfg(test)]
mod tests;
