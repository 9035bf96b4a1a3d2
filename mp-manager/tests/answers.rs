//! Answers for which there is too little memory.

mod common;

use common::{made, manager};
use mp_core::Arena;
use mp_manager::CallError;
use mp_spawn::closure;

/// Memory limit, which is removed even if the test fails.
struct Budget(Arena);

impl Drop for Budget {
    fn drop(&mut self) {
        self.0.set_budget(u64::MAX);
    }
}

#[test]
fn result_beyond_memory_is_an_error_of_its_call() {
    let manager = manager();
    let object = made(&manager, closure!([] || 7_u8));
    let get = || object.call(closure!([] |object: &mut u8| *object)).unwrap();
    assert_eq!(get(), 7);
    let arena = Arena::current().unwrap();
    let _budget = Budget(arena);
    arena.set_budget(arena.memory_stats().reserved + (8 << 20));
    let error = object.call(closure!([] |object: &mut u8| vec![*object; 64 << 20])).unwrap_err();
    assert!(matches!(error, CallError::Value { .. }), "{error}");
    assert_eq!(get(), 7, "the object remains");
}
