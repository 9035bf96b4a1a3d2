//! Handles have no constructor that takes memory or numbers.
use mp::memory::Storage;
use mp::{FrozenTensor, SharedTensor, Tensor};

fn main() {
    let storage = Tensor::<u8>::zeros(&[1]).unwrap().storage().clone();
    let _ = Tensor::<u8>(storage.clone());
    let _ = FrozenTensor::<u8>(storage.clone());
    let _ = SharedTensor::<u8>(storage.clone());
    let _ = FrozenTensor::<u8>::from(storage.clone());
    let _ = FrozenTensor::<u8>::new(storage);
    let _ = Storage::new(7_u32);
}
