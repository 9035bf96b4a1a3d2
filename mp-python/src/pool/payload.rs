//! Objects of tasks and replies. Lists of numbers, and lists of tuples of numbers, are sent as arrays of
//! 64-bit words. This takes a third of the time that pickle needs. A worker reads the array without creating
//! a list.

use std::cell::Cell;
use std::ops::Range;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyFloat, PyInt, PyList, PySlice, PyTuple};
use serde::{Deserialize, Serialize};

use crate::object::Object;
use crate::object::pickle::{bytes_to_message, dumps, loads, message_to_bytes};

/// Object of a task or reply, in the form in which it is sent.
#[derive(Serialize, Deserialize)]
pub(super) enum Payload {
    Object(Object),
    /// List of numbers, or of tuples of numbers, as 64-bit words. `types` has the type of each position in a
    /// tuple.
    Numbers {
        types: Vec<Number>,
        are_tuples: bool,
        words: Object,
    },
}

/// Type of a number that is sent as one 64-bit word.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum Number {
    Int,
    Float,
}

thread_local! {
    /// Spare memory for the words of a list, kept by each thread, because allocating new memory would take
    /// longer than the conversion.
    // fork: an empty or unused copy.
    static WORDS: Cell<Vec<[u8; 8]>> = const { Cell::new(Vec::new()) };
}

/// Maximum number of words in the spare memory that a thread keeps.
const MAX_KEPT_WORDS: usize = 1 << 17;

fn keep(words: Vec<[u8; 8]>) {
    if words.capacity() <= MAX_KEPT_WORDS {
        WORDS.set(words);
    }
}

/// Maximum length of a tuple that is sent as words. pickle writes a long tuple only once, even if a list
/// contains it often.
const MAX_TUPLE_LEN: usize = 8;

/// Minimum length of a list that is checked for numbers.
const MIN_LIST_LEN: usize = 16;

fn int(item: &Bound<'_, PyAny>) -> Option<[u8; 8]> {
    item.cast_exact::<PyInt>().ok()?.extract::<i64>().ok().map(i64::to_le_bytes)
}

fn float(item: &Bound<'_, PyAny>) -> Option<[u8; 8]> {
    item.cast_exact::<PyFloat>().ok().map(|float| float.value().to_le_bytes())
}

impl Number {
    /// Returns the type of a number. For any other object returns the type of floats, for which
    /// [`word`](Self::word) returns `None`.
    fn of(object: &Bound<'_, PyAny>) -> Self {
        if object.is_exact_instance_of::<PyInt>() { Self::Int } else { Self::Float }
    }

    /// Returns the word of a number of this type, and `None` for other objects.
    fn word(self, object: &Bound<'_, PyAny>) -> Option<[u8; 8]> {
        match self {
            Self::Int => int(object),
            Self::Float => float(object),
        }
    }

    /// Returns an array of numbers of this type, made from these words.
    fn array<'py>(self, words: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        static ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let code = if matches!(self, Self::Int) { "q" } else { "d" };
        let array = ARRAY.import(words.py(), "array", "array")?.call1((code,))?;
        array.call_method1("frombytes", (words,))?;
        Ok(array)
    }
}

/// Appends the words of a tuple of numbers. Returns `None` for other objects.
fn push_tuple(words: &mut Vec<[u8; 8]>, types: &[Number], object: &Bound<'_, PyAny>) -> Option<()> {
    let tuple = object.cast_exact::<PyTuple>().ok().filter(|tuple| tuple.len() == types.len())?;
    for (number, item) in types.iter().zip(tuple.iter_borrowed()) {
        words.push(number.word(&item)?);
    }
    Some(())
}

impl Payload {
    /// Returns the payload of a list, or of a part of it, whose items are all 64-bit integers, all floats, or
    /// all tuples of these with the same types. Returns `None` for any other object.
    fn numbers(object: &Bound<'_, PyAny>, part: Option<Range<usize>>) -> PyResult<Option<Self>> {
        let Ok(list) = object.cast_exact::<PyList>() else { return Ok(None) };
        let part = part.unwrap_or(0..list.len());
        if part.len() < MIN_LIST_LEN {
            return Ok(None);
        }
        // Another thread may make the list shorter.
        let Ok(first) = list.get_item(part.start) else { return Ok(None) };
        let mut items = part.map(|index| list.get_item(index).ok());
        // The memory is taken out of the cell, because dropping an item may run code that uses a pool.
        let mut words = WORDS.take();
        words.clear();
        let (types, are_tuples) = match first.cast_exact::<PyTuple>() {
            Ok(tuple) if tuple.len() <= MAX_TUPLE_LEN => {
                (tuple.iter().map(|item| Number::of(&item)).collect(), true)
            }
            _ => (vec![Number::of(&first)], false),
        };
        let are_numbers = match (are_tuples, &types[..]) {
            (_, []) => false,
            (false, &[number, ..]) => {
                let word = |item: Bound<'_, PyAny>| number.word(&item);
                items.all(|item| item.and_then(word).map(|word| words.push(word)).is_some())
            }
            (true, types) => {
                let mut push = |item: Bound<'_, PyAny>| push_tuple(&mut words, types, &item);
                items.all(|item| item.and_then(&mut push).is_some())
            }
        };
        let bytes = are_numbers.then(|| bytes_to_message(list.py(), words.as_flattened()));
        keep(words);
        Ok(bytes.transpose()?.map(|words| Self::Numbers { types, are_tuples, words }))
    }

    /// Returns the payload of a list of numbers of one type.
    fn of_words(py: Python<'_>, number: Number, words: &[[u8; 8]]) -> PyResult<Self> {
        let words = bytes_to_message(py, words.as_flattened())?;
        Ok(Self::Numbers { types: vec![number], are_tuples: false, words })
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

    /// Converts the payload to a Python object.
    pub(super) fn read(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Self::Object(object) => loads(py, object),
            Self::Numbers { are_tuples: false, .. } => self.items(py)?.call_method0("tolist"),
            Self::Numbers { are_tuples: true, .. } => py.get_type::<PyList>().call1((self.items(py)?,)),
        }
    }

    /// Stores the items into the list, from index `begin` on.
    pub(super) fn store(self, list: &Bound<'_, PyList>, begin: usize) -> PyResult<()> {
        let items = self.read(list.py())?;
        list.set_slice(begin, begin + items.len()?, &items)
    }

    /// Returns an iterable of the items.
    pub(super) fn items(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        static ZIP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (types, are_tuples, words) = match self {
            Self::Object(object) => return loads(py, object),
            Self::Numbers { types, are_tuples, words } => (types, are_tuples, message_to_bytes(py, words)?),
        };
        if let (false, &[number]) = (are_tuples, &types[..]) {
            return number.array(&words);
        }
        let only = types.first().copied().filter(|first| types.iter().all(|number| number == first));
        let ints = only.unwrap_or(Number::Int).array(&words)?;
        let floats = if only.is_some() { ints.clone() } else { Number::Float.array(&words)? };
        let column = |(index, number): (usize, &Number)| {
            let array = if matches!(number, Number::Int) { &ints } else { &floats };
            array.get_item(PySlice::new(py, index.try_into()?, isize::MAX, types.len().try_into()?))
        };
        let columns = types.iter().enumerate().map(column).collect::<PyResult<Vec<_>>>()?;
        ZIP.import(py, "builtins", "zip")?.call1(PyTuple::new(py, columns)?)
    }
}

/// Results of a task. Numbers are collected as words as long as all results have the type of the first one.
pub(super) enum Results<'py> {
    Ints(Vec<[u8; 8]>),
    Floats(Vec<[u8; 8]>),
    Objects(Bound<'py, PyList>),
    /// Result of a task without items.
    One(Bound<'py, PyAny>),
}

impl<'py> Results<'py> {
    /// Creates an empty collection for the results of a chunk.
    pub(super) fn new() -> Self {
        let mut words = WORDS.take();
        words.clear();
        Self::Ints(words)
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
                    words.push(word);
                    *self = Self::Floats(std::mem::take(words));
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

    /// Converts the results to a list, and returns it.
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
            Self::Ints(words) => Payload::of_words(py, Number::Int, words),
            Self::Floats(words) => Payload::of_words(py, Number::Float, words),
            Self::Objects(list) => dumps(list).map(Payload::Object),
            Self::One(object) => Payload::of(object, None, dumps),
        };
        if let Self::Ints(words) | Self::Floats(words) = &mut self
            && payload.is_ok()
        {
            keep(std::mem::take(words));
        }
        payload.map_err(|error| match self {
            Self::One(object) => (error, object),
            _ => {
                let list = self.objects(py).map_or_else(|_| PyList::empty(py), Bound::clone);
                (error, list.into_any())
            }
        })
    }
}
