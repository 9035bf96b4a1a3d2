//! Methods of loaders of both kinds and of their iterators: written once, as the builders' settings are.

/// Methods of a loader with its plan, dataset and workers in a field `inner`.
macro_rules! loader_methods {
    () => {
        /// The dataset.
        #[must_use]
        pub fn dataset(&self) -> &D {
            &self.inner.dataset
        }

        /// Returns the metrics: whether the trainer waits for batches, and what went wrong.
        #[must_use]
        pub fn metrics(&self) -> crate::LoaderMetrics {
            self.inner.metrics()
        }

        /// Takes no more orders: batches that are planned are made, later ones are errors, and then each
        /// worker drops its dataset and ends. Returns at once.
        ///
        /// Without workers the dataset's copy that makes the batches is dropped here.
        pub fn close(&self) {
            self.inner.close();
        }

        /// [Closes](Self::close) the loader, and blocks until each worker has finished its batches, dropped
        /// its dataset and ended, however long that takes.
        ///
        /// Iterators of this loader may live on: they have the batches that were planned, and then an error.
        /// So drop them before, if their batches are not needed.
        ///
        /// # Errors
        /// [`PoolError::OtherProcess`](mp_pool::PoolError::OtherProcess) in a process that was forked.
        pub fn join(self) -> Result<(), mp_pool::PoolError> {
            self.inner.join(std::time::Duration::MAX).map(drop)
        }

        /// Joins as [`join`](Self::join) does, but blocks no longer than `timeout`. Returns `true` if the
        /// workers have ended.
        ///
        /// # Errors
        /// As of [`join`](Self::join).
        pub fn join_timeout(&self, timeout: std::time::Duration) -> Result<bool, mp_pool::PoolError> {
            self.inner.join(timeout)
        }

        /// The process ids of the workers: those that live, so fewer while one is being replaced.
        #[must_use]
        pub fn pids(&self) -> Vec<u32> {
            self.inner.pids()
        }
    };
}
pub(crate) use loader_methods;

/// Methods of an iterator of batches, around a [`Prefetch`](crate::loader::prefetch::Prefetch).
macro_rules! batches_methods {
    () => {
        /// The errors of batches that were [left out](crate::OnError::SkipBatch), the last 1024.
        #[must_use]
        pub fn skipped_batches(&self) -> &[crate::LoadError] {
            self.0.skipped_batches()
        }

        /// Returns the next batch, or waits for it no longer than this.
        ///
        /// # Errors
        /// [`NotReadyError`](crate::NotReadyError) if the time is over. Without workers the caller makes the
        /// batch, however long that takes; then the time can end only after a batch that was [left
        /// out](crate::OnError).
        pub fn next_timeout(
            &mut self,
            timeout: std::time::Duration,
        ) -> Result<crate::NextBatch<D::Batch>, crate::NotReadyError> {
            self.0.next_timeout(timeout)
        }
    };
}
pub(crate) use batches_methods;
