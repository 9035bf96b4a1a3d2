//! Gradient metadata of tensors, for libraries with automatic differentiation. This crate computes no
//! gradients.

use mp_core::DType;
use mp_core::{Error, Result};

/// Gradient metadata: whether the tensor requires gradients, and whether it is a leaf.
///
/// Stored as one word, because a struct that is written in parts and then moved as a whole stalls the
/// processor (see [`Grant`](mp_core::words::Grant)).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Grad(u64);

const REQUIRES: u64 = 1;
const RESULT: u64 = 2;
/// Flag of a tensor that was moved into a message. The higher bits are then its mark in the message, not
/// gradient metadata.
const LENT: u64 = 4;
const MARK: u32 = 3;

impl std::fmt::Debug for Grad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grad").field("requires", &self.requires()).field("is_leaf", &self.is_leaf()).finish()
    }
}

impl Grad {
    /// Returns the metadata of a tensor that was moved into a message under this mark. If the message is not
    /// sent, the tensor takes its memory back by the mark.
    pub fn lent(mark: u64) -> Self {
        Self(mark << MARK | LENT)
    }

    /// Returns the mark under which the tensor was moved into a message.
    pub fn lent_as(self) -> Option<u64> {
        (self.0 & LENT != 0).then_some(self.0 >> MARK)
    }

    /// Returns `true` if the tensor requires gradients.
    pub fn requires(self) -> bool {
        self.0 & REQUIRES != 0
    }

    /// Returns `true` if the tensor is a leaf: not computed from a tensor that requires gradients.
    pub fn is_leaf(self) -> bool {
        self.0 & (REQUIRES | RESULT) != REQUIRES | RESULT
    }

    /// Returns the metadata of a view of the tensor, or of a result computed from it.
    pub fn derived(self) -> Self {
        if self.requires() { Self(REQUIRES | RESULT) } else { Self(0) }
    }

    /// Sets whether the tensor requires gradients.
    ///
    /// # Errors
    /// For an element type without gradients, and for a non-leaf.
    pub fn set(&mut self, requires: bool, dtype: DType) -> Result<()> {
        if requires && !dtype.is_floating_point() && !dtype.is_complex() {
            return Err(Error::Unsupported(format!(
                "a tensor of {dtype} can't require gradients; floating-point and complex ones can"
            )));
        }
        if !self.is_leaf() {
            let why = "requires_grad can be changed on leaves only; call detach() first";
            return Err(Error::Unsupported(why.into()));
        }
        self.0 = self.0 & !REQUIRES | u64::from(requires);
        Ok(())
    }

    /// Marks the tensor as the result of a computation with gradients.
    pub fn set_result(&mut self) {
        self.0 |= RESULT;
    }

    /// Returns the flag to send: whether the tensor requires gradients.
    ///
    /// # Errors
    /// If the tensor is not a leaf, since its history can't be sent.
    pub fn to_wire(self) -> Result<bool> {
        if self.is_leaf() { Ok(self.requires()) } else { Err(Error::NonLeaf) }
    }

    /// Returns the bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Restores the value of [`bits`](Self::bits).
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Creates the metadata of a received tensor.
    pub fn from_wire(requires: bool) -> Self {
        Self(requires.into())
    }
}
