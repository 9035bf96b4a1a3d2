//! Handles have no public fields.
use mp::memory::Storage;
use mp::{Arena, Queue};
use mp_core::{Envelope, Hold};

fn main() {
    let arena = Arena::current().unwrap();
    let hold = Hold { arena, block: 7 };
    let _ = Envelope { arena, index: 1, owner: 1 };
    let _ = Queue::<u8> { hold: hold.clone() };
    let _ = Storage { hold, base: std::ptr::NonNull::dangling(), bytes: 8 };
}
