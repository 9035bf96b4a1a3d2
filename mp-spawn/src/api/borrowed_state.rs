//! State that is lent to a closure during a call.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use mp_core::user_code::UserValue;

/// State that a [`StateClosure`](crate::StateClosure) gets for one call. It is passed by value, because
/// arguments have no lifetimes. If the closure panics, a state that was borrowed from a [`StateSlot`] returns
/// to that slot. Any other state is dropped, and a panic in its destructor is caught.
#[doc(hidden)]
pub struct BorrowedState<S> {
    state: Option<UserValue<Box<S>>>,
    home: Option<StateSlot<S>>,
}

/// Storage of a state while it is not lent.
#[doc(hidden)]
pub type StateSlot<S> = Rc<Cell<Option<Box<S>>>>;

impl<S> BorrowedState<S> {
    pub fn new(state: Box<S>) -> Self {
        BorrowedState { state: Some(UserValue::new(state)), home: None }
    }

    /// Borrows the state from its slot. The state returns to the slot when the result is dropped. Returns
    /// `None` while the state is lent.
    pub fn borrow_from(home: &StateSlot<S>) -> Option<Self> {
        let state = home.take()?;
        Some(BorrowedState { state: Some(UserValue::new(state)), home: Some(Rc::clone(home)) })
    }

    pub fn into_inner(mut self) -> Option<Box<S>> {
        self.state.take()?.into_inner()
    }
}

impl<S> fmt::Debug for BorrowedState<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedState").finish_non_exhaustive()
    }
}

impl<S> Drop for BorrowedState<S> {
    fn drop(&mut self) {
        if let (Some(home), Some(state)) = (&self.home, self.state.take()) {
            home.set(state.into_inner());
        }
    }
}

/// Calls a closure's body with the lent state.
#[doc(hidden)]
pub fn with_borrowed_state<S, R>(
    mut lent: BorrowedState<S>,
    body: impl FnOnce(&mut S) -> R,
) -> (BorrowedState<S>, R) {
    let state = lent.state.as_mut().and_then(UserValue::get_mut);
    let state = state.expect("a state that is lent is there until it is given back");
    let result = body(state);
    (lent, result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closure;

    #[test]
    fn closure_state_returns_to_its_slot_after_a_panic() {
        let home: StateSlot<Vec<u8>> = Rc::new(Cell::new(Some(Box::default())));
        let push = closure!([] |kept: &mut Vec<u8>, x: u8| {
            kept.push(x);
            assert!(x < 2, "too large");
        });
        let (lent, ()) = push.call((BorrowedState::borrow_from(&home).unwrap(), 1));
        assert!(BorrowedState::borrow_from(&home).is_none(), "the state is lent");
        drop(lent);
        let panics =
            mp_core::user_code::catch_panic(|| push.call((BorrowedState::borrow_from(&home).unwrap(), 2)).1);
        assert!(panics.is_none());
        assert_eq!(home.take(), Some(Box::new(vec![1, 2])));
    }
}
