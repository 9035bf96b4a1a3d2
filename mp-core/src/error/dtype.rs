//! The names of element types, and the error for one that is none.

use std::str::FromStr;

use super::{Error, Result};
use crate::words::DType;

impl FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = |d: &&DType| d.torch_name() == name || d.to_string() == name;
        Self::ALL.iter().find(known).copied().ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(|d| d.torch_name()).collect();
            Error::InvalidArgument(format!("{name:?} is no element type; there are {}", all.join(", ")))
        })
    }
}
