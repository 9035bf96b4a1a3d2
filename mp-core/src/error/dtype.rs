//! Names of element types, and the error for an unknown name.

use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Error, Result};
use crate::words::DType;

impl FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = |d: &&DType| d.torch_name() == name || d.to_string() == name;
        Self::ALL.iter().find(known).copied().ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(|d| d.torch_name()).collect();
            Error::InvalidArgument(format!(
                "{name:?} is not an element type; the element types are {}",
                all.join(", ")
            ))
        })
    }
}

/// Serializes torch's name of the type.
impl Serialize for DType {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.serialize_str(self.torch_name())
    }
}

impl<'de> Deserialize<'de> for DType {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}
