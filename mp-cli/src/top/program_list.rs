//! List from which the user chooses a program, if several run.

use std::time::{Duration, Instant};

use mp_core::quantity;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table, TableState};

use super::columns::short_command;
use super::draw::TopPalette;
use crate::programs::{self, Program};
use crate::tables::duration;

/// Time between two searches for programs, which read all of `/proc`.
const SEARCH: Duration = Duration::from_secs(5);

/// Programs from which the user chooses one.
pub(super) struct ProgramList {
    programs: Vec<Program>,
    searched: Instant,
    state: TableState,
    /// Reason why the program that was chosen can't be shown.
    pub(super) error: Option<String>,
}

/// Action that a key requests from the caller.
pub(super) enum ProgramChoice {
    Stay,
    Quit,
    Open(Program),
}

impl ProgramList {
    pub(super) fn new(programs: Vec<Program>) -> Self {
        let state = TableState::new().with_selected(0);
        Self { programs, searched: Instant::now(), state, error: None }
    }

    /// Returns the time of the next search.
    pub(super) fn next(&self) -> Instant {
        self.searched + SEARCH
    }

    /// Searches for programs. The selected program stays selected.
    pub(super) fn refresh(&mut self) {
        let root = self.selected().map(|program| program.root);
        *self = Self { error: self.error.take(), ..Self::new(programs::all()) };
        let at = self.programs.iter().position(|program| Some(program.root) == root);
        self.state.select(Some(at.unwrap_or(0)));
    }

    fn selected(&self) -> Option<&Program> {
        self.programs.get(self.state.selected()?)
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> ProgramChoice {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return ProgramChoice::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return ProgramChoice::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.state.select_previous(),
            KeyCode::Down | KeyCode::Char('j') => self.state.select_next(),
            KeyCode::Home | KeyCode::PageUp => self.state.select_first(),
            KeyCode::End | KeyCode::PageDown => self.state.select_last(),
            KeyCode::Enter => {
                return self.selected().cloned().map_or(ProgramChoice::Stay, ProgramChoice::Open);
            }
            _ => {}
        }
        ProgramChoice::Stay
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, palette: TopPalette) {
        let rows = [
            Constraint::Length(1),
            Constraint::Length(u16::from(self.error.is_some())),
            Constraint::Min(0),
            Constraint::Length(1),
        ];
        let [top, red, body, bottom] = Layout::vertical(rows).areas(frame.area());
        let title = format!("{} of multiproc", quantity(self.programs.len(), "program"));
        frame.render_widget(Line::styled(title, palette.title()), top);
        frame.render_widget(Line::styled(self.error.clone().unwrap_or_default(), palette.alarm()), red);
        let rows = self.programs.iter().map(|program| {
            let processes = program.pids.len().to_string();
            let age = duration(program.age * 1000);
            Row::new([program.root.to_string(), processes, age, short_command(&program.command).into()])
        });
        let widths =
            [Constraint::Length(8), Constraint::Length(9), Constraint::Length(8), Constraint::Fill(1)];
        let titles = Row::new(["PID", "PROCESSES", "AGE", "COMMAND"]).style(palette.title());
        let table = Table::new(rows, widths).header(titles).row_highlight_style(palette.selected());
        frame.render_stateful_widget(table, body, &mut self.state);
        frame.render_widget(Line::from("q quit  ↑↓ select  Enter show"), bottom);
    }
}
