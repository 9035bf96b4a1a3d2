//! `put_many` and `get_many`.

use std::collections::VecDeque;
use std::time::Duration;

use mp::{GetError, PutError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::handles::{WaitResult, closed_error, get_error, put_error};
use super::shared::Shared;
use crate::error::{empty, full, shut_down};
use crate::object::Object;
use crate::object::pickle::{dumps, loads};
use crate::wait::Attempt;

/// Puts all objects, and returns their number. After a failure, the attribute `put` of the exception is the
/// number of objects that were put.
pub(super) fn put_many(
    py: Python<'_>,
    queue: &Shared,
    objs: &Bound<'_, PyAny>,
    limit: Option<Duration>,
    name: &str,
) -> PyResult<usize> {
    let open = queue.open(name)?;
    let objects: PyResult<VecDeque<Object>> = objs.try_iter()?.map(|obj| dumps(&obj?)).collect();
    let objects = objects?;
    let (all, mut put) = (objects.len(), 0);
    let count = &mut put;
    let ended = open.wait(py, limit, objects, move |messages, objects, time| {
        let result = if time.is_zero() {
            messages.try_put_many(objects)
        } else {
            messages.put_many_timeout(objects, time)
        };
        let Err(error) = result else { return Attempt::Done(Ok(())) };
        *count += error.put;
        match error.error {
            PutError::Full(object) => Attempt::Late(std::iter::once(object).chain(error.rest).collect()),
            error => Attempt::Done(Err(error)),
        }
    });
    let is_put = matches!(&ended, Ok(WaitResult::Done(Ok(()))));
    if let Some(joinable) = &open.joinable {
        joinable.tasks.add_put(if is_put { all } else { put });
    }
    let error = match ended {
        Ok(WaitResult::Done(Ok(()))) => return Ok(all),
        Ok(WaitResult::Done(Err(error))) => put_error(py, error),
        Ok(WaitResult::Late) => full(py),
        Ok(WaitResult::Closed) => closed_error(name),
        Err(error) => error,
    };
    error.value(py).setattr("put", put)?;
    Err(error)
}

/// Takes up to `max` objects. If an object can't be read, the attribute `objects` of the exception is the
/// list of the other objects.
pub(super) fn get_many<'py>(
    py: Python<'py>,
    queue: &Shared,
    max: usize,
    limit: Option<Duration>,
    name: &str,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    if max == 0 {
        return Ok(list);
    }
    let open = queue.open(name)?;
    if open.joinable.is_some() {
        // Each task is taken with its lease.
        list.append(queue.get(py, limit, false, name)?.0)?;
        while list.len() < max {
            match queue.get(py, Some(Duration::ZERO), false, name) {
                Ok((object, _)) => list.append(object)?,
                Err(_) => break,
            }
        }
        return Ok(list);
    }
    let taken = open.wait(py, limit, (), |messages, (), time| {
        let mut into = Vec::new();
        let result = if time.is_zero() {
            messages.try_get_many(&mut into, max)
        } else {
            messages.get_many_timeout(&mut into, max, time)
        };
        match result {
            Err(GetError::Empty) if into.is_empty() => Attempt::Late(()),
            Err(error) if into.is_empty() => Attempt::Done(Err(error)),
            _ => Attempt::Done(Ok(into)),
        }
    });
    open.update_ready();
    let objects = match taken? {
        WaitResult::Done(Ok(objects)) if objects.is_empty() => return Err(shut_down(py)),
        WaitResult::Done(Ok(objects)) => objects,
        WaitResult::Done(Err(error)) => return Err(get_error(py, error)),
        WaitResult::Late => return Err(empty(py)),
        WaitResult::Closed => return Err(closed_error(name)),
    };
    let mut failed = None;
    for object in objects {
        match loads(py, object) {
            Ok(object) => list.append(object)?,
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        None => Ok(list),
        Some(error) => {
            // An exception that can't have attributes is raised unchanged.
            _ = error.value(py).setattr("objects", list);
            Err(error)
        }
    }
}
