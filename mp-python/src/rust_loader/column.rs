//! Columns of a batch as Python objects.

use std::sync::Arc;

use mp::data::ColumnData;
use mp::message::Codec;
use mp::tensor::dispatch;
use mp_tensor::{AnyTensor, DType, Element, Tensor};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::settings::Form;
use crate::error;
use crate::memory::Memory;
use crate::object::array;
use crate::object::view::{ElementType, Kind, View};
use crate::value::Value;

/// Converts a column to a Python object. Arrays use the memory of the column, without a copy.
pub(super) fn to_python(
    py: Python<'_>,
    column: ColumnData,
    form: Form,
    pin: bool,
) -> PyResult<Bound<'_, PyAny>> {
    Ok(match column {
        ColumnData::Numbers(tensor) => {
            let array = tensor_to_python(py, tensor, form)?;
            if pin && form == Form::Torch { array.call_method0(intern!(py, "pin_memory"))? } else { array }
        }
        ColumnData::Ragged { values, offsets } => {
            let values = to_python(py, ColumnData::Numbers(values), form, pin)?;
            let offsets = to_python(py, ColumnData::Numbers(offsets.into()), form, pin)?;
            PyTuple::new(py, [values, offsets])?.into_any()
        }
        ColumnData::Strings { text, offsets } => {
            let failed = |error: &dyn std::fmt::Display| PyRuntimeError::new_err(error.to_string());
            let text = text.as_slice().map_err(|error| failed(&error))?;
            let list = PyList::empty(py);
            for row in offsets.as_slice().map_err(|error| failed(&error))?.windows(2) {
                let row = text.get(row[0] as usize..row[1] as usize).unwrap_or_default();
                list.append(std::str::from_utf8(row).map_err(|error| failed(&error))?)?;
            }
            list.into_any()
        }
        ColumnData::Objects(objects) => {
            let list = PyList::empty(py);
            for bytes in objects {
                let mut incoming = mp::message::Incoming::from_plain(bytes);
                let value: Value = mp_reduce::MessagePack::read(&mut incoming).map_err(error::runtime)?;
                list.append(value.to_python(py)?)?;
            }
            list.into_any()
        }
        ColumnData::Tuple(columns) => {
            let columns: PyResult<Vec<_>> =
                columns.into_iter().map(|column| to_python(py, column, form, pin)).collect();
            PyTuple::new(py, columns?)?.into_any()
        }
        ColumnData::Struct(columns) => {
            let dict = PyDict::new(py);
            for (name, column) in columns {
                dict.set_item(name, to_python(py, column, form, pin)?)?;
            }
            dict.into_any()
        }
        other => {
            return Err(PyTypeError::new_err(format!("Python has no type for column {other:?}")));
        }
    })
}

/// Converts an exclusive tensor to a Python array or tensor that uses the same memory.
///
/// # Errors
/// `RuntimeError` for an element type that DLPack or numpy has no name for.
pub fn tensor_to_python(py: Python<'_>, tensor: AnyTensor, form: Form) -> PyResult<Bound<'_, PyAny>> {
    let strides = if tensor.is_contiguous() { &[][..] } else { tensor.strides() };
    let view = view_of(tensor.dtype(), tensor.shape(), strides, tensor.offset(), form);
    let memory = dispatch!(tensor.dtype(), T => adopt::<T>(tensor));
    array::rebuild(py, &view, memory.map_err(error::runtime)?)
}

/// Returns the view of a tensor in its storage.
pub fn view_of(dtype: DType, shape: &[usize], strides: &[isize], offset: usize, form: Form) -> View {
    View {
        kind: if form == Form::Torch { Kind::Torch } else { Kind::Numpy },
        element: ElementType(dtype.dlpack_code(), 8 * dtype.size() as u8),
        memory: 0,
        offset: (offset * dtype.size()) as u64,
        shape: shape.iter().map(|&n| n as i64).collect(),
        strides: strides.iter().map(|&stride| (stride * dtype.size() as isize) as i64).collect(),
    }
}

fn adopt<T: Element>(tensor: AnyTensor) -> mp_core::Result<Arc<Memory>> {
    let tensor: Tensor<T> = tensor.downcast().map_err(mp_core::Error::from)?;
    Ok(Memory::adopt_exclusive(tensor))
}
