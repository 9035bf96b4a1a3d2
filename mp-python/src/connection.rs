//! Connections: ends of pipes, and of sockets to other programs.
//!
//! A pipe transfers [`Object`]s, as queues do. Bytes are sent as an `Object`, too. So `recv_bytes` reads
//! messages of `send`, and `recv` reads messages of `send_bytes`, as in CPython. A socket transfers bytes.
//! The program at the other end is not trusted, so pickled objects are sent over a socket only if the user
//! allows it.

mod invitation;

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use mp::connection::{Address, ConnectError, Listener as Sockets, SocketOptions};
use mp::{Connection as End, GetError, PutError};
use mp_core::mutex::Mutex;
use pyo3::exceptions::{
    PyBrokenPipeError, PyEOFError, PyOSError, PyOverflowError, PyPermissionError, PyRuntimeError,
    PyTimeoutError, PyTypeError, PyValueError,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyMemoryView, PyTuple};

use crate::error::runtime;
use crate::names::{give, shown};
use crate::object::Object;
use crate::object::array::Buffer;
use crate::object::handle::Handle;
use crate::object::pickle::{bytes_to_message, dumps, loads, message_to_bytes, reduce_handle};
use crate::wait::{Attempt, limit, on_thread, wait};
pub use invitation::Invitation;

/// End of a pipe, or of a socket to another program.
#[pyclass(frozen, module = "multiproc._multiproc", subclass)]
pub struct Connection {
    /// `None` after `close`.
    end: Mutex<Option<Arc<End>>>,
    /// `None` for a pipe. For a socket, `true` if objects are sent and received, and `false` if only bytes
    /// are.
    socket: Option<bool>,
    #[pyo3(get)]
    readable: bool,
    #[pyo3(get)]
    writable: bool,
}

/// Received message.
enum Arrival {
    Object(Object),
    Bytes(Vec<u8>),
}

impl Connection {
    /// Returns the Python object for one end of a pipe or socket. `socket` is `None` for a pipe. For a
    /// socket, `true` allows objects.
    pub(crate) fn of(end: End, socket: Option<bool>) -> Self {
        let (readable, writable) = (end.readable(), end.writable());
        Self { end: Mutex::new(Some(Arc::new(end))), socket, readable, writable }
    }

    fn open(&self) -> PyResult<Arc<End>> {
        self.end.lock().clone().ok_or_else(|| PyOSError::new_err("handle is closed"))
    }

    fn writer(&self) -> PyResult<Arc<End>> {
        let end = self.open()?;
        if self.writable { Ok(end) } else { Err(PyOSError::new_err("connection is read-only")) }
    }

    fn reader(&self) -> PyResult<Arc<End>> {
        let end = self.open()?;
        if self.readable { Ok(end) } else { Err(PyOSError::new_err("connection is write-only")) }
    }

    fn check_pickle(&self) -> PyResult<()> {
        match self.socket {
            Some(false) => Err(PyPermissionError::new_err(
                "objects are not sent to or received from other programs: reading a pickled object runs code \
                 that the other side chooses. Use send_bytes and recv_bytes, or allow_pickle=True if you \
                 trust it",
            )),
            Some(true) | None => Ok(()),
        }
    }

    fn send_to_socket(&self, py: Python<'_>, end: &End, bytes: &[u8]) -> PyResult<()> {
        let sent = wait(py, None, (), |(), time| {
            let result =
                if time.is_zero() { end.try_send_bytes(bytes) } else { end.send_bytes_timeout(bytes, time) };
            match result {
                Err(PutError::Full(_)) => Attempt::Late(()),
                result => Attempt::Done(result),
            }
        })?;
        match sent {
            Ok(result) => result.map_err(|error| send_error(error.forget())),
            Err(()) => Ok(()),
        }
    }

    fn send_message(&self, end: &End, message: Object) -> PyResult<()> {
        // A pipe always has room.
        end.send(message).map_err(|error| send_error(error.forget()))
    }

    fn receive(&self, py: Python<'_>) -> PyResult<Arrival> {
        let end = self.reader()?;
        let is_socket = self.socket.is_some();
        let received = wait(py, None, (), |(), time| {
            let result = match (is_socket, time.is_zero()) {
                (true, true) => end.try_recv_bytes().map(Arrival::Bytes),
                (true, false) => end.recv_bytes_timeout(time).map(Arrival::Bytes),
                (false, true) => end.try_recv().map(Arrival::Object),
                (false, false) => end.recv_timeout(time).map(Arrival::Object),
            };
            match result {
                Err(GetError::Empty) => Attempt::Late(()),
                result => Attempt::Done(result),
            }
        })?;
        match received {
            Ok(result) => result.map_err(receive_error),
            Err(()) => Err(PyEOFError::new_err(())),
        }
    }

    /// Receives a message, and returns its bytes as an object that supports the buffer protocol.
    fn receive_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.receive(py)? {
            Arrival::Object(object) => message_to_bytes(py, object),
            Arrival::Bytes(bytes) => Ok(PyBytes::new(py, &bytes).into_any()),
        }
    }
}

fn send_error(error: PutError<()>) -> PyErr {
    if error.is_disconnected() { PyBrokenPipeError::new_err(error.to_string()) } else { runtime(error) }
}

fn receive_error(error: GetError) -> PyErr {
    if error.is_disconnected() { PyEOFError::new_err(error.to_string()) } else { runtime(error) }
}

/// Returns the bytes of an object that supports the buffer protocol.
fn to_bytes<'py>(object: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let py = object.py();
    match object.cast_into::<PyBytes>() {
        Ok(bytes) => Ok(bytes),
        // The bytes are copied once, out of shared memory.
        Err(error) => Ok(PyBytes::new(py, Buffer::bytes_of(&error.into_inner())?.bytes())),
    }
}

#[pymethods]
impl Connection {
    /// Sends an object.
    fn send(&self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        let end = self.writer()?;
        self.check_pickle()?;
        if self.socket.is_none() {
            return self.send_message(&end, dumps(obj)?);
        }
        let py = obj.py();
        let bytes = py.import(intern!(py, "pickle"))?.getattr(intern!(py, "dumps"))?.call1((obj, 5))?;
        self.send_to_socket(py, &end, bytes.cast::<PyBytes>()?.as_bytes())
    }

    /// Receives an object. Raises ``EOFError`` if nothing is left and the other end is closed.
    fn recv<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.open()?;
        self.check_pickle()?;
        match self.receive(py)? {
            Arrival::Object(object) => loads(py, object),
            Arrival::Bytes(pickle) => loads(py, Object { pickle, ..Object::default() }),
        }
    }

    /// Sends the bytes of a bytes-like object as one message.
    #[pyo3(signature = (buf, offset = 0, size = None))]
    fn send_bytes(&self, buf: &Bound<'_, PyAny>, offset: isize, size: Option<isize>) -> PyResult<()> {
        let (py, end) = (buf.py(), self.writer()?);
        let buffer = Buffer::bytes_of(buf)?;
        let all = buffer.bytes();
        let begin = usize::try_from(offset).map_err(|_| PyValueError::new_err("offset is negative"))?;
        let rest =
            all.get(begin..).ok_or_else(|| PyValueError::new_err("buffer length is less than offset"))?;
        let size = match size {
            None => rest.len(),
            Some(size) => usize::try_from(size).map_err(|_| PyValueError::new_err("size is negative"))?,
        };
        let bytes = rest
            .get(..size)
            .ok_or_else(|| PyValueError::new_err("buffer length is less than offset + size"))?;
        if self.socket.is_some() {
            // The bytes are copied unless they are immutable, because another thread may change them during
            // the wait.
            let copy = (!buf.is_instance_of::<PyBytes>()).then(|| bytes.to_vec());
            return self.send_to_socket(py, &end, copy.as_deref().unwrap_or(bytes));
        }
        self.send_message(&end, bytes_to_message(py, bytes)?)
    }

    /// Receives a message as bytes. A message of more than ``maxlength`` bytes raises ``OSError``. After
    /// that, this end can't receive any more.
    #[pyo3(signature = (maxlength = None))]
    fn recv_bytes<'py>(&self, py: Python<'py>, maxlength: Option<isize>) -> PyResult<Bound<'py, PyBytes>> {
        self.open()?;
        let most = match maxlength {
            Some(length) => {
                usize::try_from(length).map_err(|_| PyValueError::new_err("negative maxlength"))?
            }
            None => usize::MAX,
        };
        let bytes = self.receive_bytes(py)?;
        if bytes.len()? > most {
            self.close();
            return Err(PyOSError::new_err("bad message length"));
        }
        to_bytes(bytes)
    }

    /// Receives a message into a writable object, and returns the number of its bytes. Raises
    /// ``BufferTooShort`` with the message if there is not enough room.
    #[pyo3(signature = (buf, offset = 0))]
    fn recv_bytes_into(&self, py: Python<'_>, buf: &Bound<'_, PyAny>, offset: isize) -> PyResult<usize> {
        static TOO_SHORT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        self.open()?;
        let view = PyMemoryView::from(buf)?;
        let view = view.call_method1(intern!(py, "cast"), ("B",))?;
        let room = view.len()?;
        let begin = usize::try_from(offset).map_err(|_| PyValueError::new_err("negative offset"))?;
        if begin > room {
            return Err(PyValueError::new_err("offset too large"));
        }
        let bytes = self.receive_bytes(py)?;
        let len = bytes.len()?;
        if len > room - begin {
            let class = TOO_SHORT.import(py, "multiprocessing", "BufferTooShort")?;
            return Err(PyErr::from_value(class.call1((to_bytes(bytes)?,))?));
        }
        view.set_item(pyo3::types::PySlice::new(py, begin as isize, (begin + len) as isize, 1), bytes)?;
        Ok(len)
    }

    /// Returns ``True`` if a message can be received, or the other end is closed. Waits for at most
    /// ``timeout`` seconds, or without a limit for ``None``.
    #[pyo3(signature = (timeout = Some(0.0)), text_signature = "($self, timeout=0.0)")]
    fn poll(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let end = self.reader()?;
        let found = wait(py, limit(true, timeout)?, (), |(), time| match end.poll(time) {
            Ok(false) => Attempt::Late(()),
            result => Attempt::Done(result),
        })?;
        found.unwrap_or(Ok(false)).map_err(runtime)
    }

    /// Returns a descriptor that is readable when ``poll`` would return ``True``.
    ///
    /// Use it for waiting only: the descriptor of a pipe carries no data.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.reader()?.as_fd().map_err(runtime)?.as_raw_fd())
    }

    /// Invites the program at the other end of an AF_UNIX socket into this program's memory, and sends it an
    /// object. Queues, locks and arrays in the object are shared, as between processes of one program. The
    /// other program calls ``accept_invitation``. After that, it can write all memory of this program: invite
    /// only programs that you trust like a child.
    ///
    /// With ``schema``, a text or a class with the decorator ``message``, the object is such a message, and
    /// the other side may be a program in Rust (``Connection::accept_invitation``). Without it, the object is
    /// pickled, which needs ``allow_pickle=True`` on both sides.
    #[pyo3(signature = (obj, schema = None))]
    fn invite(&self, obj: &Bound<'_, PyAny>, schema: Option<&Bound<'_, PyAny>>) -> PyResult<Invitation> {
        let end = self.writer()?;
        if schema.is_none() {
            self.check_pickle()?;
        }
        invitation::invite(&end, obj, schema)
    }

    /// Accepts the invitation of the program at the other end, and returns the object in it. After that, this
    /// process shares that program's memory. Call this method before the process creates shared memory of its
    /// own, for example a queue. The invitation must be the next message.
    #[pyo3(signature = (schema = None, timeout = None))]
    fn accept_invitation<'py>(
        &self,
        py: Python<'py>,
        schema: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let end = self.reader()?;
        if schema.is_none() {
            self.check_pickle()?;
        }
        invitation::accept_invitation(py, &end, schema, timeout)
    }

    /// Closes this end in this process.
    fn close(&self) {
        let end = self.end.lock().take();
        drop(end);
    }

    /// ``True`` after ``close``.
    #[getter]
    fn closed(&self) -> bool {
        self.end.lock().is_none()
    }

    fn _give_name(&self, name: &str) -> PyResult<()> {
        let end = self.open()?;
        if self.socket.is_none() {
            return give(|| (*end).clone().named(name));
        }
        // A socket has no shared memory, so no check of the process is needed.
        drop((*end).clone().named(name));
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_arguments))]
    fn __exit__(&self, _arguments: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let end = self.open()?;
        if self.socket.is_some() {
            return Err(PyTypeError::new_err(
                "a connection over a socket can't be sent to another process: connect there instead",
            ));
        }
        reduce_handle(py, "a connection", Handle::Connection(Box::new((*end).clone())))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let kind = if self.socket.is_some() { "socket" } else { "pipe" };
        let end = self.end.lock().clone();
        let state = match &end {
            None => "closed",
            Some(end) if end.is_disconnected() => "disconnected",
            Some(_) => "open",
        };
        let name = shown(py, end.and_then(|end| end.given_name()), " ", "")?;
        let ways = match (self.readable, self.writable) {
            (true, true) => "",
            (true, false) => ", receives",
            (false, _) => ", sends",
        };
        Ok(format!("<multiproc.Connection{name}: {kind}{ways}, {state}>"))
    }
}

/// Returns two connections: the ends of a pipe. Without ``duplex``, the first one only receives and the
/// second one only sends.
#[pyfunction]
#[pyo3(name = "Pipe", signature = (duplex = true))]
pub fn pipe(duplex: bool) -> PyResult<(Connection, Connection)> {
    let ends = if duplex { mp::connection::pipe() } else { mp::connection::one_way_pipe() };
    let (a, b) = ends.map_err(runtime)?;
    Ok((Connection::of(a, None), Connection::of(b, None)))
}

/// Converts a path, an abstract name (``\0name``), or a pair of host and port to an address.
fn address(of: &Bound<'_, PyAny>) -> PyResult<Address> {
    if let Ok(pair) = of.cast::<PyTuple>() {
        let (host, port) = pair.extract::<(String, Bound<'_, PyAny>)>().map_err(|_| {
            PyTypeError::new_err("an AF_INET address must be a pair of a host name and a port number")
        })?;
        let port: u16 = port.extract().map_err(|error: PyErr| {
            let is_number = error.is_instance_of::<PyOverflowError>(of.py());
            if is_number { PyOverflowError::new_err("port must be 0-65535") } else { error }
        })?;
        return Ok(Address::tcp((host.as_str(), port))?);
    }
    let text: String = match of.extract::<Vec<u8>>() {
        Ok(bytes) => String::from_utf8(bytes)?,
        Err(_) => of.extract()?,
    };
    Ok(match text.strip_prefix('\0') {
        Some(name) => Address::name(name),
        None => Address::path(text),
    })
}

fn options(authkey: Option<Vec<u8>>, backlog: u32) -> SocketOptions {
    let options = SocketOptions::new().max_message(u32::MAX as usize).backlog(backlog);
    match authkey {
        // An empty key would admit every client, so it counts as no key.
        Some(key) if !key.is_empty() => options.authkey(key),
        _ => options.no_key(),
    }
}

/// Returns the exception for a connection that could not be made.
fn connect_error(py: Python<'_>, error: ConnectError) -> PyErr {
    static AUTHENTICATION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let text = error.to_string();
    match error {
        ConnectError::Io { source, .. } => match source.raw_os_error() {
            // With a number, `OSError` becomes its subclass.
            Some(number) => PyOSError::new_err((number, text)),
            None => PyErr::from(std::io::Error::new(source.kind(), text)),
        },
        ConnectError::TimedOut(_) => PyTimeoutError::new_err(text),
        ConnectError::KeyMismatch { .. } | ConnectError::KeyMissing { .. } => {
            let class = AUTHENTICATION.import(py, "multiprocessing", "AuthenticationError");
            match class.and_then(|class| class.call1((text,))) {
                Ok(exception) => PyErr::from_value(exception),
                Err(error) => error,
            }
        }
        ConnectError::EmptyKey | ConnectError::KeyRequired { .. } => PyValueError::new_err(text),
        ConnectError::Gone => PyEOFError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// A listening socket.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct SocketListener {
    sockets: Mutex<Option<Arc<Sockets>>>,
}

impl SocketListener {
    fn open(&self) -> PyResult<Arc<Sockets>> {
        self.sockets.lock().clone().ok_or_else(|| PyOSError::new_err("listener is closed"))
    }
}

#[pymethods]
impl SocketListener {
    #[new]
    fn new(py: Python<'_>, at: &Bound<'_, PyAny>, backlog: u32, authkey: Option<Vec<u8>>) -> PyResult<Self> {
        let (address, options) = (address(at)?, options(authkey, backlog));
        let sockets = options.listen(address).map_err(|error| connect_error(py, error))?;
        Ok(Self { sockets: Mutex::new(Some(Arc::new(sockets))) })
    }

    /// Waits for a connection. Returns the connection, and for TCP the host and port of the other side.
    fn accept(&self, py: Python<'_>, allow_pickle: bool) -> PyResult<(Connection, Option<(String, u16)>)> {
        let sockets = self.open()?;
        let accepted = wait(py, None, (), |(), time| match sockets.accept_timeout(time) {
            Ok(None) if self.sockets.lock().is_none() => Attempt::Done(Ok(None)),
            Ok(None) => Attempt::Late(()),
            result => Attempt::Done(result),
        })?;
        let end = accepted.unwrap_or(Ok(None)).map_err(|error| connect_error(py, error))?;
        let end = end.ok_or_else(|| PyOSError::new_err("listener is closed"))?;
        let peer = end.peer_addr().map(|peer| (peer.ip().to_string(), peer.port()));
        Ok((Connection::of(end, Some(allow_pickle)), peer))
    }

    /// Host and port of a TCP listener.
    #[getter]
    fn host(&self) -> PyResult<Option<(String, u16)>> {
        Ok(self.open()?.local_addr().map(|at| (at.ip().to_string(), at.port())))
    }

    fn fileno(&self) -> PyResult<i32> {
        Ok(self.open()?.as_fd().as_raw_fd())
    }

    fn close(&self) {
        let sockets = self.sockets.lock().take();
        drop(sockets);
    }
}

/// Connects to a listener.
#[pyfunction]
pub fn connect(
    py: Python<'_>,
    to: &Bound<'_, PyAny>,
    authkey: Option<Vec<u8>>,
    allow_pickle: bool,
) -> PyResult<Connection> {
    let (address, options) = (address(to)?, options(authkey, 1));
    let options = options.handshake_timeout(Duration::from_secs(20));
    // The handshake with a busy listener takes up to 20 s.
    match on_thread(py, move || options.connect(address), drop)? {
        Ok(end) => Ok(Connection::of(end, Some(allow_pickle))),
        Err(error) => Err(connect_error(py, error)),
    }
}
