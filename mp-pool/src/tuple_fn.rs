//! How several arguments are passed to a task's function.

use mp_core::message::IntoOutcome;
use mp_spawn::CapturesNothing;

/// A function of several arguments, which are one tuple to the pool: see [`Pool::starmap`](crate::Pool::starmap).
pub trait TupleFn<Args>: CapturesNothing {
    /// What it returns.
    type Output: IntoOutcome;

    /// Calls it.
    fn call(self, args: Args) -> Self::Output;
}

/// A function of a worker's state and several arguments, which are one tuple to the pool: see
/// [`StatePool::starmap`](crate::StatePool::starmap).
pub trait TupleStateFn<S, Args>: CapturesNothing {
    /// What it returns.
    type Output: IntoOutcome;

    /// Calls it.
    fn call(self, state: &mut S, args: Args) -> Self::Output;
}

macro_rules! star {
    ($($($arg:ident)+;)*) => {$(
        impl<Func, Ret, $($arg),+> TupleFn<($($arg,)+)> for Func
        where
            Func: Fn($($arg),+) -> Ret + CapturesNothing,
            Ret: IntoOutcome,
        {
            type Output = Ret;

            #[allow(non_snake_case)]
            fn call(self, ($($arg,)+): ($($arg,)+)) -> Ret {
                self($($arg),+)
            }
        }

        impl<Func, State, Ret, $($arg),+> TupleStateFn<State, ($($arg,)+)> for Func
        where
            Func: Fn(&mut State, $($arg),+) -> Ret + CapturesNothing,
            Ret: IntoOutcome,
        {
            type Output = Ret;

            #[allow(non_snake_case)]
            fn call(self, state: &mut State, ($($arg,)+): ($($arg,)+)) -> Ret {
                self(state, $($arg),+)
            }
        }
    )*};
}

star! { A; A B; A B C; A B C D; A B C D E; A B C D E F; }
