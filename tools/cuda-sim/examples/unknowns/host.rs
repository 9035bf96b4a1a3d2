//! Resources that processes share in addition to the device: words in memory, and descriptors.
//!
//! # Safety
//! Unsafe, because it maps memory and takes descriptors by their numbers; sound, because
//! - a mapping stays for the life of the process, and each of its words is read and written as a whole;
//! - a number belongs to a descriptor that this process inherited, or made, and is taken once.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::gpu::{Outcome, ProbeError};

/// Pages of a memfd that helpers inherit by its number.
#[derive(Debug)]
pub(crate) struct Shared {
    file: i32,
    pub(crate) host: *mut c_void,
    pub(crate) bytes: usize,
}

impl Shared {
    pub(crate) fn new(bytes: usize) -> Outcome<Self> {
        let file = rustix::fs::memfd_create("unknowns", MemfdFlags::empty())?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        let number = file.as_raw_fd();
        // The file stays open, because the mapping stays.
        std::mem::forget(file);
        Self::open(number, bytes)
    }

    /// Returns the number for helpers.
    pub(crate) fn number(&self) -> String {
        self.file.to_string()
    }

    pub(crate) fn open(file: i32, bytes: usize) -> Outcome<Self> {
        let borrowed = borrow(file);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which stays.
        let host =
            unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, borrowed, 0) }?;
        // SAFETY: the mapping made above; copies of this process don't use it.
        unsafe { rustix::mm::madvise(host, bytes, Advice::LinuxDontFork) }?;
        Ok(Self { file, host, bytes })
    }

    fn word(&self, i: usize) -> *mut u64 {
        assert!(8 * i < self.bytes, "a word of the mapping");
        self.host.cast::<u64>().wrapping_add(i)
    }

    pub(crate) fn load(&self, i: usize) -> u64 {
        // SAFETY: inside the mapping, which stays, and aligned; the device reaches whole words.
        unsafe { self.word(i).read_volatile() }
    }

    pub(crate) fn store(&self, i: usize, value: u64) {
        // SAFETY: likewise.
        unsafe { self.word(i).write_volatile(value) };
    }

    /// Waits until a word has at least this value, and returns the elapsed time. `None` after the limit.
    pub(crate) fn see(&self, i: usize, value: u64, limit: Duration) -> Option<Duration> {
        let begin = Instant::now();
        loop {
            if self.load(i) >= value {
                return Some(begin.elapsed());
            }
            let elapsed = begin.elapsed();
            if elapsed > limit {
                return None;
            }
            pause(elapsed);
        }
    }

    /// Does the same for a value that must be written within the limit.
    pub(crate) fn seen(&self, what: &str, i: usize, value: u64) -> Outcome<Duration> {
        self.see(i, value, Duration::from_secs(4))
            .ok_or_else(|| ProbeError(format!("{what}: not seen in 4 s")))
    }
}

/// Pauses between two reads of a word: short waits are measured to the microsecond, long ones release the
/// processor.
pub(crate) fn pause(waited: Duration) {
    if waited < Duration::from_millis(5) {
        std::hint::spin_loop();
    } else {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Borrows an inherited descriptor.
fn borrow(file: i32) -> BorrowedFd<'static> {
    // SAFETY: descriptors whose numbers are passed on stay open for the life of the process.
    unsafe { BorrowedFd::borrow_raw(file) }
}

/// Returns `true` if a descriptor of this number is open.
pub(crate) fn is_open(file: i32) -> bool {
    rustix::io::fcntl_getfd(borrow(file)).is_ok()
}

/// Creates two ends by which descriptors are passed between a question and its helpers, which inherit the
/// ends by their numbers.
pub(crate) fn pair() -> Outcome<(i32, i32)> {
    let flags = SocketFlags::empty();
    let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let numbers = (one.as_raw_fd(), other.as_raw_fd());
    std::mem::forget((one, other));
    Ok(numbers)
}

/// Sends a duplicate of a descriptor.
pub(crate) fn send(end: i32, file: &OwnedFd) -> Outcome {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&files));
    rustix::net::sendmsg(borrow(end), &[IoSlice::new(&[1])], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Receives a descriptor, which helpers that start later inherit by its number.
pub(crate) fn receive(end: i32) -> Outcome<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut to = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(borrow(end), &mut to, &mut control, RecvFlags::empty())?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut files) = message
            && let Some(file) = files.next()
        {
            return Ok(file);
        }
    }
    Err(ProbeError("no descriptor came".to_owned()))
}

/// Ends the process without running any more of its code.
pub(crate) fn leave() -> ! {
    // SAFETY: it takes no memory.
    unsafe { libc::_exit(0) }
}
