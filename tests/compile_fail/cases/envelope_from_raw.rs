//! Making an envelope or a ring from its number is `unsafe`: the caller must guarantee that it is valid.
use mp::Tensor;
use mp_core::{Arena, Envelope};
use mp_core::words::{Holder, Owner};

fn main() {
    let arena = Arena::current().unwrap();
    let _ = Envelope::from_raw(arena, 1, Owner { holder: Holder::Free, seq: 0 });
    let _ = Envelope::take_over(arena, 1, 0);
    let tensor = Tensor::<u8>::zeros(&[4096]).unwrap();
    tensor.storage().hold().become_ring();
    let _ = arena.words();
}
