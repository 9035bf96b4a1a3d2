//! Which process made a pool, or a call. In a copy of it, nothing of theirs is locked: other threads may have held the locks when it was
//! copied.

use mp_core::Arena;
use mp_core::words::Member;

/// The process that made something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maker {
    pid: u32,
    /// As which it is asked for: a look at memory, and no system call.
    member: Option<Member>,
}

impl Maker {
    /// This process.
    pub(crate) fn this() -> Maker {
        Maker { pid: std::process::id(), member: member() }
    }

    /// Whether it is this process.
    #[inline]
    pub(crate) fn is_this(self) -> bool {
        match self.member {
            Some(maker) => member() == Some(maker),
            None => self.pid == std::process::id(),
        }
    }

    pub(crate) fn pid(self) -> u32 {
        self.pid
    }
}

#[inline]
fn member() -> Option<Member> {
    Arena::get()?.me().ok()
}
