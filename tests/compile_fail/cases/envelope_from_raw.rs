//! Making an envelope or a ring from its number is `unsafe`: the caller must vouch for it.
use mp_core::words::{Holder, Owner};
use mp::Tensor;
use mp_core::Arena;

fn main() {
    let arena = Arena::current().unwrap();
    let _ = arena.envelope_from_raw(1, Owner { holder: Holder::Free, seq: 0 });
    let _ = arena.claim_envelope(1, 0);
    let tensor = Tensor::<u8>::zeros(&[4096]).unwrap();
    arena.become_ring(tensor.storage().hold());
    let _ = arena.words();
}
