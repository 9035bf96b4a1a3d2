//! Process that created a pool or a call. A fork of this process takes none of their locks: other threads may
//! have held them at the fork.

use mp_core::Arena;
use mp_core::words::Member;

/// Identity of the process that created an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnerProcess {
    pid: u32,
    /// Identity that is compared without a system call.
    member: Option<Member>,
}

impl OwnerProcess {
    /// Returns the identity of this process.
    pub(crate) fn this() -> OwnerProcess {
        OwnerProcess { pid: std::process::id(), member: member() }
    }

    /// Returns `true` if the identity is that of this process.
    #[inline]
    pub(crate) fn is_this(self) -> bool {
        match self.member {
            Some(owner) => member() == Some(owner),
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
