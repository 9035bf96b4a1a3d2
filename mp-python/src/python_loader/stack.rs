//! Arrays that are made in shared memory: empty arrays, and stacks of samples.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::error::runtime;
use crate::memory::Memory;
use crate::object::array::{rebuild, source_of_ndarray};
use crate::object::torch::{element_of, source_of_tensor};
use crate::object::view::{ElementType, Kind, Source, View, stack};

/// Returns the elements of a tensor or array, or `None` for other objects and for tensors with gradients.
fn source_of(sample: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
    let of = sample.get_type();
    if of.name()? == "ndarray" {
        return source_of_ndarray(sample);
    }
    if sample.getattr(pyo3::intern!(sample.py(), "requires_grad"))?.is_truthy()? {
        return Ok(None);
    }
    source_of_tensor(sample, Kind::Torch)
}

/// Copies tensors of torch or arrays of numpy, all of one shape and type, into the rows of a new tensor or
/// array in shared memory. Returns `None` if they are not in this process's memory or have several types.
///
/// # Errors
/// `RuntimeError` for samples of several shapes, `MemoryError` if there is not enough shared memory.
#[pyfunction]
#[pyo3(name = "stack")]
pub fn stack_samples<'py>(samples: &Bound<'py, PyList>, torch: bool) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = samples.py();
    let mut sources = Vec::with_capacity(samples.len());
    for sample in samples {
        let Some(source) = source_of(&sample)? else { return Ok(None) };
        sources.push(source);
    }
    let kind = if torch { Kind::Torch } else { Kind::Numpy };
    let Some((view, memory)) = stack(py, &sources, kind)? else { return Ok(None) };
    rebuild(py, &view, memory).map(Some)
}

/// Returns a tensor of torch, or an array of numpy, in new shared memory. Its contents are unspecified.
///
/// # Errors
/// `TypeError` for an unknown type of elements, `ValueError` for a negative or too large shape,
/// `MemoryError` if there is not enough shared memory.
#[pyfunction]
#[pyo3(name = "allocate")]
pub fn allocate<'py>(
    py: Python<'py>,
    shape: Vec<i64>,
    dtype: &str,
    torch: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let element: ElementType = element_of(dtype)
        .ok_or_else(|| PyTypeError::new_err(format!("shared memory has no elements of type {dtype}")))?;
    let size = shape.iter().try_fold(element.size(), |all, &n| all.checked_mul(usize::try_from(n).ok()?));
    let size = size.ok_or_else(|| PyValueError::new_err(format!("invalid shape {shape:?}")))?;
    let memory = Memory::alloc(size).map_err(runtime)?;
    let kind = if torch { Kind::Torch } else { Kind::Numpy };
    rebuild(py, &View { kind, element, memory: 0, offset: 0, shape, strides: Vec::new() }, memory)
}
