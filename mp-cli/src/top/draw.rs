//! Rendering of a program.
//!
//! The colours are the terminal's own, so that they are readable on a light and on a dark background.

use mp_core::ProcessState;
use mp_core::quantity;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Margin, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Clear, Paragraph, Row, Table, Wrap};

use super::columns::{self, REST, TopTable, WIDE, short_command};
use super::sample::TopSample;
use super::ui_state::{TopScreen, TopView};
use crate::tables::{bytes, cut, duration};

/// Minimum height of a screen, in lines, that shows all tables at once.
const TALL: u16 = 40;
/// Maximum number of processes named in the line about a hang.
const NAMES: usize = 3;

const HELP: &str = "\
q, Esc, Ctrl-C  quit
Tab, ← →        next or previous table
↑ ↓ PgUp PgDn   select a row (also j, k, Home, End)
s, r            sort by the next column; reverse the order
/               show only the rows with a text (Enter keeps it)
w, Enter        why the selected process waits, and whether
                that can end; for a queue or lock: its waiters,
                for a pool: its workers
p               pause
+ -             longer or shorter interval
Ctrl-L, Ctrl-Z  write the screen again; stop until `fg`

PUT WAIT and GET WAIT are the median and the 99th percentile of
the waits that ended since the last interval.
LONGEST is the longest time for which a worker has had a task.
CPU % is that of one processor. HOLDS is shared memory, which
counts for each process that has it. A red `hangs` is proved:
these processes wait for each other, and no time-out ends it.

Any key closes this.";

/// Colours of the output, or no colours.
#[derive(Clone, Copy, Debug)]
pub(super) struct TopPalette {
    pub(super) colors: bool,
}

impl TopPalette {
    fn colored(self, color: Color) -> Style {
        if self.colors { Style::new().fg(color) } else { Style::new() }
    }

    pub(super) fn alarm(self) -> Style {
        let style = self.colored(Color::Red).add_modifier(Modifier::BOLD);
        if self.colors { style } else { style.add_modifier(Modifier::REVERSED) }
    }

    pub(super) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// Draws a program.
pub(super) fn program(frame: &mut Frame<'_>, view: &mut TopView, sample: &TopSample, palette: TopPalette) {
    let alarm = alarm(view, sample);
    let rows = [
        Constraint::Length(2),
        Constraint::Length(u16::from(alarm.is_some())),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [top, red, body, bottom] = Layout::vertical(rows).areas(frame.area());
    header(frame, top, view, sample, palette);
    frame.render_widget(Line::styled(alarm.unwrap_or_default(), palette.alarm()), red);
    tables(frame, body, view, sample, palette);
    frame.render_widget(Line::from(footer(view, bottom.width)), bottom);
    match view.screen {
        TopScreen::Help => {
            popup(frame, body, "Keys", &mut 0, HELP, palette);
        }
        TopScreen::Explanation(mut first) => {
            let text = view.explanation(sample);
            popup(frame, body, "Why", &mut first, &text, palette);
            view.screen = TopScreen::Explanation(first);
        }
        TopScreen::Tables | TopScreen::Filter(_) => {}
    }
}

/// Returns the line about hanging processes, which is shown in red.
fn alarm(view: &TopView, sample: &TopSample) -> Option<String> {
    if let Some(end) = &view.end {
        return Some(end.clone());
    }
    let processes = &sample.snapshot.processes;
    let mut hanging = processes.iter().filter(|process| sample.hanging.contains(&process.pid));
    let name = |process: &mp_core::ProcessSnapshot| {
        let call = process.waits.first().map_or("", |wait| &wait.call);
        format!("{} in {call}", sample.name_of(process.pid))
    };
    let names: Vec<_> = hanging.by_ref().take(NAMES).map(name).collect();
    let more = match hanging.count() {
        0 => String::new(),
        more => format!(", {more} more"),
    };
    (!names.is_empty()).then(|| format!("can't end by itself (press w): {}{more}", names.join(", ")))
}

fn header(frame: &mut Frame<'_>, area: Rect, view: &TopView, sample: &TopSample, palette: TopPalette) {
    let [first, second] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
    let (memory, processes) = (&sample.snapshot.memory, &sample.snapshot.processes);
    let pace = match (&view.end, view.paused) {
        (Some(_), _) => " last state".into(),
        (None, true) => " paused".into(),
        (None, false) => format!(" every {} s", view.pace().as_secs_f64()),
    };
    let about = format!("{} · {} old · ", sample.root, duration(sample.age_ms));
    let left = usize::from(first.width).saturating_sub(about.chars().count() + pace.len());
    let about = about + &cut(short_command(&sample.command), left.max(1));
    let [name, right] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(pace.len() as u16)]).areas(first);
    frame.render_widget(Line::styled(about, palette.title()), name);
    frame.render_widget(Line::from(pace), right);
    let rings = sample.snapshot.queues.iter().filter_map(|queue| queue.ring.as_ref());
    let queued: u64 = rings.map(|ring| ring.len).sum();
    let dead = processes.iter().filter(|process| process.state == ProcessState::Dead).count();
    let mut parts = vec![
        quantity(processes.len() - dead, "process"),
        format!("{} of memory", bytes(memory.reserved)),
        format!("{} held", bytes(memory.allocated)),
        format!("{queued} queued"),
        quantity(memory.deaths.saturating_add(dead as u64), "death"),
    ];
    if sample.snapshot.changed > 0 {
        parts.push(format!("{} not read", sample.snapshot.changed));
    }
    frame.render_widget(Line::from(parts.join(" · ")), second);
}

fn footer(view: &TopView, width: u16) -> String {
    match &view.screen {
        TopScreen::Filter(_) => format!("filter: {}█  (Enter keeps it, Esc drops it)", view.filter),
        TopScreen::Explanation(_) => "↑↓ scroll  any other key closes this".into(),
        TopScreen::Help => "any key closes this".into(),
        TopScreen::Tables if width < 60 => "q quit  ? help".into(),
        TopScreen::Tables => {
            let filter = if view.filter.is_empty() { "filter" } else { &view.filter };
            format!("q quit  Tab table  s sort  r reverse  w why  p pause  ? help  / {filter}")
        }
    }
}

fn tables(frame: &mut Frame<'_>, area: Rect, view: &mut TopView, sample: &TopSample, palette: TopPalette) {
    if frame.area().height < TALL {
        let [tabs, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
        let mut at = tabs;
        for table in TopTable::ALL {
            let title = format!(" {} {} ", table.title(), table.len(sample));
            let style = if table == view.table { palette.selected() } else { Style::new() };
            at.width = (title.chars().count() as u16).min(tabs.right().saturating_sub(at.x));
            frame.render_widget(Line::styled(title, style), at);
            at.x += at.width;
        }
        return table(frame, body, view, sample, palette, view.table);
    }
    // A table with few rows leaves lines to the other tables. Most programs have no pool.
    let shown: Vec<_> = TopTable::ALL
        .into_iter()
        .filter(|table| *table != TopTable::Pools || table.len(sample) > 0)
        .collect();
    let lines = shown.iter().map(|table| {
        let heights = (0..table.len(sample)).map(|row| usize::from(table.height(sample, row)));
        (heights.sum::<usize>() + 3).min(usize::from(u16::MAX)) as u16
    });
    let part = area.height / shown.len() as u16;
    let heights = lines.map(|lines| match lines {
        lines if lines <= part => Constraint::Length(lines),
        _ => Constraint::Fill(1),
    });
    let areas = Layout::vertical(heights).split(area);
    for (each, area) in shown.into_iter().zip(areas.iter()) {
        let [title, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(*area);
        let style = if each == view.table { palette.selected() } else { palette.title() };
        let text = format!(" {} {} ", each.title(), each.len(sample));
        frame.render_widget(Text::styled(text, style), title);
        table(frame, body, view, sample, palette, each);
    }
}

/// Draws the rows of a table that fit. The selected row is among them.
fn table(
    frame: &mut Frame<'_>,
    area: Rect,
    view: &mut TopView,
    sample: &TopSample,
    palette: TopPalette,
    table: TopTable,
) {
    let (rows, (sorted, falling)) = (view.rows(sample, table), view.sorting(table));
    let position = view.position(sample, table, &rows);
    let height = area.height.saturating_sub(1);
    let sheet = view.sheet(table);
    sheet.first = sheet.first.min(position);
    let lines = |from: usize| rows[from..=position].iter().map(|row| table.height(sample, *row)).sum::<u16>();
    while !rows.is_empty() && sheet.first < position && lines(sheet.first) > height {
        sheet.first += 1;
    }
    let (first, mut left, mut shown) = (sheet.first, height, Vec::new());
    for row in rows.iter().skip(first) {
        if left == 0 {
            break;
        }
        left = left.saturating_sub(table.height(sample, *row));
        shown.push(*row);
    }
    sheet.page = shown.len();
    let wide = area.width >= WIDE;
    let width = |column: &columns::TopColumn| if wide { column.widths.1 } else { column.widths.0 };
    let all: Vec<_> = table.columns().iter().enumerate().filter(|(_, column)| width(column) > 0).collect();
    let titles = all.iter().map(|(i, column)| {
        let mark = ["▲", "▼"][usize::from(falling)];
        let title = if *i == sorted { format!("{}{mark}", column.title) } else { column.title.into() };
        aligned(vec![title], column.right)
    });
    let widths = all.iter().map(|(_, column)| match width(column) {
        REST => Constraint::Fill(1),
        width => Constraint::Length(width),
    });
    let active = table == view.table;
    let body = shown.iter().enumerate().map(|(i, row)| {
        let cells = all.iter().map(|(j, column)| {
            let lines = table.cell(sample, *row, *j, width(column));
            aligned(lines, column.right).style(style(table, sample, *row, *j, palette))
        });
        let line = Row::new(cells.collect::<Vec<_>>()).height(table.height(sample, *row));
        if active && first + i == position { line.style(palette.selected()) } else { line }
    });
    let titles = Row::new(titles.collect::<Vec<_>>()).style(palette.title());
    let widget = Table::new(body.collect::<Vec<_>>(), widths.collect::<Vec<_>>());
    frame.render_widget(widget.header(titles).column_spacing(1), area);
}

fn aligned(lines: Vec<String>, right: bool) -> Cell<'static> {
    let text = Text::from(lines.into_iter().map(Line::from).collect::<Vec<_>>());
    Cell::from(if right { text.right_aligned() } else { text })
}

/// Returns the style of a cell.
fn style(table: TopTable, sample: &TopSample, row: usize, column: usize, palette: TopPalette) -> Style {
    match (table, column) {
        (TopTable::Processes, 5) => match columns::state(sample, &sample.snapshot.processes[row]) {
            "hangs" | "dead" => palette.alarm(),
            "stopped" => palette.colored(Color::Magenta).add_modifier(Modifier::BOLD),
            _ => Style::new(),
        },
        (TopTable::Queues, 3) => match columns::share(&sample.snapshot.queues[row]) {
            Some(1.0) => palette.colored(Color::Red),
            _ => palette.colored(Color::Cyan),
        },
        _ => Style::new(),
    }
}

/// Draws a text in front of the tables, from line `first` on. Decreases `first` if the text would not fill
/// the area.
fn popup(frame: &mut Frame<'_>, area: Rect, title: &str, first: &mut u16, text: &str, palette: TopPalette) {
    frame.render_widget(Clear, area);
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    frame.render_widget(Line::styled(format!(" {title} "), palette.selected()), head);
    let body = body.inner(Margin::new(1, 0));
    let width = usize::from(body.width).max(1);
    let lines: Vec<_> = text.lines().map(|line| narrowed(line, width)).collect();
    let wrapped: usize = lines.iter().map(|line| line.chars().count().div_ceil(width).max(1)).sum();
    let most = wrapped.saturating_sub(usize::from(body.height));
    *first = (*first).min(most.min(usize::from(u16::MAX)) as u16);
    let lines = lines.into_iter().map(|line| match line.contains("can't end by itself") {
        true => Line::styled(line, palette.alarm()),
        false => Line::from(line),
    });
    let text = Paragraph::new(lines.collect::<Vec<_>>()).wrap(Wrap { trim: false });
    frame.render_widget(text.scroll((*first, 0)), body);
}

/// Returns a line. In a line of more than `width` characters, each run of spaces after the indentation
/// becomes one space.
fn narrowed(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let text = line.trim_start();
    let words: Vec<_> = text.split_whitespace().collect();
    line[..line.len() - text.len()].to_owned() + &words.join(" ")
}
