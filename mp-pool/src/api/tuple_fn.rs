//! Functions of several arguments as tasks.

use mp_core::message::IntoOutcome;
use mp_spawn::CapturesNothing;

/// Function of several arguments, which a task passes as one tuple. See
/// [`Pool::starmap`](crate::Pool::starmap).
pub trait TupleFn<Args>: CapturesNothing {
    /// Return type of the function.
    type Output: IntoOutcome;

    /// Calls the function.
    fn call(self, args: Args) -> Self::Output;
}

/// Function of a worker's state and several arguments, which a task passes as one tuple. See
/// [`StatePool::starmap`](crate::StatePool::starmap).
pub trait TupleStateFn<S, Args>: CapturesNothing {
    /// Return type of the function.
    type Output: IntoOutcome;

    /// Calls the function.
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
