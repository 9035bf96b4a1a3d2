//! Code of the user that panics on threads of this crate: the threads and all their work continue.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::time::Duration;

use mp_spawn::Process;
use serde::{Serialize, Serializer};

const DEADLINE: Duration = Duration::from_secs(60);

/// Value that panics when it is dropped, repeatedly: the payload of each panic is the next bomb.
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 > 0 {
            resume_unwind(Box::new(Bomb(self.0 - 1)));
        }
    }
}

#[cfg(feature = "log")]
mod rude {
    /// Logger that panics at each event of a process.
    struct Rude;

    impl log::Log for Rude {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, _: &log::Record<'_>) {
            std::panic::resume_unwind(Box::new(super::Bomb(2)));
        }
        fn flush(&self) {}
    }

    pub(super) fn install() {
        log::set_logger(&Rude).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    }
}

#[test]
fn panic_of_a_callback_leaves_the_supervisor_running() {
    #[cfg(feature = "log")]
    rude::install();
    for _ in 0..2 {
        let (report, reported) = mpsc::channel();
        let child = Process::spawn(|x: u32| Ok::<_, String>(x + 1), 1).unwrap();
        let captured = (report, Bomb(2));
        child.on_exit(move || {
            let all = captured;
            _ = all.0.send(());
        });
        child.on_exit(|| resume_unwind(Box::new(Bomb(2))));
        reported.recv_timeout(DEADLINE).expect("the callback reports the end");
        assert!(child.wait_timeout(DEADLINE));
        assert_eq!(child.join().unwrap(), 2);
    }
}

/// Value that can't be sent.
struct Stays;

impl Serialize for Stays {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        resume_unwind(Box::new("it stays"))
    }
}

impl<'de> serde::Deserialize<'de> for Stays {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Ok(Stays)
    }
}

#[test]
fn panic_in_serialize_of_arguments_starts_nothing() {
    // In a separate process, which has no other children.
    common::alone(|()| {
        for method in [mp_spawn::StartMethod::Spawn, mp_spawn::StartMethod::ForkServer] {
            let start = || Process::builder().start_method(method).spawn(|_: Stays| (), Stays);
            assert!(catch_unwind(AssertUnwindSafe(start)).is_err());
            assert!(common::children().is_empty() && mp_spawn::active_children().is_empty(), "{method}");
        }
        // The next start works.
        let child = Process::spawn(|x: u32| Ok::<_, String>(x + 1), 1).unwrap();
        assert!(child.wait_timeout(DEADLINE));
        assert_eq!(child.join().unwrap(), 2);
    });
}
