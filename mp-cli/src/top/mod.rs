//! The command `top`: a program, live.
//!
//! | file | content |
//! |---|---|
//! | `sample.rs` | data of a program, and changes since the previous sample |
//! | `columns.rs` | the tables |
//! | `ui_state.rs` | state that the keys change |
//! | `draw.rs` | rendering of a program |
//! | `program_list.rs` | list of programs, if several run |

mod columns;
mod draw;
mod program_list;
mod sample;
#[cfg(test)]
mod tests;
mod ui_state;

use std::io::IsTerminal as _;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, enable_raw_mode};
use ratatui::layout::Rect;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::SIGTERM;

use crate::programs::{self, Program};
use crate::{Result, program_report};
use draw::TopPalette;
use program_list::{ProgramChoice, ProgramList};
use sample::LiveProgram;
use ui_state::{TopAction, TopView};

/// Maximum time until a change of the terminal's size is noticed.
const NOTICED: Duration = Duration::from_millis(500);

/// Key that suspends the command, like other jobs of a shell.
const SUSPEND: (KeyCode, KeyModifiers) = (KeyCode::Char('z'), KeyModifiers::CONTROL);

/// Shows a program until a key ends the command. Without a target, first shows a list of programs if several
/// run. Without an interval, `top` reads the program every second. A large program is read less often, so
/// that the reads use at most 1 % of a processor.
pub(crate) fn run(target: Option<&str>, interval: Option<Duration>) -> Result<()> {
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if !is_terminal || std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        return Err("`mp top` needs a terminal: without one, use `mp show --watch`".into());
    }
    let (mut programs, mut selected) = (Vec::new(), None);
    if let Some(target) = target {
        let (report, pids) = program_report::of_target(target)?;
        programs.push(report.program);
        selected = pids.first().copied().filter(|_| pids.len() == 1);
    } else {
        programs = programs::all();
    }
    let first = match programs.len() {
        0 => return Err("no program of this user uses multiproc".into()),
        1 => Some(LiveProgram::open(programs.remove(0))?),
        _ => None,
    };
    let signal = |error| format!("signal: {error}");
    let (signals, sender) = UnixStream::pair().map_err(signal)?;
    signal_hook::low_level::pipe::register(SIGTERM, sender).map_err(signal)?;
    let colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let terminal = ratatui::try_init().map_err(|e| format!("terminal: {e}"))?;
    // A `top` that was killed has left its text on the other screen. (`Terminal::clear` queries the position
    // of the cursor, and not every terminal answers.)
    _ = execute!(std::io::stdout(), Clear(ClearType::All));
    let mut screen = Screen { terminal, signals, ended: false, palette: TopPalette { colors } };
    let done = screen.run(first, programs, selected, interval);
    // The terminal is restored before an error is printed.
    let restored = ratatui::try_restore();
    done?;
    restored.map_err(|e| format!("terminal: {e}"))
}

/// The terminal, in the alternate screen, and the signals that end the command.
struct Screen {
    terminal: DefaultTerminal,
    /// Receives a byte when a signal requests the end of the command.
    signals: UnixStream,
    /// `true` after a signal has requested the end of the command, or the terminal has hung up.
    ended: bool,
    palette: TopPalette,
}

impl Screen {
    fn run(
        &mut self,
        first: Option<LiveProgram>,
        programs: Vec<Program>,
        selected: Option<u32>,
        interval: Option<Duration>,
    ) -> Result<()> {
        let live = match first {
            Some(live) => Some(live),
            None => self.choose(programs)?,
        };
        live.map_or(Ok(()), |live| self.show(live, TopView::new(interval, selected)))
    }

    /// Returns the program that the user chooses, or `None` at the end of the command.
    fn choose(&mut self, programs: Vec<Program>) -> Result<Option<LiveProgram>> {
        let mut list = ProgramList::new(programs);
        loop {
            let palette = self.palette;
            self.terminal.draw(|frame| list.draw(frame, palette)).map_err(text)?;
            let Some(event) = self.event(list.next())? else {
                if self.ended {
                    return Ok(None);
                }
                list.refresh();
                continue;
            };
            let Event::Key(key) = event else { continue };
            match list.key(key) {
                ProgramChoice::Stay => {}
                ProgramChoice::Quit => return Ok(None),
                ProgramChoice::Open(program) => match LiveProgram::open(program) {
                    Ok(live) => return Ok(Some(live)),
                    Err(error) => list.error = Some(error),
                },
            }
        }
    }

    fn show(&mut self, mut live: LiveProgram, mut view: TopView) -> Result<()> {
        let mut sample = live.sample().ok_or("the program has just ended")?;
        let mut next = Instant::now() + view.pace().min(FIRST);
        let mut used = processor_time();
        loop {
            let palette = self.palette;
            let draw = |frame: &mut ratatui::Frame<'_>| draw::program(frame, &mut view, &sample, palette);
            self.terminal.draw(draw).map_err(text)?;
            let reads = !view.paused && view.end.is_none();
            let until = if reads { next } else { Instant::now() + Duration::from_secs(3600) };
            let event = self.event(until)?;
            if self.ended {
                return Ok(());
            }
            match event {
                Some(Event::Key(key)) => {
                    let interval = view.interval;
                    match view.key(key, &sample) {
                        TopAction::Stay => {}
                        TopAction::Redraw => self.redraw().map_err(text)?,
                        TopAction::Quit => return Ok(()),
                    }
                    if view.interval != interval {
                        next = Instant::now() + view.pace();
                    }
                }
                Some(_) => {}
                None => {
                    match live.sample() {
                        Some(now) => sample = now,
                        None => view.end = Some(ENDED.into()),
                    }
                    let now = processor_time();
                    view.record_cost(now.saturating_sub(used));
                    used = now;
                    next = Instant::now() + view.pace();
                }
            }
        }
    }

    /// Makes the next frame redraw the whole screen. [`ratatui::Terminal::clear`] would first query the
    /// position of the cursor, and fail if the terminal does not answer.
    fn redraw(&mut self) -> std::io::Result<()> {
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::new(0, 0, size.width, size.height))
    }

    /// Restores the terminal, and stops this process until a shell continues it.
    fn suspend(&mut self) -> std::io::Result<()> {
        ratatui::try_restore()?;
        kill_process(getpid(), Signal::TSTP)?;
        enable_raw_mode()?;
        execute!(std::io::stdout(), EnterAlternateScreen, Clear(ClearType::All))?;
        self.redraw()
    }

    /// Waits for a key or a change of the terminal's size. Returns `None` at the time `until`, or if the
    /// command ends.
    fn event(&mut self, until: Instant) -> Result<Option<Event>> {
        loop {
            // Crossterm would read a terminal that has hung up in an endless loop, so it is called only if
            // there are bytes. It is also called after a signal and after the wait, because a change of the
            // size is a signal.
            let left = until.saturating_duration_since(Instant::now()).min(NOTICED);
            self.wait(left)?;
            if self.ended {
                return Ok(None);
            }
            if event::poll(Duration::ZERO).map_err(text)? {
                match event::read().map_err(text)? {
                    Event::Key(key) if key.kind == KeyEventKind::Release => {}
                    Event::Key(key) if (key.code, key.modifiers) == SUSPEND => {
                        self.suspend().map_err(text)?;
                        return Ok(Some(Event::FocusGained));
                    }
                    event => return Ok(Some(event)),
                }
            } else if Instant::now() >= until {
                return Ok(None);
            }
        }
    }

    /// Waits for bytes from the terminal or a signal.
    fn wait(&mut self, most: Duration) -> Result<()> {
        let stdin = std::io::stdin();
        let mut files =
            [stdin.as_fd(), self.signals.as_fd()].map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
        match poll(&mut files, Some(&most.try_into().unwrap_or_default())) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(text(error.into())),
        }
        let [terminal, signals] = files.map(|file| file.revents());
        self.ended |= terminal.intersects(PollFlags::HUP | PollFlags::ERR) || !signals.is_empty();
        Ok(())
    }
}

/// Returns the processor time that this process has used.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.try_into().unwrap_or_default()
}

/// Time until the second sample, which has the first rates.
const FIRST: Duration = Duration::from_millis(500);
const ENDED: &str = "The program has ended. This is its last state; q quits.";

fn text(error: std::io::Error) -> String {
    format!("terminal: {error}")
}
