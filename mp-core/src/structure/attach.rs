//! Structures that move with a message, and structures that keep a descriptor.

use std::os::fd::AsFd;

use super::Structure;
use crate::error::Result;
use crate::mem::Word;
use crate::message::Attached;
use crate::messages::attachments::Descriptors;

impl Structure {
    /// Moves the structure into a message. Returns the number of the attachment. The structure has no words
    /// afterwards. If the message is not sent, the returned block is [opened](Self::open) again.
    ///
    /// ```
    /// use mp_core::Structure;
    /// use mp_core::message::Outgoing;
    ///
    /// let mut mine = Structure::new("example::RingPlace", 2)?;
    /// let mut message = Outgoing::default();
    /// let number = mine.attach_to(message.attached())?;
    /// assert_eq!(mine.len(), 0);
    /// let mut received = message.into_incoming();
    /// let hold = received.arrived().take_object_exclusive(number)?;
    /// assert_eq!(Structure::open(hold, "example::RingPlace")?.len(), 2);
    /// assert!(received.arrived().take_object_exclusive(number).is_err()); // it moved
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// If the process dies before the message was sent, the structure is freed. After that, it belongs to the
    /// receiver.
    ///
    /// # Errors
    /// The same as for [`Attached::attach_object_exclusive`]; above all, if another handle, process or
    /// message holds the structure.
    pub fn attach_to(&mut self, out: &mut Attached) -> Result<u32> {
        let attachment = out.attach_object_exclusive(&mut self.hold)?;
        self.base = Word::at(0);
        self.len = 0;
        Ok(attachment)
    }

    /// Returns the identity of the structure among all that ever existed in this arena, as one word that is
    /// never 0. With it, any member can check if the structure [lives](crate::Blocks::lives), and get the
    /// [descriptor that it keeps](crate::Descriptors::kept_descriptor), without holding it.
    ///
    /// ```
    /// use mp_core::{Arena, Blocks, Structure};
    ///
    /// let mine = Structure::new("example::RingPlace", 2)?;
    /// let mark = mine.mark();
    /// assert!(Blocks(Arena::current()?).lives(mark));
    /// drop(mine);
    /// assert!(!Blocks(Arena::current()?).lives(mark)); // and never again
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.hold.mark()
    }

    /// Keeps a copy of a descriptor while this structure lives. Every member can get it by
    /// [`Arena::kept_descriptor`](crate::Descriptors::kept_descriptor), any number of times, even after the
    /// end of this process.
    ///
    /// ```
    /// use mp_core::{Arena, Descriptors, Structure};
    ///
    /// let (file, _writer) = std::io::pipe().unwrap();
    /// let mine = Structure::new("example::Exported", 1)?;
    /// mine.keep_descriptor(file)?; // the caller's own is closed here
    /// let copy = Descriptors(Arena::current()?).kept_descriptor(mine.mark())?;
    /// assert!(copy.is_some());
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// A structure keeps at most one descriptor. The call blocks only while another process makes room in the
    /// locker. If this process dies during the call, the structure keeps no descriptor. After the call, it
    /// keeps the descriptor until its last holder releases it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the structure already keeps a descriptor
    /// or is a [child](Self::set_parent), or the descriptor isn't open.
    /// [`Error::TooManyDescriptors`](crate::Error::TooManyDescriptors),
    /// [`Error::OutOfDescriptors`](crate::Error::OutOfDescriptors), [`Error::Held`](crate::Error::Held) and
    /// [`Error::Unsupported`](crate::Error::Unsupported), like for descriptors in messages. After an error it
    /// keeps no descriptor, and the call can be repeated.
    pub fn keep_descriptor(&self, fd: impl AsFd) -> Result<()> {
        Descriptors(self.arena()).keep_descriptor(&self.hold, fd.as_fd())
    }
}
