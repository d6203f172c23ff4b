//! The screen: what fits of it, in one column or two.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};

use super::rows;
use super::sample::Rates;
use super::words::{bytes_rate, count, plain_rate};
use crate::status::{duration, size};

/// From this width on there are two columns.
const WIDE: u16 = 130;
/// Column of clients that has their names.
const NAME: usize = 1;

/// How it looks; a terminal without colours has bold and reverse.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    pub(super) colour: bool,
    pub(super) paused: bool,
}

impl Looks {
    fn head(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn bad(self) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        if self.colour { bold.fg(Color::Red) } else { bold.add_modifier(Modifier::REVERSED) }
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, rates: &Rates, looks: Looks) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(4), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(summary(rates, looks)), head);
    let wide = frame.area().width >= WIDE;
    let servers = data_servers(rates, looks);
    let operations = operations(rates, looks);
    let clients = clients(rates, looks, wide);
    if wide {
        let [left, right] =
            Layout::horizontal([Constraint::Percentage(60), Constraint::Fill(1)]).spacing(3).areas(body);
        let [top, bottom] =
            Layout::vertical([Constraint::Length(servers.height()), Constraint::Fill(1)]).areas(left);
        servers.draw(frame, top);
        clients.draw(frame, bottom);
        operations.draw(frame, right);
    } else {
        let wanted = [servers.height(), operations.height(), clients.height()];
        let [top, middle, bottom] = Layout::vertical(shares(wanted, body.height)).areas(body);
        servers.draw(frame, top);
        operations.draw(frame, middle);
        clients.draw(frame, bottom);
    }
    let state = if looks.paused { "paused, space goes on" } else { "space pauses" };
    frame.render_widget(Paragraph::new(format!("q quits, {state}, + and - change the interval")), foot);
}

/// A third for each; what one does not need goes to the others, the first of them before the last.
fn shares(wanted: [u16; 3], height: u16) -> [Constraint; 3] {
    let mut given = wanted.map(|rows| rows.min(height / 3));
    let mut left = height.saturating_sub(given.iter().sum());
    for (given, wanted) in given.iter_mut().zip(wanted) {
        let more = wanted.saturating_sub(*given).min(left);
        *given += more;
        left -= more;
    }
    given.map(Constraint::Length)
}

/// A table that says how many of its rows have no room.
struct List {
    head: Row<'static>,
    rows: Vec<Row<'static>>,
    widths: Vec<Constraint>,
}

impl List {
    /// With its head, and a line between it and the next.
    fn height(&self) -> u16 {
        u16::try_from(self.rows.len() + 2).unwrap_or(u16::MAX)
    }

    fn draw(mut self, frame: &mut Frame<'_>, mut area: Rect) {
        let all = self.rows.len();
        // The last line is empty, where there is any room.
        area.height = area.height.saturating_sub(u16::from(area.height > 2));
        let room = usize::from(area.height.saturating_sub(1));
        if self.rows.len() > room && room > 0 {
            area.height -= 1;
            self.rows.truncate(room - 1);
            let last = Rect { y: area.bottom(), height: 1, ..area };
            frame.render_widget(Paragraph::new(format!("and {} more", all - self.rows.len())), last);
        }
        frame.render_widget(Table::new(self.rows, self.widths).header(self.head), area);
    }
}

fn summary(rates: &Rates, looks: Looks) -> Vec<Line<'static>> {
    let title = format!(
        "sluice {}  up {}  {} files, {} used",
        rates.listen,
        duration(rates.uptime_seconds),
        count(rates.files),
        size(rates.used_bytes)
    );
    let mut moved = Line::from(format!(
        "{}/s read and {}/s written at the data servers",
        bytes_rate(rates.direct_read),
        bytes_rate(rates.direct_written)
    ));
    if rates.proxied > 0.0 {
        moved.push_span(", ");
        moved.push_span(Span::styled(format!("{}/s proxied", bytes_rate(rates.proxied)), looks.bad()));
    }
    let mut done = Line::from(format!(
        "{} operations/s, {} commits/s, {} recalls/s",
        plain_rate(rates.operations_rate),
        plain_rate(rates.commits),
        plain_rate(rates.recalls)
    ));
    if rates.degraded_files > 0 {
        done.push_span(", ");
        done.push_span(Span::styled(format!("{} files to heal", count(rates.degraded_files)), looks.bad()));
    }
    vec![Line::styled(title, looks.head()), moved, done, Line::default()]
}

fn data_servers(rates: &Rates, looks: Looks) -> List {
    let rows = rates.data_servers.iter().map(|server| {
        let row = Row::new(rows::data_server(server));
        if server.health == "ok" { row } else { row.style(looks.bad()) }
    });
    let widths = [
        Constraint::Length(4),
        Constraint::Fill(1),
        Constraint::Length(11),
        Constraint::Length(5),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(8),
    ];
    List {
        head: Row::new(rows::DATA_SERVERS).style(looks.head()),
        rows: rows.collect(),
        widths: widths.into(),
    }
}

/// Those that are asked for.
fn operations(rates: &Rates, looks: Looks) -> List {
    let busy = rates.operations.iter().filter(|operation| operation.rate > 0.0);
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    List {
        head: Row::new(rows::OPERATIONS).style(looks.head()),
        rows: busy.map(|operation| Row::new(rows::operation(operation))).collect(),
        widths: widths.into(),
    }
}

/// Their names where there is room for them.
fn clients(rates: &Rates, looks: Looks, names: bool) -> List {
    let chosen = |cells: [String; 8]| {
        let all = cells.into_iter().enumerate();
        all.filter(|(column, _)| names || *column != NAME).map(|(_, cell)| cell).collect::<Vec<_>>()
    };
    let rows = rates.clients.iter().map(|client| {
        let row = Row::new(chosen(rows::client(client)));
        if client.proxied > 0.0 { row.style(looks.bad()) } else { row }
    });
    let mut widths = vec![
        Constraint::Fill(2),
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(10),
    ];
    if names {
        widths.insert(NAME, Constraint::Fill(2));
    }
    let head = Row::new(chosen(rows::CLIENTS.map(str::to_owned))).style(looks.head());
    List { head, rows: rows.collect(), widths }
}
