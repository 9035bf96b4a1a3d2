//! Objects of tasks and replies. Lists of numbers travel as arrays of 64-bit words, in a third of the time
//! that pickle needs, and a worker makes no list of them.

use std::cell::Cell;
use std::ops::Range;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyFloat, PyInt, PyList, PySlice};
use serde::{Deserialize, Serialize};

use crate::object::Object;
use crate::object::pickle::{bytes_to_message, dumps, loads, message_to_bytes};

/// Object of a task or reply.
#[derive(Serialize, Deserialize)]
pub(super) enum Payload {
    Object(Object),
    /// Bytes of a list of integers of 64 bits.
    Ints(Object),
    /// Bytes of a list of floats.
    Floats(Object),
}

thread_local! {
    /// Memory for the words of a list, which each thread keeps: new memory would be slower than the rest.
    // fork: an empty or unused copy.
    static WORDS: Cell<Vec<[u8; 8]>> = const { Cell::new(Vec::new()) };
}

/// Minimum length of a list that is checked for numbers.
const MIN_LIST_LEN: usize = 16;

fn int(item: &Bound<'_, PyAny>) -> Option<[u8; 8]> {
    item.cast_exact::<PyInt>().ok()?.extract::<i64>().ok().map(i64::to_le_bytes)
}

fn float(item: &Bound<'_, PyAny>) -> Option<[u8; 8]> {
    item.cast_exact::<PyFloat>().ok().map(|float| float.value().to_le_bytes())
}

impl Payload {
    /// Returns the payload of a part of a list that has only integers of 64 bits, or only floats. `None` for
    /// any other object.
    fn numbers(object: &Bound<'_, PyAny>, part: Option<Range<usize>>) -> PyResult<Option<Self>> {
        let Ok(list) = object.cast_exact::<PyList>() else { return Ok(None) };
        let part = part.unwrap_or(0..list.len());
        if part.len() < MIN_LIST_LEN {
            return Ok(None);
        }
        // Another thread may make the list shorter.
        let Ok(first) = list.get_item(part.start) else { return Ok(None) };
        let is_int = first.is_exact_instance_of::<PyInt>();
        let word: fn(&Bound<'_, PyAny>) -> Option<[u8; 8]> = if is_int { int } else { float };
        // Taken, since an item that is dropped may run code that uses a pool.
        let mut words = WORDS.take();
        words.clear();
        words.extend(part.clone().map_while(|index| word(&list.get_item(index).ok()?)));
        let bytes = (words.len() == part.len()).then(|| bytes_to_message(list.py(), words.as_flattened()));
        WORDS.set(words);
        Ok(bytes.transpose()?.map(if is_int { Self::Ints } else { Self::Floats }))
    }

    /// Returns the payload of an object or of a part of its items, pickled by `dumps` unless it is a list of
    /// numbers.
    pub(super) fn of<'py>(
        object: &Bound<'py, PyAny>,
        part: Option<Range<usize>>,
        dumps: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<Object>,
    ) -> PyResult<Self> {
        if let Some(numbers) = Self::numbers(object, part.clone())? {
            return Ok(numbers);
        }
        let Some(Range { start, end }) = part else { return dumps(object).map(Self::Object) };
        let slice = PySlice::new(object.py(), start.try_into()?, end.try_into()?, 1);
        dumps(&object.get_item(slice)?).map(Self::Object)
    }

    /// Returns the object.
    pub(super) fn read(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Self::Object(object) => loads(py, object),
            numbers => numbers.items(py)?.call_method0("tolist"),
        }
    }

    /// Stores the items into the list, from index `begin` on.
    pub(super) fn store(self, list: &Bound<'_, PyList>, begin: usize) -> PyResult<()> {
        let (is_int, bytes) = match self {
            Self::Object(object) => {
                let items = loads(list.py(), object)?;
                return list.set_slice(begin, begin + items.len()?, &items);
            }
            Self::Ints(bytes) => (true, bytes),
            Self::Floats(bytes) => (false, bytes),
        };
        let memory = bytes.memory.into_iter().next().and_then(|memory| memory.downcast::<u8>().ok());
        let bytes = memory.map_or(bytes.pickle, |memory| memory.to_vec());
        bytes.as_chunks().0.iter().zip(begin..).try_for_each(|(&word, index)| match is_int {
            true => list.set_item(index, i64::from_le_bytes(word)),
            false => list.set_item(index, f64::from_le_bytes(word)),
        })
    }

    /// Returns an iterable of the items.
    pub(super) fn items(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        static ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (kind, bytes) = match self {
            Self::Object(object) => return loads(py, object),
            Self::Ints(bytes) => ("q", bytes),
            Self::Floats(bytes) => ("d", bytes),
        };
        let array = ARRAY.import(py, "array", "array")?.call1((kind,))?;
        array.call_method1("frombytes", (message_to_bytes(py, bytes)?,))?;
        Ok(array)
    }
}

/// Results of a worker, in the form of the first one for as long as the others have the same.
pub(super) enum Results<'py> {
    Ints(Vec<[u8; 8]>),
    Floats(Vec<[u8; 8]>),
    Objects(Bound<'py, PyList>),
    /// Result of a task without items.
    One(Bound<'py, PyAny>),
}

impl<'py> Results<'py> {
    /// Creates the results of a chunk of this many items.
    pub(super) fn with_capacity(items: usize) -> Self {
        Self::Ints(Vec::with_capacity(items))
    }

    pub(super) fn push(&mut self, result: Bound<'py, PyAny>) -> PyResult<()> {
        match self {
            Self::Ints(words) => {
                if let Some(word) = int(&result) {
                    words.push(word);
                    return Ok(());
                }
                if words.is_empty()
                    && let Some(word) = float(&result)
                {
                    *self = Self::Floats(vec![word]);
                    return Ok(());
                }
            }
            Self::Floats(words) => {
                if let Some(word) = float(&result) {
                    words.push(word);
                    return Ok(());
                }
            }
            Self::Objects(_) | Self::One(_) => {}
        }
        self.objects(result.py())?.append(result)
    }

    /// Returns the list of the results, which is their form from now on.
    fn objects(&mut self, py: Python<'py>) -> PyResult<&Bound<'py, PyList>> {
        let list = match self {
            Self::Objects(list) => return Ok(list),
            Self::Ints(words) => PyList::new(py, words.iter().copied().map(i64::from_le_bytes))?,
            Self::Floats(words) => PyList::new(py, words.iter().copied().map(f64::from_le_bytes))?,
            Self::One(result) => PyList::new(py, [&*result])?,
        };
        *self = Self::Objects(list);
        self.objects(py)
    }

    /// Returns the payload, or the error with the object that can't be pickled.
    pub(super) fn payload(mut self, py: Python<'py>) -> Result<Payload, (PyErr, Bound<'py, PyAny>)> {
        let payload = match &self {
            Self::Ints(words) => bytes_to_message(py, words.as_flattened()).map(Payload::Ints),
            Self::Floats(words) => bytes_to_message(py, words.as_flattened()).map(Payload::Floats),
            Self::Objects(list) => dumps(list).map(Payload::Object),
            Self::One(object) => Payload::of(object, None, dumps),
        };
        payload.map_err(|error| match self {
            Self::One(object) => (error, object),
            _ => {
                let list = self.objects(py).map_or_else(|_| PyList::empty(py), Bound::clone);
                (error, list.into_any())
            }
        })
    }
}
