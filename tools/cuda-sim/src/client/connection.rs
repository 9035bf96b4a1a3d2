//! Connections to the engine: one for the lifetime of the process, and one for each thread that calls the
//! driver.
//!
//! # Safety
//! Unsafe, because it registers two functions with the C library, which calls them at `fork` and at the end
//! of the process. Sound, because
//! - the function in a forked child closes only a descriptor of this module, which the child doesn't use;
//! - both are functions of this library, which is never unloaded.
#![allow(unsafe_code)]

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, Once, PoisonError};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::codes;
use crate::sync::{AtomicU64, Ordering};
use crate::wire::{self, Call, DeviceInfo, Reply, Request, Value};

/// State of the process after `cuInit`.
#[derive(Debug)]
struct ClientState {
    /// Id of the process that called `cuInit`. In a forked child, the id differs.
    pid: u32,
    process: u64,
    life: OwnedFd,
    devices: Vec<DeviceInfo>,
    /// Registered ranges: address and length.
    registered: Vec<(u64, u64)>,
}

static CLIENT: Mutex<Option<ClientState>> = Mutex::new(None);
/// Number of the descriptor of [`ClientState::life`] plus one, or 0.
static LIFE: AtomicU64 = AtomicU64::new(0);
static HANDLERS: Once = Once::new();

thread_local! {
    static CALLS: RefCell<Option<(u64, OwnedFd)>> = const { RefCell::new(None) };
}

fn with_client<T>(look: impl FnOnce(&mut ClientState) -> T) -> Result<T, u32> {
    let mut with_client = CLIENT.lock().unwrap_or_else(PoisonError::into_inner);
    let with_client = with_client.as_mut().filter(|with_client| with_client.pid == std::process::id());
    with_client.map(look).ok_or(codes::NOT_INITIALIZED)
}

fn open() -> io::Result<OwnedFd> {
    let path = std::env::var_os("MP_CUDA_SIM").ok_or(io::ErrorKind::NotFound)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(std::path::PathBuf::from(path))?)?;
    Ok(socket)
}

/// Connects to the engine (`cuInit`). Without an engine, returns the error for a machine without a device.
pub(crate) fn init() -> Result<(), u32> {
    let mut with_client = CLIENT.lock().unwrap_or_else(PoisonError::into_inner);
    match &*with_client {
        Some(with_client) if with_client.pid == std::process::id() => return Ok(()),
        // The state belongs to the parent of this forked child.
        Some(_) => return Err(codes::NOT_INITIALIZED),
        None => {}
    }
    let life = open().map_err(|_| codes::NO_DEVICE)?;
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let hello = Call::Hello { pid: std::process::id(), visible };
    let (Value::Hello { process, devices }, _) = exchange(life.as_fd(), hello, None)? else {
        return Err(codes::UNKNOWN);
    };
    if devices.is_empty() {
        return Err(codes::NO_DEVICE);
    }
    LIFE.store(u64::try_from(life.as_raw_fd()).unwrap_or(0) + 1, Ordering::SeqCst);
    *with_client =
        Some(ClientState { pid: std::process::id(), process, life, devices, registered: Vec::new() });
    HANDLERS.call_once(|| {
        // SAFETY: the function has the required type, and only closes a descriptor.
        _ = unsafe { libc::pthread_atfork(None, None, Some(in_a_copy)) };
        // SAFETY: the function has the required type.
        _ = unsafe { libc::atexit(at_exit) };
    });
    Ok(())
}

/// Closes the lifetime connection in a forked child. So the connection ends when the parent ends, even if the
/// child lives longer.
extern "C" fn in_a_copy() {
    let life = LIFE.swap(0, Ordering::SeqCst);
    if let Some(life) = life.checked_sub(1).and_then(|life| RawFd::try_from(life).ok()) {
        // SAFETY: the forked child owns this descriptor and does not use it: `with_client` refuses the call.
        _ = unsafe { libc::close(life) };
    }
}

/// Reports a normal exit of the process.
extern "C" fn at_exit() {
    let Ok(with_client) = CLIENT.try_lock() else { return };
    if let Some(with_client) =
        with_client.as_ref().filter(|with_client| with_client.pid == std::process::id())
    {
        _ = exchange(with_client.life.as_fd(), Call::Bye, None);
    }
}

/// Returns an error if a call is not permitted: most calls require that this process has called `cuInit`.
pub(crate) fn begin(name: &str) -> Result<(), u32> {
    match name {
        "cuInit" | "cuDriverGetVersion" | "cuGetErrorName" | "cuGetErrorString" => Ok(()),
        _ => with_client(|_| ()),
    }
}

/// Passes the devices that are visible to this process to `look`.
pub(crate) fn devices<T>(look: impl FnOnce(&[DeviceInfo]) -> T) -> Result<T, u32> {
    with_client(|with_client| look(&with_client.devices))
}

/// Passes the registered ranges of this process to `look`.
pub(crate) fn with_registered<T>(look: impl FnOnce(&mut Vec<(u64, u64)>) -> T) -> Result<T, u32> {
    with_client(|with_client| look(&mut with_client.registered))
}

/// Prints a note about a limit of the simulator to stderr, for the reader of a failed test.
pub(crate) fn note(text: &str) {
    eprintln!("mp-cuda-sim: {text}");
}

/// Sends a call to the engine over this thread's connection.
pub(crate) fn ask(call: Call) -> Result<(Value, Option<OwnedFd>), u32> {
    ask_with(call, None)
}

/// Sends a call to the engine like [`ask`], with a descriptor.
pub(crate) fn ask_with(call: Call, file: Option<BorrowedFd<'_>>) -> Result<(Value, Option<OwnedFd>), u32> {
    let process = with_client(|with_client| with_client.process)?;
    let attached = || -> Result<OwnedFd, u32> {
        let socket = open().map_err(|_| codes::UNKNOWN)?;
        exchange(socket.as_fd(), Call::Attach { process }, None)?;
        Ok(socket)
    };
    if CALLS.try_with(|_| ()).is_err() {
        // The thread's variables are dropped, but exit callbacks of the process may still call the driver.
        return exchange(attached()?.as_fd(), call, file);
    }
    let with = |calls: &RefCell<Option<(u64, OwnedFd)>>| {
        let mut calls = calls.borrow_mut();
        if calls.as_ref().is_none_or(|(of, _)| *of != process) {
            *calls = Some((process, attached()?));
        }
        let Some((_, socket)) = &*calls else { return Err(codes::UNKNOWN) };
        exchange(socket.as_fd(), call, file)
    };
    CALLS.try_with(with).map_err(|_| codes::DEINITIALIZED)?
}

fn exchange(
    socket: BorrowedFd<'_>,
    call: Call,
    file: Option<BorrowedFd<'_>>,
) -> Result<(Value, Option<OwnedFd>), u32> {
    let trace = std::env::var_os("MP_CUDA_SIM_BACKTRACE");
    let trace = trace.map(|_| Backtrace::force_capture().to_string().chars().take(8 << 10).collect());
    let request = Request { context: super::current(), capture_mode: super::capture_mode(), trace, call };
    let answer = wire::send(socket, &request, file).and_then(|()| wire::receive::<Reply>(socket));
    match answer {
        Ok(Some((Reply { code: codes::SUCCESS, value }, file))) => Ok((value, file)),
        Ok(Some((Reply { code, .. }, _))) => Err(code),
        // The session has ended.
        Ok(None) | Err(_) => Err(codes::UNKNOWN),
    }
}
