//! Structures that move with a message, and descriptors that stay with one.

use std::os::fd::AsFd;

use super::Structure;
use crate::error::Result;
use crate::mem::Word;
use crate::message::Attached;

impl Structure {
    /// Moves it into a message: its number there. What is left has no words; the structure that comes back, if the message doesn't
    /// leave, is [opened](Self::open) again.
    ///
    /// ```
    /// use mp_core::Structure;
    /// use mp_core::message::Outgoing;
    ///
    /// let mut mine = Structure::new("example::Place", 2)?;
    /// let mut message = Outgoing::default();
    /// let number = mine.lend(message.attached())?;
    /// assert_eq!(mine.len(), 0);
    /// let mut received = message.into_incoming();
    /// let hold = received.arrived().take_object_exclusive(number)?;
    /// assert_eq!(Structure::open(hold, "example::Place")?.len(), 2);
    /// assert!(received.arrived().take_object_exclusive(number).is_err()); // it moved
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// If its process dies before the message has left, the structure is gone with it; after that, it is its receiver's.
    ///
    /// # Errors
    /// As [`Attached::attach_object_exclusive`]: above all, if another handle, process or message holds it, too.
    pub fn lend(&mut self, out: &mut Attached) -> Result<u32> {
        let attachment = out.attach_object_exclusive(&mut self.hold)?;
        self.base = Word::at(0);
        self.len = 0;
        Ok(attachment)
    }

    /// Which structure it is, among all that there ever were in this arena, as one word that is never 0. By it any member asks
    /// whether it [lives](crate::Arena::lives) still, and for the [descriptor that it keeps](crate::Arena::kept_descriptor), without
    /// holding it.
    ///
    /// ```
    /// use mp_core::{Arena, Structure};
    ///
    /// let mine = Structure::new("example::Place", 2)?;
    /// let mark = mine.mark();
    /// assert!(Arena::current()?.lives(mark));
    /// drop(mine);
    /// assert!(!Arena::current()?.lives(mark)); // and never again
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.arena().mark(&self.hold)
    }

    /// Keeps a copy of a descriptor for as long as this structure lives: every member finds it by
    /// [`Arena::kept_descriptor`](crate::Arena::kept_descriptor), as often as it likes, also when this process is gone.
    ///
    /// ```
    /// use mp_core::{Arena, Structure};
    ///
    /// let (file, _writer) = std::io::pipe().unwrap();
    /// let mine = Structure::new("example::Exported", 1)?;
    /// mine.keep_descriptor(file)?; // the caller's own is closed here
    /// let copy = Arena::current()?.kept_descriptor(mine.mark())?;
    /// assert!(copy.is_some());
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// A structure keeps one. It waits for other processes only while one of them makes room in the locker. If this process dies
    /// meanwhile, the structure keeps none; once this has returned, it keeps it until its last holder gives it up.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if it keeps one already, is a [part](Self::part_of), or the descriptor isn't open;
    /// [`Error::TooManyDescriptors`](crate::Error::TooManyDescriptors),
    /// [`Error::OutOfDescriptors`](crate::Error::OutOfDescriptors), [`Error::Held`](crate::Error::Held) and
    /// [`Error::Unsupported`](crate::Error::Unsupported), as for descriptors in messages. Then it keeps none, and it can be tried again.
    pub fn keep_descriptor(&self, fd: impl AsFd) -> Result<()> {
        self.arena().keep_descriptor(&self.hold, fd.as_fd())
    }
}
