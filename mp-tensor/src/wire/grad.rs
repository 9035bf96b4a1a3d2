//! What an automatic differentiation needs to know of a tensor, as metadata: nothing here computes gradients.

use mp_core::DType;
use mp_core::{Error, Result};

/// Whether gradients are wanted, and whether the tensor is a result of something that has a gradient.
///
/// As the bits of a word, for the reason that [`Grant`](mp_core::words::Grant) has.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Grad(u64);

const REQUIRES: u64 = 1;
const RESULT: u64 = 2;
/// It is no gradient's, but of a tensor that was moved into a message: its mark there is above.
const LENT: u64 = 4;
const MARK: u32 = 3;

impl std::fmt::Debug for Grad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grad").field("requires", &self.requires()).field("is_leaf", &self.is_leaf()).finish()
    }
}

impl Grad {
    /// What is left in a tensor that was moved into a message under this mark: by that it finds what was its own, if the message
    /// stays.
    pub fn lent(mark: u64) -> Self {
        Self(mark << MARK | LENT)
    }

    /// Under which mark it was moved into a message.
    pub fn lent_as(self) -> Option<u64> {
        (self.0 & LENT != 0).then_some(self.0 >> MARK)
    }

    /// Whether gradients are wanted.
    pub fn requires(self) -> bool {
        self.0 & REQUIRES != 0
    }

    /// Whether it is no result of what has a gradient.
    pub fn is_leaf(self) -> bool {
        self.0 & (REQUIRES | RESULT) != REQUIRES | RESULT
    }

    /// Of a view of it, or of what was computed of it.
    pub fn derived(self) -> Self {
        if self.requires() { Self(REQUIRES | RESULT) } else { Self(0) }
    }

    /// Says whether gradients are wanted.
    ///
    /// # Errors
    /// For a type that has none, and for what is no leaf.
    pub fn set(&mut self, requires: bool, dtype: DType) -> Result<()> {
        if requires && !dtype.is_floating_point() && !dtype.is_complex() {
            return Err(Error::Unsupported(format!(
                "a tensor of {dtype} can't require gradients; floating-point and complex ones can"
            )));
        }
        if !self.is_leaf() {
            let why = "requires_grad can be changed of leaves only; call detach() first";
            return Err(Error::Unsupported(why.into()));
        }
        self.0 = self.0 & !REQUIRES | u64::from(requires);
        Ok(())
    }

    /// Says that it is a result of what has a gradient.
    pub fn set_result(&mut self) {
        self.0 |= RESULT;
    }

    /// As it leaves: whether gradients are wanted.
    ///
    /// # Errors
    /// When the tensor has a history, which can't travel.
    pub fn to_wire(self) -> Result<bool> {
        if self.is_leaf() { Ok(self.requires()) } else { Err(Error::NonLeaf) }
    }

    /// As bits, to be kept elsewhere for a while.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// What [`bits`](Self::bits) gave.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// As it arrives.
    pub fn from_wire(requires: bool) -> Self {
        Self(requires.into())
    }
}
