//! Methods that both kinds of loaders and of iterators share.

/// Methods of a loader with its plan, dataset and workers in a field `inner`.
macro_rules! loader_methods {
    () => {
        /// Returns the dataset.
        #[must_use]
        pub fn dataset(&self) -> &D {
            &self.inner.dataset
        }

        /// Returns the metrics: times, counts and failures.
        #[must_use]
        pub fn metrics(&self) -> crate::LoaderMetrics {
            self.inner.metrics()
        }

        /// Closes the loader. Workers make the planned batches, drop their datasets and exit. Later batches
        /// are errors. Returns immediately.
        ///
        /// Without workers, this drops the copy of the dataset that makes the batches.
        pub fn close(&self) {
            self.inner.close();
        }

        /// [Closes](Self::close) the loader, and blocks without a time-out until each worker has finished its
        /// batches, dropped its dataset and exited.
        ///
        /// Existing iterators of this loader return the planned batches, and then an error. Drop them before
        /// this call if their batches are not needed.
        ///
        /// # Errors
        /// [`PoolError::OtherProcess`](mp_pool::PoolError::OtherProcess) in a process that was forked.
        pub fn join(self) -> Result<(), mp_pool::PoolError> {
            self.inner.join(std::time::Duration::MAX).map(drop)
        }

        /// Joins as [`join`](Self::join) does, but blocks no longer than `timeout`. Returns `true` if the
        /// workers have exited.
        ///
        /// # Errors
        /// The errors of [`join`](Self::join).
        pub fn join_timeout(&self, timeout: std::time::Duration) -> Result<bool, mp_pool::PoolError> {
            self.inner.join(timeout)
        }

        /// Returns the process ids of the live workers, which are fewer while a worker is being replaced.
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
        /// Returns the errors of the last 1024 [skipped](crate::OnError::SkipBatch) batches.
        #[must_use]
        pub fn skipped_batches(&self) -> &[crate::LoadError] {
            self.0.skipped_batches()
        }

        /// Returns the next batch, and blocks no longer than this.
        ///
        /// # Errors
        /// [`NotReadyError`](crate::NotReadyError) after the time-out. Without workers the caller makes the
        /// batch, which may take longer: then the time-out applies only after a
        /// [skipped](crate::OnError) batch.
        pub fn next_timeout(
            &mut self,
            timeout: std::time::Duration,
        ) -> Result<crate::NextBatch<D::Batch>, crate::NotReadyError> {
            self.0.next_timeout(timeout)
        }
    };
}
pub(crate) use batches_methods;
