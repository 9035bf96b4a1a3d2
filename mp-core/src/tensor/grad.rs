//! What an automatic differentiation needs to know of a tensor, as metadata: nothing here computes gradients.

use super::dtype::DType;
use crate::error::{Error, Result};

/// Whether gradients are wanted, and whether the tensor is a result of something that has a gradient.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Grad {
    pub(crate) requires: bool,
    result: bool,
}

impl Grad {
    pub(crate) fn is_leaf(self) -> bool {
        !self.requires || !self.result
    }

    /// Of a view of it, or of what was computed of it.
    pub(crate) fn derived(self) -> Self {
        Self { result: self.requires, ..self }
    }

    pub(crate) fn set(&mut self, requires: bool, dtype: DType) -> Result<()> {
        if requires && !dtype.is_floating_point() && !dtype.is_complex() {
            return Err(Error::Shape(format!(
                "a tensor of {dtype} can't require gradients; floating-point and complex ones can"
            )));
        }
        if !self.is_leaf() {
            let why = "requires_grad can be changed of leaves only; call detach() first";
            return Err(Error::Shape(why.into()));
        }
        self.requires = requires;
        Ok(())
    }

    pub(crate) fn set_result(&mut self) {
        self.result = true;
    }

    /// # Errors
    /// When the tensor has a history, which can't travel.
    pub(crate) fn to_wire(self) -> Result<bool> {
        if self.is_leaf() { Ok(self.requires) } else { Err(Error::NonLeaf) }
    }

    pub(crate) fn from_wire(requires: bool) -> Self {
        Self { requires, result: false }
    }
}
