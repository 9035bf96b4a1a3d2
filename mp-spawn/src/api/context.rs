//! Functions that start processes, bound to one start method.

use mp_core::message::IntoOutcome;

use crate::api::builder::ProcessBuilder;
use crate::api::process::Process;
use crate::api::spawn::{self, ProcessContext};
use crate::bounds::{Argument, CapturesNothing};
use crate::error::Result;
use crate::parent::options::SpawnOptions;
use crate::start_method::StartMethod;

/// A start method, with the functions that start processes by it.
///
/// ```
/// use mp_spawn::{StartMethod, get_context};
///
/// let context = get_context(StartMethod::ForkServer);
/// assert_eq!(context.spawn(|rank: usize, (): ()| Ok::<_, String>(rank + 1), (), 2)?, [1, 2]);
/// let child = context.process().name("one").spawn(|n: u32| Ok::<_, String>(n * n), 7)?;
/// assert_eq!(child.join()?, 49);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartContext {
    method: StartMethod,
}

/// Returns a context for this start method, which takes precedence over
/// [`set_start_method`](crate::set_start_method).
#[must_use]
pub fn get_context(method: StartMethod) -> StartContext {
    StartContext { method }
}

impl StartContext {
    /// Returns the start method.
    #[must_use]
    pub fn method(self) -> StartMethod {
        self.method
    }

    /// Works like [`spawn`](crate::spawn), with this start method.
    ///
    /// # Errors
    ///
    /// See [`spawn`](crate::spawn).
    #[track_caller]
    pub fn spawn<F, A, R>(self, function: F, args: A, nprocs: usize) -> Result<Vec<R::Value>>
    where
        F: Fn(usize, A) -> R + CapturesNothing,
        A: Argument,
        R: IntoOutcome,
    {
        self.start_processes(function, args, SpawnOptions::nprocs(nprocs))?.join()
    }

    /// Works like [`start_processes`](crate::start_processes), with this start method.
    ///
    /// # Errors
    ///
    /// See [`start_processes`](crate::start_processes).
    #[doc(alias = "TORCH_MP_PARALLEL_START")]
    pub fn start_processes<F, A, R>(
        self,
        function: F,
        args: A,
        options: SpawnOptions,
    ) -> Result<ProcessContext<R::Value>>
    where
        F: Fn(usize, A) -> R + CapturesNothing,
        A: Argument,
        R: IntoOutcome,
    {
        spawn::start_processes(function, args, options.start_method(self.method))
    }

    /// Works like [`Process::builder`], with this start method.
    pub fn process(self) -> ProcessBuilder {
        Process::builder().start_method(self.method)
    }
}
