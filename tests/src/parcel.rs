//! Message with a field of each kind.

use mp::{FrozenTensor, Tensor};

/// Message with a number, an exclusive tensor, a shared tensor, and bytes. The bytes are few, more than fit
/// into an envelope, or enough for their own block.
#[derive(Debug, mp::Message)]
pub struct Parcel {
    /// Number that determines all other contents.
    pub number: u64,
    own: Tensor<u64>,
    all: FrozenTensor<u64>,
    bytes: Vec<u8>,
}

impl Parcel {
    /// Creates a parcel with a shared tensor.
    ///
    /// # Errors
    /// Returns an error if there is no memory for the exclusive tensor.
    pub fn new(number: u64, all: &FrozenTensor<u64>) -> mp::AnyResult<Self> {
        let own = Tensor::full([100], number)?;
        let bytes = vec![number as u8; [10, 1000, 20_000][number as usize % 3]];
        Ok(Self { number, own, all: all.clone(), bytes })
    }

    /// Checks that the contents are consistent.
    ///
    /// # Panics
    /// If the contents are not consistent.
    pub fn check(&self) {
        assert!(self.own.as_slice().unwrap().iter().all(|&v| v == self.number), "torn: {:?}", self.own);
        assert!(self.bytes.iter().all(|&b| b == self.number as u8), "torn");
        assert_eq!(self.all.get(&[3]).unwrap(), 77);
    }
}
