//! Messages between client and engine. A request and its answer are one packet each, with optional
//! descriptors. A client waits for the answer to each call. So if a process makes a call, and then sends a
//! message to another process, the engine gets this call before the receiver's calls after the message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Largest number of bytes of a copy that are sent in the packet. Longer data is sent as the descriptor of a
/// file.
pub(crate) const INLINE: usize = 32 << 10;
const PACKET: usize = INLINE + (32 << 10);

/// Description of a device for a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceInfo {
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) bytes: u64,
    /// Numbers and values of attributes. Attributes that are not listed are 0.
    pub(crate) attributes: Vec<(i32, i32)>,
    /// Index of the device in the engine.
    pub(crate) index: u32,
}

/// Request of a client: a call, and the state of the calling thread.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Context that is current on the calling thread, or 0.
    pub(crate) context: u64,
    /// Capture mode of the calling thread.
    pub(crate) capture_mode: u32,
    /// Backtrace of the call, if the session records them.
    pub(crate) trace: Option<String>,
    pub(crate) call: Call,
}

/// Source of a copy.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Source {
    Inline(Vec<u8>),
    /// Number of bytes in the attached file.
    File(u64),
    /// Registered memory of the caller, read when the copy runs.
    Host(u64),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// First message of a process, on the connection for its lifetime.
    Hello {
        pid: u32,
        visible: Option<String>,
    },
    /// First message of a thread.
    Attach {
        process: u64,
    },
    /// Normal exit of a process.
    Bye,
    /// Asks for statistics. Only the process of the test sends this request.
    Stats,
    /// Simulates the loss of this device, as if it fell off the bus. The process of the test makes this
    /// request.
    Lose {
        device: u32,
    },

    PrimaryRetain {
        device: u32,
    },
    PrimaryRelease {
        device: u32,
    },
    ContextSynchronize,
    ContextDevice,
    MemInfo,

    Reserve {
        size: u64,
        alignment: u64,
        at: u64,
    },
    AddressFree {
        address: u64,
        size: u64,
    },
    Create {
        size: u64,
        device: u32,
        handle_types: i32,
    },
    Release {
        handle: u64,
    },
    Map {
        address: u64,
        size: u64,
        offset: u64,
        handle: u64,
    },
    Unmap {
        address: u64,
        size: u64,
    },
    SetAccess {
        address: u64,
        size: u64,
        device: u32,
        flags: i32,
    },
    GetAccess {
        address: u64,
        device: u32,
    },
    Export {
        handle: u64,
    },
    /// Import of the memory to which the attached descriptor refers.
    Import,
    RetainHandle {
        address: u64,
    },
    HandleProperties {
        handle: u64,
    },

    /// Allocation by `cuMemAlloc`, or by `cuMemAllocManaged` if `managed` is set.
    Alloc {
        size: u64,
        managed: bool,
    },
    Free {
        address: u64,
    },
    /// Allocation of the device's pool, whose memory can't be opened by other processes.
    AllocAsync {
        size: u64,
        stream: u64,
    },
    /// Frees memory after the stream has run its earlier work.
    FreeAsync {
        address: u64,
        stream: u64,
    },
    AddressRange {
        address: u64,
    },
    IpcGetMem {
        address: u64,
    },
    IpcOpenMem {
        handle: Vec<u8>,
    },
    IpcCloseMem {
        address: u64,
    },
    IpcGetEvent {
        event: u64,
    },
    IpcOpenEvent {
        handle: Vec<u8>,
    },

    StreamCreate {
        flags: u32,
    },
    StreamDestroy {
        stream: u64,
    },
    StreamQuery {
        stream: u64,
    },
    StreamSynchronize {
        stream: u64,
    },
    StreamWaitEvent {
        stream: u64,
        event: u64,
    },
    StreamContext {
        stream: u64,
    },
    BeginCapture {
        stream: u64,
        mode: u32,
    },
    EndCapture {
        stream: u64,
    },
    IsCapturing {
        stream: u64,
    },
    GraphDestroy {
        graph: u64,
    },
    /// Host function of the client, which a thread of the client calls after the stream's earlier work.
    LaunchHost {
        stream: u64,
        function: u64,
        data: u64,
    },
    /// Request for the next host function, by the thread that calls host functions. The previous function has
    /// returned.
    NextFunction,
    WriteValue {
        stream: u64,
        address: u64,
        value: u64,
    },
    WaitValue {
        stream: u64,
        address: u64,
        value: u64,
        flags: u32,
    },

    EventCreate {
        flags: u32,
    },
    EventRecord {
        event: u64,
        stream: u64,
    },
    EventQuery {
        event: u64,
    },
    EventSynchronize {
        event: u64,
    },
    EventDestroy {
        event: u64,
    },
    EventElapsed {
        start: u64,
        end: u64,
    },

    HostToDevice {
        to: u64,
        from: Source,
        bytes: u64,
        stream: u64,
        wait: bool,
    },
    /// Copy to the host. If `host` is set, registered memory of the caller is written when the copy runs.
    /// Otherwise the answer contains the bytes.
    DeviceToHost {
        from: u64,
        bytes: u64,
        stream: u64,
        host: Option<u64>,
    },
    DeviceToDevice {
        to: u64,
        from: u64,
        bytes: u64,
        stream: u64,
        wait: bool,
    },
    Set {
        to: u64,
        pattern: Vec<u8>,
        count: u64,
        stream: u64,
        wait: bool,
    },
    /// Registration of memory in the attached file, from `offset` on.
    HostRegister {
        address: u64,
        bytes: u64,
        offset: u64,
    },
    HostUnregister {
        address: u64,
    },
    HostDevicePointer {
        address: u64,
    },
    PointerAttribute {
        attribute: i32,
        address: u64,
    },

    ModuleLoad {
        image: String,
    },
    ModuleUnload {
        module: u64,
    },
    ModuleFunction {
        module: u64,
        name: String,
    },
    Launch {
        function: u64,
        grid: [u32; 3],
        block: [u32; 3],
        arguments: Vec<Vec<u8>>,
        stream: u64,
    },

    /// Hook of tests: declares the bytes at this address as one piece, which an access must not exceed. With
    /// 0 bytes, removes the piece.
    Piece {
        address: u64,
        bytes: u64,
    },
    /// Hook of tests: declares that unordered accesses to these bytes are intended.
    Shared {
        address: u64,
        bytes: u64,
    },
}

/// Answer of the engine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) code: u32,
    pub(crate) value: Value,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) enum Value {
    #[default]
    None,
    Number(u64),
    Pair(u64, u64),
    Bytes(Vec<u8>),
    /// Bytes in the attached file.
    File,
    Text(String),
    Hello {
        process: u64,
        devices: Vec<DeviceInfo>,
    },
    Function {
        handle: u64,
        sizes: Vec<u32>,
    },
}

/// Sends one packet.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    let sent = rustix::io::retry_on_intr(|| {
        sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("a packet was cut")) }
}

/// Receives one packet. Returns `None` at the end of the connection.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = vec![0; PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut file = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            file = files.last().or(file);
        }
    }
    let message = postcard::from_bytes(&bytes[..received.bytes]).map_err(io::Error::other)?;
    Ok(Some((message, file)))
}
