//! Descriptors of objects, and the order in which they become readable.
#![cfg(not(mp_loom))]

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mp_core::{Descriptor, ReadyFd, WaitPoint, Waitable, wait};

const DEADLINE: Duration = Duration::from_secs(20);

/// Object that is ready while its flag is set. Waiting threads are woken only by [`tell`](Self::tell).
struct Flag {
    ready: AtomicBool,
    here: UnixStream,
    there: UnixStream,
}

impl Flag {
    fn new() -> Arc<Self> {
        let (here, there) = UnixStream::pair().unwrap();
        Arc::new(Self { ready: AtomicBool::new(false), here, there })
    }

    fn set(&self) {
        self.ready.store(true, Ordering::SeqCst);
    }

    fn clear(&self) {
        self.ready.store(false, Ordering::SeqCst);
    }

    fn tell(&self) {
        (&self.there).write_all(b"x").unwrap();
    }
}

impl Waitable for Flag {
    fn wait_point(&self) -> WaitPoint<'_> {
        WaitPoint::Readable(self.here.as_fd())
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::SeqCst)
    }
}

fn is_readable(fd: &ReadyFd) -> bool {
    Descriptor(fd).is_ready()
}

#[test]
fn ready_fd_set_all_sets_fds_of_ready_objects() {
    let flags = [Flag::new(), Flag::new(), Flag::new()];
    let fds = flags.clone().map(|flag| ReadyFd::new(flag).unwrap());
    flags[0].set();
    flags[2].set();
    assert!(!fds.iter().any(is_readable), "a descriptor is readable before `set_all`");
    ReadyFd::set_all();
    assert_eq!(fds.each_ref().map(is_readable), [true, false, true]);
    flags[0].clear();
    fds[0].update().unwrap();
    ReadyFd::set_all();
    assert_eq!(fds.each_ref().map(is_readable), [false, false, true]);
}

#[test]
fn ready_fd_set_all_skips_dropped_descriptors() {
    let flags = [Flag::new(), Flag::new()];
    let [gone, fd] = flags.clone().map(|flag| ReadyFd::new(flag).unwrap());
    drop(gone);
    flags[1].set();
    ReadyFd::set_all();
    assert!(is_readable(&fd));
    assert_eq!(Arc::strong_count(&flags[0]), 1);
}

#[test]
fn ready_fd_set_if_ready_sets_only_its_own_fd() {
    let flags = [Flag::new(), Flag::new()];
    let [one, other] = flags.clone().map(|flag| ReadyFd::new(flag).unwrap());
    one.set_if_ready();
    assert!(!is_readable(&one));
    flags.iter().for_each(|flag| flag.set());
    one.set_if_ready();
    assert!(is_readable(&one));
    assert!(!is_readable(&other));
}

#[test]
fn ready_fd_after_others_sets_the_others_first() {
    let (flag, end) = (Flag::new(), Flag::new());
    let fd = ReadyFd::new(flag.clone()).unwrap();
    let last = ReadyFd::new_after_others(end.clone()).unwrap();
    flag.set();
    last.set_if_ready();
    assert!(!is_readable(&fd) && !is_readable(&last));
    end.set();
    ReadyFd::set_all();
    assert!(is_readable(&fd) && !is_readable(&last));
    flag.clear();
    fd.update().unwrap();
    flag.set();
    last.set_if_ready();
    assert!(is_readable(&fd) && is_readable(&last));
}

#[test]
fn wake_of_a_ready_fd_after_others_sets_others_first() {
    let (flag, end) = (Flag::new(), Flag::new());
    let fd = ReadyFd::new(flag.clone()).unwrap();
    let last = ReadyFd::new_after_others(end.clone()).unwrap();
    flag.set();
    end.set();
    assert!(!is_readable(&fd) && !is_readable(&last));
    end.tell();
    assert_eq!(wait(&[&Descriptor(&last)], Some(DEADLINE)).unwrap(), [0]);
    assert!(is_readable(&fd));
}

#[test]
fn ready_fd_after_others_is_created_set_if_ready() {
    let (flag, end) = (Flag::new(), Flag::new());
    let fd = ReadyFd::new(flag.clone()).unwrap();
    flag.set();
    end.set();
    let last = ReadyFd::new_after_others(end).unwrap();
    assert!(is_readable(&fd) && is_readable(&last));
}
