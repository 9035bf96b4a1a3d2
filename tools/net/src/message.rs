//! Numbered messages. The bytes of a message follow from its number.

use std::error::Error;

use mp_reduce::Bundle;
use mp_tensor::Tensor;

/// Number and bytes of a message.
pub(crate) type Numbered = Bundle<(u64, Tensor<u8>)>;

/// Number and bytes of a message that can be leased. It has no tensor, because exclusive tensors can't be
/// leased.
pub(crate) type Job = (u64, Vec<u8>);

/// Returns the bytes of message `number` from position `8 * index`.
fn word(number: u64, index: usize) -> [u8; 8] {
    let mixed = (number << 32 ^ index as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).to_le_bytes()
}

fn fill(number: u64, bytes: &mut [u8]) {
    for (index, piece) in bytes.chunks_mut(8).enumerate() {
        piece.copy_from_slice(&word(number, index)[..piece.len()]);
    }
}

/// Creates a message of `size` bytes.
pub(crate) fn numbered(number: u64, size: usize) -> Result<Numbered, Box<dyn Error + Send + Sync>> {
    let mut tensor = Tensor::<u8>::zeros([size])?;
    fill(number, tensor.as_mut_slice()?);
    Ok(Bundle((number, tensor)))
}

/// Creates a message of `size` bytes that can be leased.
pub(crate) fn job(number: u64, size: usize) -> Job {
    let mut bytes = vec![0; size];
    fill(number, &mut bytes);
    (number, bytes)
}

/// Returns the number of a message, or an error if a byte or the size is wrong.
pub(crate) fn check(message: &Numbered, size: usize) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let Bundle((number, tensor)) = message;
    check_bytes(*number, tensor.as_slice()?, size)
}

/// Returns the number of a message with these bytes, or an error if a byte or the size is wrong.
pub(crate) fn check_bytes(
    number: u64,
    bytes: &[u8],
    size: usize,
) -> Result<u64, Box<dyn Error + Send + Sync>> {
    if bytes.len() != size {
        return Err(format!("message {number} has {} bytes, not {size}", bytes.len()).into());
    }
    let wrong = |(index, piece): (usize, &[u8])| piece != &word(number, index)[..piece.len()];
    match bytes.chunks(8).enumerate().position(wrong) {
        Some(index) => Err(format!("message {number} has wrong bytes at {}", index * 8).into()),
        None => Ok(number),
    }
}
