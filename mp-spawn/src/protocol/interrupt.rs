//! What Ctrl-C does to the processes of a program.

/// What Ctrl-C does to a process: the SIGINT that a terminal sends to all processes of a program at once.
///
/// ```
/// use mp_spawn::{Interrupt, SpawnOptions, start_processes};
///
/// let worker = |rank: usize, (): ()| {
///     for _step in 0..100 {
///         if mp_core::interrupted() {
///             break; // the step before this one is whole
///         }
///     }
///     Ok::<_, mp_core::Error>(rank)
/// };
/// // Ctrl-C ends neither this process nor the workers any more: they finish their steps, and `join` returns.
/// let workers = start_processes(worker, (), SpawnOptions::nprocs(2).interrupt(Interrupt::Graceful))?;
/// assert_eq!(workers.join()?, [0, 1]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// A process that was started with SIGINT ignored (`nohup(1)`, a shell's background) ignores it whatever is said here, and so do
/// its children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Interrupt {
    /// It ends the process, as it ends all programs that don't handle it.
    #[default]
    Default,
    /// Nothing. The parent decides what becomes of the process: it ends at the latest with its parent.
    Ignore,
    /// The process is told: [`interrupted`](mp_core::interrupted) is true from then on, and waits for messages, room, events, permits or
    /// many things end with `Interrupted` when there is nothing to take (waits for locks, barriers and conditions go on: their
    /// owners and parties end them). A wait ends at once in the thread that gets the signal, as a rule the main thread, and within
    /// 100 ms in others.
    ///
    /// So is this process, from the first start with this on, unless it handles SIGINT itself (a second Ctrl-C ends it, and its
    /// children with it): else it would be gone before its workers have finished.
    ///
    /// An error that a worker returns after that is [`RaisedKind::Interrupted`](crate::RaisedKind::Interrupted): it does not
    /// end the others, and `join` reports it only where no process has failed otherwise.
    Graceful,
}

impl Interrupt {
    pub(crate) fn to_byte(self) -> u8 {
        self as u8
    }

    #[inline]
    pub(crate) fn from_byte(byte: u8) -> Option<Interrupt> {
        [Interrupt::Default, Interrupt::Ignore, Interrupt::Graceful]
            .into_iter()
            .find(|kind| kind.to_byte() == byte)
    }
}
