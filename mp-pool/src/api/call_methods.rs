//! Methods that call a function in the workers, for pools with a state and without.

/// Defines the methods of a pool that call a function in the workers. In a pool with a state, the function
/// receives the state as its first argument, `$name: &mut $state`.
macro_rules! call_methods {
    (
        $tuple_fn:ident $(, $name:ident: $state:ident)?;
        imap { $(#[$imap:meta])* }
        stream { $(#[$stream:meta])* }
        starmap { $(#[$starmap:meta])* }
    ) => {
        /// Calls the function in a worker, and blocks until its result is available.
        ///
        /// # Errors
        /// Any [`TaskError`] with which the task ends.
        #[track_caller]
        pub fn apply<F, A, R>(&self, function: F, args: A) -> Result<R::Value, TaskError>
        where
            F: Fn($(&mut $state,)? A) -> R + CapturesNothing,
            A: Message + Send,
            R: IntoOutcome,
        {
            self.task(function).apply(args)
        }

        /// Calls the function in a worker, without waiting for its result. Blocks while the pool is
        /// [full](crate::PoolBuilder::max_waiting).
        #[track_caller]
        pub fn apply_async<F, A, R>(&self, function: F, args: A) -> AsyncResult<R::Value>
        where
            F: Fn($(&mut $state,)? A) -> R + CapturesNothing,
            A: Message + Send,
            R: IntoOutcome,
        {
            self.task(function).apply_async(args)
        }

        /// Waits for [room](crate::PoolBuilder::max_waiting) without blocking a thread, calls the function in
        /// a worker, and returns the handle of the result: see [`Call::submit_async`].
        pub async fn submit_async<F, A, R>(&self, function: F, args: A) -> AsyncResult<R::Value>
        where
            F: Fn($(&mut $state,)? A) -> R + CapturesNothing,
            A: Message + Send,
            R: IntoOutcome,
        {
            self.task(function).submit_async(args).await
        }

        /// Calls a function for each item, and blocks until all are done. The results are in the order of the
        /// items.
        ///
        /// # Errors
        /// The error of the first failed item, in the order of the items. The other items are done
        /// nevertheless. For a result per item see [`MapResult::results`].
        #[track_caller]
        pub fn map<F, A, R>(
            &self,
            function: F,
            items: impl IntoIterator<Item = A>,
        ) -> Result<Vec<R::Value>, TaskError>
        where
            F: Fn($(&mut $state,)? A) -> R + CapturesNothing,
            A: Message + Send,
            R: IntoOutcome,
        {
            self.task(function).map(items)
        }

        /// Like [`map`](Self::map), without waiting for the results. Blocks while the pool is
        /// [full](crate::PoolBuilder::max_waiting).
        #[track_caller]
        pub fn map_async<F, A, R>(
            &self,
            function: F,
            items: impl IntoIterator<Item = A>,
        ) -> MapResult<R::Value>
        where
            F: Fn($(&mut $state,)? A) -> R + CapturesNothing,
            A: Message + Send,
            R: IntoOutcome,
        {
            self.task(function).map_async(items)
        }

        $(#[$imap])*
        pub fn imap<F, A, R, I>(&self, function: F, items: I) -> Imap<I::IntoIter, R::Value>
        where
            F: Fn($(&mut $state,)? A) -> R + CapturesNothing,
            A: Message + Send,
            R: IntoOutcome,
            I: IntoIterator<Item = A>,
        {
            self.task(function).imap(items)
        }

        /// Like [`imap`](Self::imap), with results in the order of completion.
        pub fn imap_unordered<F, A, R, I>(&self, function: F, items: I) -> Imap<I::IntoIter, R::Value>
        where
            F: Fn($(&mut $state,)? A) -> R + CapturesNothing,
            A: Message + Send,
            R: IntoOutcome,
            I: IntoIterator<Item = A>,
        {
            self.task(function).imap_unordered(items)
        }

        $(#[$stream])*
        pub fn stream<F, A, R>(&self, function: F) -> TaskStream<A, R::Value>
        where
            F: Fn($(&mut $state,)? A) -> R + CapturesNothing,
            A: Message + Send,
            R: IntoOutcome,
        {
            self.task(function).stream()
        }

        $(#[$starmap])*
        #[track_caller]
        pub fn starmap<F, A>(
            &self,
            function: F,
            items: impl IntoIterator<Item = A>,
        ) -> Result<Vec<<F::Output as IntoOutcome>::Value>, TaskError>
        where
            F: $tuple_fn<$($state,)? A>,
            A: Message + Send,
        {
            self.starmap_async(function, items).get()
        }

        /// Like [`starmap`](Self::starmap), without waiting for the results. Blocks while the pool is
        /// [full](crate::PoolBuilder::max_waiting).
        #[track_caller]
        pub fn starmap_async<F, A>(
            &self,
            function: F,
            items: impl IntoIterator<Item = A>,
        ) -> MapResult<<F::Output as IntoOutcome>::Value>
        where
            F: $tuple_fn<$($state,)? A>,
            A: Message + Send,
        {
            self.task(move |$($name: &mut $state,)? args: A| function.call($($name,)? args)).map_async(items)
        }
    };
}
pub(crate) use call_methods;
