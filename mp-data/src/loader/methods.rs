//! Methods that both kinds of loaders and of iterators share.

/// Methods of a loader with its plan, dataset and workers in a field `inner`.
macro_rules! loader_methods {
    ($batches:ident, $state:ident, $epochs_end:literal) => {
        /// Returns an iterator over the batches of an epoch. Workers begin to make the batches immediately.
        /// Dropping the iterator before its end does not wait for workers.
        pub fn epoch(&self, epoch: u64) -> $batches<D> {
            self.from(self.start_of(epoch), Some(epoch))
        }

        /// Returns an iterator over the batches of several epochs, in order. Workers begin with the next
        /// epoch while the last batches of an epoch are delivered.
        /// [`BatchInfo::epoch`](crate::BatchInfo::epoch) has the epoch of a batch.
        #[doc = $epochs_end]
        ///
        /// If all batches of an epoch are [skipped](crate::OnError) and another epoch follows, the iterator
        /// ends with an error, which contains the error of the last batch.
        pub fn epochs(&self, epochs: std::ops::Range<u64>) -> $batches<D> {
            let last = epochs.end.checked_sub(1).filter(|last| *last >= epochs.start);
            self.from(self.start_of(epochs.start), last)
        }

        /// Resumes as [`resume`](Self::resume) does, and adds the epochs after the state's epoch up to `end`
        /// (exclusive). The iterator is empty if the state is in epoch `end` or later.
        ///
        /// # Errors
        /// The errors of [`resume`](Self::resume).
        pub fn resume_until(&self, state: &$state, end: u64) -> Result<$batches<D>, crate::plan::PlanError> {
            let last = end.checked_sub(1).filter(|last| *last >= state.epoch());
            Ok(self.from(self.source_at(state)?, last))
        }

        /// Replaces the dataset, with the same settings and new workers. Existing iterators of batches keep
        /// the old dataset and its workers.
        ///
        /// # Errors
        /// The errors of the builder's `build`. In case of an error, the loader is unchanged.
        pub fn set_dataset(&mut self, dataset: D) -> Result<(), crate::BuildError> {
            *self = Self::start(Arc::new(dataset), self.plan.clone(), self.inner.settings.clone())?;
            Ok(())
        }

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
        /// Without workers, `close` drops the copy of the dataset that makes the batches.
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
    ($state:ident) => {
        /// Returns the state after the delivered batches, which doesn't depend on prefetched batches. An
        /// error in the place of a batch counts as delivered, except the final error when no worker can run.
        #[must_use]
        #[doc(alias = "state_dict")]
        pub fn state(&self) -> $state {
            self.state_at(self.0.place())
        }

        /// Returns the state after the delivery of this batch, for programs that queue batches themselves.
        /// Returns `None` if the batch is not among the last 1024 delivered batches. With several epochs, the
        /// last batch with this number counts.
        #[must_use]
        pub fn state_after(&self, number: u64) -> Option<$state> {
            self.0.place_after(number).map(|place| self.state_at(place.clone()))
        }

        /// Returns the errors of the last 1024 [skipped](crate::OnError::SkipBatch) batches.
        #[must_use]
        pub fn skipped_batches(&self) -> &[crate::LoadError] {
            &self.0.skipped_batches
        }

        /// Returns the next batch. Blocks for at most this duration.
        ///
        /// # Errors
        /// [`NotReadyError`](crate::NotReadyError) after the time-out. Without workers the caller makes the
        /// batch, which may take longer: in that case the time-out is checked only after a
        /// [skipped](crate::OnError) batch.
        #[track_caller]
        pub fn next_timeout(
            &mut self,
            timeout: std::time::Duration,
        ) -> Result<crate::NextBatch<D::Batch>, crate::NotReadyError> {
            self.0.next_timeout(timeout)
        }
    };
}
pub(crate) use batches_methods;
