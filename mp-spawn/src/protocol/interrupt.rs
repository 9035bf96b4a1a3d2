//! Effect of SIGINT and SIGTERM on the processes of a program.

use std::ffi::c_int;

use crate::protocol::fields::field_enum;

/// Effect of a request to stop on a process: SIGINT or SIGTERM, sent to all processes of a program at once.
///
/// ```
/// use mp_spawn::{Interrupt, SpawnOptions, start_processes};
///
/// let worker = |rank: usize, (): ()| {
///     for _step in 0..100 {
///         if mp_core::interrupted() {
///             break; // the previous step is complete
///         }
///     }
///     Ok::<_, mp_core::Error>(rank)
/// };
/// // Neither Ctrl-C nor `systemctl stop` ends this process or the workers: they finish their steps, and
/// // `join` returns.
/// let workers = start_processes(worker, (), SpawnOptions::nprocs(2).interrupt(Interrupt::Graceful))?;
/// assert_eq!(workers.join()?, [0, 1]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// A terminal sends SIGINT at Ctrl-C. A service manager sends SIGTERM, and systemd sends it to every process
/// of the unit by default. [`interrupt_signals`](crate::SpawnOptions::interrupt_signals) restricts `Ignore`
/// and `Graceful` to one of the two.
///
/// A SIGTERM from the parent process always ends the process. The parent sends it for
/// [`terminate`](crate::Process::terminate), and when another process has failed. A program that sends
/// SIGTERM to its own process group therefore ends its workers.
///
/// A process that was started with SIGINT ignored (`nohup(1)`, a shell's background) ignores SIGINT with each
/// of the variants, and so do its children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Interrupt {
    /// The signal ends the process, as it ends all programs that don't handle it.
    #[default]
    Default,
    /// The signal has no effect. The parent decides when the process ends, at the latest with the parent
    /// itself.
    Ignore,
    /// Notifies the process: [`interrupted`](mp_core::interrupted) returns `true` from then on. Waits for
    /// messages, room in a queue, events, permits or several objects return `Interrupted` when there is
    /// nothing to take. Waits for locks, barriers and conditions continue, because the lock's owner or the
    /// other parties end such a wait. A wait ends at once on the thread that gets the signal, usually the
    /// main thread, and within 100 ms on other threads.
    ///
    /// The parent is notified in the same way, from the first start with this variant, for each signal that
    /// it does not handle itself. A second signal ends the parent, and its children with it.
    ///
    /// An error that a worker returns after the notification is
    /// [`RaisedKind::Interrupted`](crate::RaisedKind::Interrupted). It does not end the other processes, and
    /// `join` returns it only if there is no other failure.
    Graceful,
}

/// Signals to which [`Interrupt::Ignore`] and [`Interrupt::Graceful`] apply. The other signal has its default
/// effect.
///
/// ```
/// use mp_spawn::{Interrupt, InterruptSignals, Process};
///
/// // The parent handles Ctrl-C. `kill PID` ends the process.
/// let builder = Process::builder().interrupt(Interrupt::Ignore).interrupt_signals(InterruptSignals::Sigint);
/// builder.spawn(|(): ()| (), ())?.join()?;
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InterruptSignals {
    /// SIGINT and SIGTERM.
    #[default]
    Both,
    /// SIGINT only.
    Sigint,
    /// SIGTERM only.
    Sigterm,
}

field_enum!(Interrupt { Default, Ignore, Graceful });
field_enum!(InterruptSignals { Both, Sigint, Sigterm });

impl Interrupt {
    /// Returns the effect of `signal` if this effect applies to `signals`. Any other signal has the default
    /// effect.
    pub(crate) fn effect_on(self, signal: c_int, signals: InterruptSignals) -> Interrupt {
        if signals.numbers().contains(&signal) { self } else { Interrupt::Default }
    }
}

impl InterruptSignals {
    /// Returns the numbers of the signals.
    pub(crate) fn numbers(self) -> &'static [c_int] {
        match self {
            InterruptSignals::Both => &[libc::SIGINT, libc::SIGTERM],
            InterruptSignals::Sigint => &[libc::SIGINT],
            InterruptSignals::Sigterm => &[libc::SIGTERM],
        }
    }
}
