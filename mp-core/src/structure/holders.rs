//! Who holds a structure, for diagnosis.

use std::fmt;

use super::Structure;
use crate::words::{Member, Seat};

/// The holders of a structure, as far as one look can tell: others come and go meanwhile.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Holders {
    /// The processes, by their tags and process ids (0: not known any more). One that has died counts until it is swept.
    pub processes: Vec<(Member, u32)>,
    /// How many messages on their way hold it.
    pub messages: usize,
    /// How many structures are [parts](Structure::part_of) of it.
    pub parts: usize,
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (member, pid)) in self.processes.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, member.process(*pid))?;
        }
        let then = if self.processes.is_empty() { "" } else { ", " };
        write!(f, "{then}{} messages", self.messages)?;
        if self.parts > 0 { write!(f, ", {} parts", self.parts) } else { Ok(()) }
    }
}

impl Structure {
    /// Which processes hold it, and how many messages do: for diagnosis.
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
        arena.each_holder(self.hold().block(), |holder| match holder {
            Seat::Member(member) => holders.processes.push((member, arena.pid_of(member))),
            Seat::Envelope(_) => holders.messages += 1,
            Seat::Block(_) => holders.parts += 1,
            Seat::Free => {}
        });
        holders
    }
}
