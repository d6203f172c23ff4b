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
    let servers = u16::try_from(rates.data_servers.len() + 2).unwrap_or(u16::MAX);
    if frame.area().width >= WIDE {
        let [left, right] =
            Layout::horizontal([Constraint::Percentage(58), Constraint::Fill(1)]).spacing(2).areas(body);
        let [top, bottom] = Layout::vertical([Constraint::Max(servers), Constraint::Fill(1)]).areas(left);
        data_servers(frame, top, rates, looks);
        clients(frame, bottom, rates, looks);
        operations(frame, right, rates, looks);
    } else {
        // Each of the three has a share; what one does not need the next gets.
        let busy = u16::try_from(rates.operations.len() + 2).unwrap_or(u16::MAX).min(body.height / 3);
        let [top, middle, bottom] = Layout::vertical([
            Constraint::Length(servers.min(body.height / 3)),
            Constraint::Length(busy),
            Constraint::Fill(1),
        ])
        .areas(body);
        data_servers(frame, top, rates, looks);
        operations(frame, middle, rates, looks);
        clients(frame, bottom, rates, looks);
    }
    let state = if looks.paused { "paused, space goes on" } else { "space pauses" };
    frame.render_widget(Paragraph::new(format!("q quits, {state}, + and - change the interval")), foot);
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

fn data_servers(frame: &mut Frame<'_>, area: Rect, rates: &Rates, looks: Looks) {
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
    let head = Row::new(rows::DATA_SERVERS).style(looks.head());
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

fn operations(frame: &mut Frame<'_>, area: Rect, rates: &Rates, looks: Looks) {
    let rows = rates.operations.iter().map(|operation| Row::new(rows::operation(operation)));
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    let head = Row::new(rows::OPERATIONS).style(looks.head());
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

fn clients(frame: &mut Frame<'_>, area: Rect, rates: &Rates, looks: Looks) {
    let rows = rates.clients.iter().map(|client| {
        let row = Row::new(rows::client(client));
        if client.proxied > 0.0 { row.style(looks.bad()) } else { row }
    });
    let widths = [
        Constraint::Fill(2),
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(10),
    ];
    let head = Row::new(rows::CLIENTS).style(looks.head());
    frame.render_widget(Table::new(rows, widths).header(head), area);
}
