//! The state of `top` that the keys set: table, order, selection, filter.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::columns::TopTable;
use super::sample::TopSample;
use crate::tables::workers;
use crate::why;

/// Intervals in milliseconds that the keys `+` and `-` select.
const INTERVALS: [u64; 9] = [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

/// Minimum interval between two readings, as a multiple of the processor time of a reading.
const COST: u32 = 120;

/// Text or input that `top` shows in front of the tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum TopScreen {
    Tables,
    /// The user types a filter. Contains the previous filter.
    Filter(String),
    /// The output of `why`. The number is the first visible line.
    Explanation(u16),
    Help,
}

/// Order, selection and scroll position of a table.
#[derive(Clone, Default, Debug)]
pub(super) struct TopSheet {
    /// Process or block of the selected row.
    selected: Option<u32>,
    /// Position of the selected row, used after its process or block has disappeared.
    position: usize,
    /// First row on the screen.
    pub(super) first: usize,
    /// Number of rows that fit on the screen.
    pub(super) page: usize,
    pub(super) column: usize,
    reversed: bool,
}

/// Action that a key requests from the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TopAction {
    Stay,
    /// Write the whole screen again, as another program may have written to it.
    Redraw,
    Quit,
}

/// View of a program, as the keys set it.
pub(super) struct TopView {
    pub(super) table: TopTable,
    sheets: [TopSheet; TopTable::ALL.len()],
    pub(super) filter: String,
    pub(super) screen: TopScreen,
    pub(super) paused: bool,
    /// Interval that the user has requested, or 1 s.
    pub(super) interval: Duration,
    /// Shortest interval at which reading the program needs little processor time.
    least: Duration,
    /// `true` if the user chose the interval.
    is_chosen: bool,
    /// Reason why the program is no longer read.
    pub(super) end: Option<String>,
}

impl TopView {
    /// Creates the view of a program. `selected` is the process to select.
    pub(super) fn new(interval: Option<Duration>, selected: Option<u32>) -> Self {
        let mut sheets: [TopSheet; TopTable::ALL.len()] = Default::default();
        sheets[TopTable::Processes as usize].selected = selected;
        Self {
            table: TopTable::Processes,
            sheets,
            filter: String::new(),
            screen: TopScreen::Tables,
            paused: false,
            interval: interval.unwrap_or(Duration::from_secs(1)),
            least: Duration::ZERO,
            is_chosen: interval.is_some(),
            end: None,
        }
    }

    /// Returns the interval at which the program is read.
    pub(super) fn pace(&self) -> Duration {
        if self.is_chosen { self.interval } else { self.interval.max(self.least) }
    }

    /// Records the processor time of a reading.
    pub(super) fn record_cost(&mut self, cost: Duration) {
        // In tenths of a second, so that the interval on the screen seldom changes.
        let tenths = (cost * COST).as_millis().div_ceil(100).min(600) as u64;
        self.least = Duration::from_millis(100 * tenths);
    }

    pub(super) fn sheet(&mut self, table: TopTable) -> &mut TopSheet {
        &mut self.sheets[table as usize]
    }

    /// Returns the column that a table is sorted by, and `true` if the largest value is first.
    pub(super) fn sorting(&self, table: TopTable) -> (usize, bool) {
        let sheet = &self.sheets[table as usize];
        (sheet.column, table.columns()[sheet.column].falling != sheet.reversed)
    }

    /// Returns the rows of a table that pass the filter, in their order.
    pub(super) fn rows(&self, sample: &TopSample, table: TopTable) -> Vec<usize> {
        let filter = self.filter.to_lowercase();
        let rows = (0..table.len(sample)).filter(|row| table.matches(sample, *row, &filter));
        let (column, falling) = self.sorting(table);
        let mut keys: Vec<_> = rows.map(|row| (table.key(sample, row, column), row)).collect();
        keys.sort_by(|(a, i), (b, j)| {
            let order = if falling { b.order(a) } else { a.order(b) };
            order.then(i.cmp(j))
        });
        keys.into_iter().map(|(_, row)| row).collect()
    }

    /// Returns the position of the selected row in `rows`.
    pub(super) fn position(&mut self, sample: &TopSample, table: TopTable, rows: &[usize]) -> usize {
        let sheet = self.sheet(table);
        let is_selected = |row: &usize| Some(table.id(sample, *row)) == sheet.selected;
        let found = rows.iter().position(is_selected);
        sheet.position = found.unwrap_or(sheet.position).min(rows.len().saturating_sub(1));
        sheet.position
    }

    fn step(&mut self, sample: &TopSample, by: isize) {
        if let TopScreen::Explanation(line) = &mut self.screen {
            *line = line.saturating_add_signed(by.clamp(-1000, 1000) as i16);
            return;
        }
        let (table, rows) = (self.table, self.rows(sample, self.table));
        let at = self.position(sample, table, &rows).saturating_add_signed(by);
        let at = at.min(rows.len().saturating_sub(1));
        let sheet = self.sheet(table);
        sheet.position = at;
        sheet.selected = rows.get(at).map(|row| table.id(sample, *row));
    }

    /// Returns the output of `why` for the selected row: a process, or the processes that wait for a queue or
    /// object. Processes that hang are explained as well. For a pool, returns its workers.
    pub(super) fn explanation(&mut self, sample: &TopSample) -> String {
        let (table, rows) = (self.table, self.rows(sample, self.table));
        let at = self.position(sample, table, &rows);
        let mut pids = Vec::new();
        if table == TopTable::Pools {
            let pool = rows.get(at).map(|row| &sample.snapshot.pools[*row]);
            return pool.map_or(String::new(), |pool| workers(&sample.snapshot, pool));
        }
        match rows.get(at).map(|row| table.id(sample, *row)) {
            Some(pid) if table == TopTable::Processes => pids.push(pid),
            Some(block) => {
                let waits = sample.waits_for(block).iter();
                pids.extend(waits.map(|(process, _)| sample.snapshot.processes[*process].pid));
                pids.dedup();
            }
            None => {}
        }
        let hangs = pids.iter().any(|pid| sample.hanging.contains(pid));
        pids.extend(sample.hanging.first().filter(|_| !hangs));
        if pids.is_empty() {
            return "No process waits for it.".into();
        }
        let found = why::explain(&sample.snapshot, &pids);
        found.to_string() + &found.conclusion()
    }

    /// Changes the view according to a key. Returns an action for the caller.
    pub(super) fn key(&mut self, key: KeyEvent, sample: &TopSample) -> TopAction {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => TopAction::Quit,
                KeyCode::Char('l') => TopAction::Redraw,
                _ => TopAction::Stay,
            };
        }
        if let TopScreen::Filter(before) = &self.screen {
            match key.code {
                KeyCode::Enter => self.screen = TopScreen::Tables,
                KeyCode::Esc => {
                    self.filter.clone_from(before);
                    self.screen = TopScreen::Tables;
                }
                KeyCode::Backspace => _ = self.filter.pop(),
                KeyCode::Char(letter) => self.filter.push(letter),
                _ => {}
            }
            return TopAction::Stay;
        }
        let page = self.sheet(self.table).page.max(1) as isize;
        match key.code {
            KeyCode::Up | KeyCode::Char('k') => self.step(sample, -1),
            KeyCode::Down | KeyCode::Char('j') => self.step(sample, 1),
            KeyCode::PageUp => self.step(sample, -page),
            KeyCode::PageDown => self.step(sample, page),
            KeyCode::Home => self.step(sample, isize::MIN),
            KeyCode::End => self.step(sample, isize::MAX),
            // Any other key closes the screen in front of the tables.
            _ if self.screen != TopScreen::Tables => self.screen = TopScreen::Tables,
            KeyCode::Char('q') | KeyCode::Esc => return TopAction::Quit,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(TopTable::ALL.len() - 1),
            KeyCode::Char('s') => {
                let columns = self.table.columns().len();
                let sheet = self.sheet(self.table);
                (sheet.column, sheet.reversed) = ((sheet.column + 1) % columns, false);
            }
            KeyCode::Char('r') => self.sheet(self.table).reversed ^= true,
            KeyCode::Char('/') => self.screen = TopScreen::Filter(std::mem::take(&mut self.filter)),
            KeyCode::Char('w') | KeyCode::Enter => self.screen = TopScreen::Explanation(0),
            KeyCode::Char('p') => self.paused ^= true,
            KeyCode::Char('?' | 'h') => self.screen = TopScreen::Help,
            KeyCode::Char('+') => self.choose_interval(true),
            KeyCode::Char('-') => self.choose_interval(false),
            _ => {}
        }
        TopAction::Stay
    }

    fn choose_interval(&mut self, longer: bool) {
        (self.interval, self.is_chosen) = (other_interval(self.pace(), longer), true);
    }

    fn turn(&mut self, by: usize) {
        self.table = TopTable::ALL[(self.table as usize + by) % TopTable::ALL.len()];
    }
}

/// Returns the next longer or shorter interval.
fn other_interval(now: Duration, longer: bool) -> Duration {
    let mut all = INTERVALS.into_iter().map(Duration::from_millis);
    let next = if longer { all.find(|other| *other > now) } else { all.rfind(|other| *other < now) };
    next.unwrap_or(now)
}
