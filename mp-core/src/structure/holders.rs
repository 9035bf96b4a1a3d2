//! Holders of a structure, for diagnosis.

use std::fmt;

use super::Structure;
use crate::blocks::Blocks;
use crate::members::Members;
use crate::words::{Member, Seat};

/// Snapshot of the holders of a structure. Holders may change while it is taken.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Holders {
    /// Processes, by their tags and process ids (0: unknown). A dead process is included until it is
    /// reclaimed.
    pub processes: Vec<(Member, u32)>,
    /// Number of messages in flight that hold the structure.
    pub messages: usize,
    /// Number of structures that are [children](Structure::set_parent) of this one.
    pub children: usize,
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (member, pid)) in self.processes.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, member.process(*pid))?;
        }
        let then = if self.processes.is_empty() { "" } else { ", " };
        write!(f, "{then}{} messages", self.messages)?;
        if self.children > 0 { write!(f, ", {} children", self.children) } else { Ok(()) }
    }
}

impl Structure {
    /// Returns the processes that hold the structure, and the number of messages that do, for diagnosis.
    ///
    /// ```
    /// let mine = mp_core::Structure::new("example::Counter", 2)?;
    /// let holders = mine.holders();
    /// assert_eq!((holders.processes[0].1, holders.messages), (std::process::id(), 0));
    /// println!("held by {holders}");
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    #[must_use]
    pub fn holders(&self) -> Holders {
        let (arena, mut holders) = (self.arena(), Holders::default());
        if self.hold().is_nowhere() || !arena.is_here() {
            return holders;
        }
        Blocks(arena).each_holder(self.hold().block(), |holder| match holder {
            Seat::Member(member) => holders.processes.push((member, Members(arena).pid_of(member))),
            Seat::Envelope(_) => holders.messages += 1,
            Seat::Block(_) => holders.children += 1,
            Seat::Free => {}
        });
        holders
    }
}
