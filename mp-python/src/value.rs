//! Conversion of non-array values between Python and serde.

use std::fmt;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Value of any serde type, as its format describes it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Python's `None`, or a unit.
    Nil,
    /// Boolean.
    Bool(bool),
    /// Negative integer.
    Int(i64),
    /// Integer that is not negative.
    Uint(u64),
    /// Floating-point number.
    Float(f64),
    /// Text.
    Str(String),
    /// Byte string.
    Bytes(Vec<u8>),
    /// Sequence.
    List(Vec<Value>),
    /// Map or struct.
    Map(Vec<(Value, Value)>),
}

impl Value {
    /// Converts to a Python object.
    ///
    /// # Errors
    /// `TypeError` for a map whose key can't be hashed.
    pub fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Value::Nil => py.None().into_bound(py),
            Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
            Value::Int(value) => value.into_pyobject(py)?.into_any(),
            Value::Uint(value) => value.into_pyobject(py)?.into_any(),
            Value::Float(value) => value.into_pyobject(py)?.into_any(),
            Value::Str(value) => value.into_pyobject(py)?.into_any(),
            Value::Bytes(value) => PyBytes::new(py, value).into_any(),
            Value::List(values) => {
                let list = PyList::empty(py);
                values.iter().try_for_each(|value| list.append(value.to_python(py)?))?;
                list.into_any()
            }
            Value::Map(entries) => {
                let dict = PyDict::new(py);
                for (key, value) in entries {
                    dict.set_item(key.to_python(py)?, value.to_python(py)?)?;
                }
                dict.into_any()
            }
        })
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Uint(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Str(value.to_owned()))
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Value, E> {
        Ok(Value::Bytes(value.to_vec()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nil)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Nil)
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<Value, D::Error> {
        Value::deserialize(value)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<Value, D::Error> {
        Value::deserialize(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element()? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Map(entries))
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}
