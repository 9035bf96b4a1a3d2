//! Progress bars.

use std::time::Duration;

use indicatif::ProgressBar;
use mp_core::message::IntoOutcome;
use mp_reduce::Message;
use mp_spawn::CapturesNothing;

use crate::api::pool::Pool;
use crate::api::result::{AsyncResult, ResultKind};
use crate::error::TaskError;

/// Minimum time between two updates of a bar.
const TICK: Duration = Duration::from_millis(50);

impl<T, S: ResultKind<T>> AsyncResult<T, S> {
    /// Like [`get`](Self::get); meanwhile the bar shows the number of finished tasks.
    ///
    /// # Errors
    /// Same as [`get`](Self::get).
    pub fn get_with_progress(self, bar: &ProgressBar) -> Result<S::Value, TaskError> {
        bar.set_length(self.progress().total as u64);
        while !self.wait_timeout(TICK) {
            bar.set_position(self.progress().done as u64);
        }
        bar.set_position(self.progress().done as u64);
        self.get()
    }
}

impl Pool {
    /// Like [`map`](Self::map); meanwhile the bar shows the number of finished tasks.
    ///
    /// ```
    /// use indicatif::ProgressBar;
    ///
    /// let pool = mp_pool::Pool::new(2)?;
    /// let bar = ProgressBar::hidden();
    /// let squares = pool.map_with_progress(|x: u64| x * x, 0..100, &bar)?;
    /// assert_eq!((squares[9], bar.position()), (81, 100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`map`](Self::map).
    #[doc(alias = "tqdm")]
    pub fn map_with_progress<F, A, R>(
        &self,
        function: F,
        items: impl IntoIterator<Item = A>,
        bar: &ProgressBar,
    ) -> Result<Vec<R::Value>, TaskError>
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Message + Send,
        R: IntoOutcome,
    {
        self.map_async(function, items).get_with_progress(bar)
    }
}
