//! Sessions, and client processes that make the calls that a test requests.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicU64;

use mp_cuda_sim::session::{Session, Setup};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use crate::common::{nothing_found, stat, until};

/// Unit of device memory in bytes, and size of the slabs of these tests.
pub(crate) const UNIT: u64 = 2 << 20;

/// Request for one call.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) call: String,
    pub(crate) numbers: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

/// Answer to a request: result code of the call, and the numbers and bytes that the call has returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) code: u32,
    pub(crate) number: u64,
    pub(crate) other: u64,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn send(socket: BorrowedFd<'_>, message: &impl Serialize, file: Option<BorrowedFd<'_>>) {
    let bytes = postcard::to_allocvec(message).unwrap();
    let files: Vec<_> = file.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
}

pub(crate) fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> Option<(T, Option<OwnedFd>)> {
    let mut bytes = vec![0; 192 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got =
        recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    if got.bytes == 0 {
        return None;
    }
    let mut files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let file = files.next();
    Some((postcard::from_bytes(&bytes[..got.bytes]).unwrap(), file))
}

/// Returns the setup with the files that cargo has built.
pub(crate) fn setup() -> Setup {
    let engine = Path::new(env!("CARGO_BIN_EXE_mp-cuda-sim-engine"));
    // The library in `deps` was built for the tests. The library next to the engine was built by `cargo
    // build`, and may be older.
    let library = engine.parent().unwrap().join("deps/libmp_cuda_sim.so");
    assert!(library.exists(), "{} is not built", library.display());
    Setup::new(engine, &library)
}

/// Process that calls the driver of a session.
#[derive(Debug)]
pub(crate) struct Client {
    child: Child,
    socket: OwnedFd,
    /// `true` if the answer of a call has not been read yet.
    busy: Cell<bool>,
    kernels: RefCell<HashMap<&'static str, u64>>,
}

impl Client {
    pub(crate) fn bare(session: Option<&Session>, env: &[(&str, &str)]) -> Self {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "client::helper_client", "--nocapture"]).env("MP_SIM_CLIENT", "1");
        command.env_remove("MP_CUDA_SIM").env_remove("CUDA_VISIBLE_DEVICES");
        if let Some(session) = session {
            session.prepare(&mut command);
        }
        for (name, value) in env {
            // An empty value removes the variable.
            if value.is_empty() {
                command.env_remove(name)
            } else {
                command.env(name, value)
            };
        }
        let child = command.stdin(theirs).stdout(Stdio::null()).spawn().unwrap();
        Self { child, socket, busy: Cell::new(false), kernels: RefCell::default() }
    }

    /// Starts a client that has called `cuInit`, with the context of its first device current.
    pub(crate) fn new(session: &Session) -> Self {
        Self::with(session, &[])
    }

    pub(crate) fn with(session: &Session, env: &[(&str, &str)]) -> Self {
        let client = Self::bare(Some(session), env);
        client.ok("cuInit", &[0]);
        let context = client.ok("cuDevicePrimaryCtxRetain", &[0]);
        client.ok("cuCtxSetCurrent", &[context]);
        client
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Begins a call without waiting for its answer.
    pub(crate) fn begin(&self, call: &str, numbers: &[u64]) {
        self.begin_with(call, numbers, &[], None);
    }

    pub(crate) fn begin_with(&self, call: &str, numbers: &[u64], bytes: &[u8], file: Option<BorrowedFd<'_>>) {
        assert!(!self.busy.replace(true), "one call after another");
        let asked = Asked { call: call.to_owned(), numbers: numbers.to_vec(), bytes: bytes.to_vec() };
        send(self.socket.as_fd(), &asked, file);
    }

    /// Returns `true` if the pending call ends within this time.
    pub(crate) fn is_over_within(&self, milliseconds: u64) -> bool {
        let milliseconds = i64::try_from(milliseconds).unwrap();
        let time = Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
        poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&time)).unwrap() > 0
    }

    /// Returns the answer of the pending call.
    #[track_caller]
    pub(crate) fn end(&self) -> (Answer, Option<OwnedFd>) {
        self.try_end().expect("the client has ended")
    }

    #[track_caller]
    fn try_end(&self) -> Option<(Answer, Option<OwnedFd>)> {
        let time = Timespec { tv_sec: i64::try_from(mp_harness::DEADLINE.as_secs()).unwrap(), tv_nsec: 0 };
        let there = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&time)).unwrap();
        assert!(there > 0, "no answer by the deadline");
        self.busy.set(false);
        receive(self.socket.as_fd())
    }

    /// Makes a call, and returns its answer.
    #[track_caller]
    pub(crate) fn call(&self, call: &str, numbers: &[u64], bytes: &[u8]) -> Answer {
        self.begin_with(call, numbers, bytes, None);
        self.end().0
    }

    /// Makes a call that must succeed, and returns the number that it wrote.
    #[track_caller]
    pub(crate) fn ok(&self, call: &str, numbers: &[u64]) -> u64 {
        let answer = self.call(call, numbers, &[]);
        assert_eq!(answer.code, 0, "{call} {numbers:x?}");
        answer.number
    }

    /// Makes a call, and returns its result code.
    #[track_caller]
    pub(crate) fn code(&self, call: &str, numbers: &[u64]) -> u32 {
        self.call(call, numbers, &[]).code
    }

    /// Makes a call that ends the process. Returns its exit status.
    #[track_caller]
    pub(crate) fn dies_in(mut self, call: &str, numbers: &[u64]) -> ExitStatus {
        self.begin(call, numbers);
        assert!(self.try_end().is_none(), "{call} returned");
        self.child.wait().unwrap()
    }

    pub(crate) fn export(&self, handle: u64) -> OwnedFd {
        self.begin("cuMemExportToShareableHandle", &[handle]);
        let (answer, file) = self.end();
        assert_eq!(answer.code, 0);
        file.unwrap()
    }

    pub(crate) fn import(&self, file: &OwnedFd) -> Answer {
        self.begin_with("cuMemImportFromShareableHandle", &[], &[], Some(file.as_fd()));
        self.end().0
    }

    /// Makes the client fork a child. The child lives until the returned end of a pipe is dropped.
    pub(crate) fn copy(&self) -> OwnedFd {
        let (reading, writing) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        self.begin_with("copy", &[], &[], Some(reading.as_fd()));
        assert_eq!(self.end().0.code, 0);
        writing
    }

    /// Maps a file, and registers the memory. Returns the address for the host, and the address for the
    /// device.
    pub(crate) fn register(&self, file: &OwnedFd, bytes: u64) -> (u64, u64) {
        self.begin_with("map", &[bytes], &[], Some(file.as_fd()));
        let host = self.end().0.number;
        self.ok("cuMemHostRegister", &[host, bytes]);
        (host, self.ok("cuMemHostGetDevicePointer", &[host]))
    }

    /// Allocates memory of the first device, mapped and accessible. Returns the handle and the address.
    pub(crate) fn memory(&self, size: u64) -> (u64, u64) {
        let handle = self.ok("cuMemCreate", &[size, 0]);
        (handle, self.map(handle, size))
    }

    pub(crate) fn map(&self, handle: u64, size: u64) -> u64 {
        let at = self.ok("cuMemAddressReserve", &[size, 0]);
        self.ok("cuMemMap", &[at, size, 0, handle]);
        self.ok("cuMemSetAccess", &[at, size, 0, 3]);
        at
    }

    pub(crate) fn stream(&self) -> u64 {
        self.ok("cuStreamCreate", &[1])
    }

    /// Returns the function of a kernel of the simulator. Each kernel is loaded once, after the context's
    /// streams have run their work.
    pub(crate) fn kernel(&self, name: &'static str) -> u64 {
        let known = self.kernels.borrow().get(name).copied();
        let kernel = known.unwrap_or_else(|| self.load(name));
        self.kernels.borrow_mut().insert(name, kernel);
        kernel
    }

    fn load(&self, name: &str) -> u64 {
        let image = mp_cuda_sim::KERNELS.trim_end_matches('\0');
        let module = self.call("cuModuleLoadData", &[], image.as_bytes());
        assert_eq!(module.code, 0);
        let function = self.call("cuModuleGetFunction", &[module.number], name.as_bytes());
        assert_eq!(function.code, 0, "{name}");
        function.number
    }

    /// Sets the `n` floats at `to` to `value`.
    pub(crate) fn fill(&self, stream: u64, to: u64, n: u64, value: f32) {
        let function = self.kernel("fill_f32");
        self.ok("cuLaunchKernel", &[function, stream, to, n, u64::from(value.to_bits())]);
    }

    /// Returns the `n` floats at `from` in device memory.
    #[track_caller]
    pub(crate) fn floats(&self, from: u64, n: u64) -> Vec<f32> {
        let answer = self.call("cuMemcpyDtoH", &[from, n * 4], &[]);
        assert_eq!(answer.code, 0);
        answer.bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
    }

    /// Ends the client by SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the client by a normal exit.
    pub(crate) fn leave(mut self) {
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Returns the kinds of the findings, sorted.
pub(crate) fn kinds(session: &Session) -> Vec<String> {
    let mut kinds: Vec<String> =
        session.findings().unwrap().into_iter().map(|finding| finding.kind).collect();
    kinds.sort();
    kinds
}

/// Creates a file in memory.
pub(crate) fn file(bytes: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    file
}

/// Maps a file for the life of the process.
pub(crate) fn map(file: BorrowedFd<'_>, bytes: usize) -> u64 {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which is never unmapped.
    let at = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) };
    at.unwrap().expose_provenance() as u64
}

/// Returns the word at an address that this process has mapped.
pub(crate) fn word(address: u64) -> &'static AtomicU64 {
    let at = std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap());
    // SAFETY: `map` returned the address, and its mappings are never unmapped.
    unsafe { AtomicU64::from_ptr(at) }
}

/// Returns `true` if the host can read memory at an address.
pub(crate) fn touches(address: u64) -> bool {
    let at = std::ptr::with_exposed_provenance::<u8>(usize::try_from(address).unwrap());
    let (_reading, writing) = rustix::pipe::pipe().unwrap();
    // SAFETY: the kernel reads at the address, and returns an error if it can't.
    unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&writing), at.cast(), 1) == 1 }
}

/// Takes ownership of a descriptor from the driver.
pub(crate) fn own(file: RawFd) -> OwnedFd {
    // SAFETY: the driver created the descriptor for its caller.
    unsafe { OwnedFd::from_raw_fd(file) }
}
