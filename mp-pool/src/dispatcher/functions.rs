//! Functions of the pool's tasks, which are sent to each worker once.

use std::any::TypeId;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use mp_core::message::IntoOutcome;
use mp_core::user_code::UserValue;
use mp_reduce::Message;
use mp_spawn::{CapturesNothing, Closure, StateClosure};

use crate::dispatcher::shared::PoolShared;
use crate::tasks::call_state::TaskFunction;
use crate::worker::runner::Runner;

impl PoolShared {
    fn code(self: &Arc<Self>, runner: Closure<(), Runner>) -> Arc<TaskFunction> {
        let pool: Weak<Self> = Arc::downgrade(self);
        Arc::new(TaskFunction { number: self.next_id(), runner: UserValue::new(runner), pool })
    }

    /// Returns the code of a function, which is sent to each worker once.
    pub(crate) fn function<F, A, R>(self: &Arc<Self>, function: F) -> Arc<TaskFunction>
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Message,
        R: IntoOutcome,
    {
        let key = TypeId::of::<PhantomData<fn(F, A) -> R>>();
        self.function_code(key, || Closure::from_parts((), move |(): &(), (): ()| Runner::new(function)))
    }

    /// Returns the code of a function that receives the worker's state.
    pub(crate) fn function_with_state<S, F, A, R>(self: &Arc<Self>, function: F) -> Arc<TaskFunction>
    where
        S: 'static,
        F: Fn(&mut S, A) -> R + CapturesNothing,
        A: Message,
        R: IntoOutcome,
    {
        let key = TypeId::of::<PhantomData<fn(F, PhantomData<S>, A) -> R>>();
        self.function_code(key, || {
            Closure::from_parts((), move |(): &(), (): ()| Runner::with_state(function))
        })
    }

    fn function_code(
        self: &Arc<Self>,
        key: TypeId,
        runner: impl FnOnce() -> Closure<(), Runner>,
    ) -> Arc<TaskFunction> {
        let code = || self.code(runner());
        if self.check_owner().is_err() {
            return code();
        }
        let mut functions = self.functions.lock();
        let code = functions.entry(key).or_insert_with(code);
        Arc::clone(code)
    }

    /// Creates the code of a closure. Workers forget it when its tasks are done.
    pub(crate) fn closure<A: Message, R: IntoOutcome>(
        self: &Arc<Self>,
        closure: Closure<A, R>,
    ) -> Arc<TaskFunction> {
        self.code(Closure::from_parts((closure, ()), |(closure, ()): &(Closure<A, R>, ()), (): ()| {
            let closure = closure.clone();
            Runner::new(move |args| closure.call(args))
        }))
    }

    /// Creates the code of a closure that receives the worker's state.
    pub(crate) fn closure_with_state<S, A, R>(
        self: &Arc<Self>,
        closure: StateClosure<S, A, R>,
    ) -> Arc<TaskFunction>
    where
        S: 'static,
        A: Message,
        R: IntoOutcome,
    {
        self.code(Closure::from_parts(
            (closure, ()),
            |(closure, ()): &(StateClosure<S, A, R>, ()), (): ()| Runner::with_state_closure(closure.clone()),
        ))
    }

    /// Takes the functions without users.
    pub(crate) fn take_unused(&self) -> Vec<u64> {
        std::mem::take(&mut *self.unused.lock())
    }
}
