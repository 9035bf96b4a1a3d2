//! Invitations of other programs of the user into this program's memory, over a connection.

use std::time::Duration;

use mp::connection::InvitationState;
use mp::{Connection as End, GetError, PutError};
use mp_core::Message;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use super::{receive_error, send_error};
use crate::error::runtime;
use crate::object::Object;
use crate::object::pickle::{dumps, loads};
use crate::rust_loader::default_form;
use crate::typed::{Record, schema_argument, to_python, to_record, with_schema};
use crate::wait::{Attempt, limit, wait};

/// Invitation that was sent. Dropping this object does not withdraw the invitation.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct Invitation(mp::connection::Invitation);

#[pymethods]
impl Invitation {
    /// Waits until the other program accepts the invitation or it lapses. It lapses when that program exits
    /// or receives another message first. Returns ``True`` if the invitation was accepted. Raises
    /// ``TimeoutError`` if the time limit has expired.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let state = wait(py, limit(true, timeout)?, (), |(), time| match self.0.wait_timeout(time) {
            Ok(InvitationState::Open) => Attempt::Late(()),
            result => Attempt::Done(result),
        })?;
        match state {
            Ok(state) => Ok(state.map_err(runtime)? == InvitationState::Accepted),
            Err(()) => Err(PyTimeoutError::new_err("the invitation is not yet accepted")),
        }
    }

    fn __repr__(&self) -> String {
        format!("<multiproc.Invitation: {:?}>", self.0.state())
    }
}

fn send<T: Message>(end: &End, value: T) -> PyResult<Invitation> {
    let sent = end.invite(value).map_err(PutError::forget);
    Ok(Invitation(sent.map_err(send_error)?))
}

fn accept<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    receive: impl Fn(Duration) -> Result<T, GetError> + Sync,
) -> PyResult<T> {
    let accepted = wait(py, limit(true, timeout)?, (), |(), time| match receive(time) {
        Err(GetError::Empty) => Attempt::Late(()),
        result => Attempt::Done(result),
    })?;
    match accepted {
        Ok(result) => result.map_err(receive_error),
        Err(()) => Err(PyTimeoutError::new_err("no invitation has come")),
    }
}

/// Sends an invitation with an object, as a message of the schema or pickled.
pub(super) fn invite(
    end: &End,
    obj: &Bound<'_, PyAny>,
    schema: Option<&Bound<'_, PyAny>>,
) -> PyResult<Invitation> {
    let Some(schema) = schema else { return send(end, dumps(obj)?) };
    let schema = schema_argument(schema)?;
    let record = to_record(obj, &schema, "obj")?;
    with_schema(&schema, || send(end, record))
}

/// Accepts an invitation, and returns the object in it.
pub(super) fn accept_invitation<'py>(
    py: Python<'py>,
    end: &End,
    schema: Option<&Bound<'py, PyAny>>,
    timeout: Option<f64>,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(schema) = schema else {
        return loads(py, accept::<Object>(py, timeout, |time| end.accept_invitation_timeout(time))?);
    };
    let schema = schema_argument(schema)?;
    let receive = |time| with_schema(&schema, || end.accept_invitation_timeout(time));
    to_python(py, accept::<Record>(py, timeout, receive)?, default_form(py)?)
}
