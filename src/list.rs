//! Lists in shared memory, compatible byte for byte with Python's `ShareableList`.
//!
//! ```
//! use mp::ShareableList;
//! use mp::list::{ListError, ListItem};
//!
//! let list = ShareableList::new([ListItem::from(7), ListItem::from("seven")])?;
//! let same = list.clone(); // or sent to another process, or opened there by its name
//! same.set(0, 8)?;
//! assert_eq!(list.get(0)?, ListItem::from(8));
//! assert!(matches!(list.get(2), Err(ListError::NoSlot { slot: 2, len: 2 })));
//! # Ok::<(), ListError>(())
//! ```
//!
//! Start with three types: [`ShareableList`], [`ListItem`], the content of a slot, and [`ListError`].

#[doc(no_inline)]
pub use crate::ShareableList;
pub use mp_sync::{ListError, ListItem};
