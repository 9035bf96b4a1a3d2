//! A message with something of each kind.

use mp::{FrozenTensor, Tensor};

/// What travels: a number, a tensor with one owner, one that all holders read, and bytes that don't fit an
/// envelope.
#[derive(mp::Message)]
pub(crate) struct Parcel {
    pub(crate) number: u64,
    own: Tensor<u64>,
    all: FrozenTensor<u64>,
    bytes: Vec<u8>,
}

impl Parcel {
    pub(crate) fn new(number: u64, all: &FrozenTensor<u64>) -> mp::Result<Self> {
        let own = Tensor::full(&[100], number)?;
        // Every other one spills.
        let bytes = vec![number as u8; if number.is_multiple_of(2) { 10 } else { 1000 }];
        Ok(Self { number, own, all: all.clone(), bytes })
    }

    pub(crate) fn check(&self) {
        assert!(self.own.as_slice().unwrap().iter().all(|&v| v == self.number), "torn: {:?}", self.own);
        assert!(self.bytes.iter().all(|&b| b == self.number as u8), "torn");
        assert_eq!(self.all.get(&[3]).unwrap(), 77);
    }
}
