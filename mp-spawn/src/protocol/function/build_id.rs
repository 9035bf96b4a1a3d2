//! Which build of a program or library something is.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::protocol::fields::{Fields, put_bytes, put_number};

/// Which build of which program or library an object is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Identity {
    /// The linker's build-id.
    BuildId(Vec<u8>),
    /// The object carries no build-id, so this is the file it was loaded from.
    File { device: u64, inode: u64, size: u64, modified: (i64, i64) },
}

impl Identity {
    /// A number for it, the same in each process of this build.
    pub(crate) fn short(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Appends it to a message.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Identity::BuildId(id) => {
                out.push(1);
                put_bytes(out, id);
            }
            Identity::File { device, inode, size, modified: (seconds, nanos) } => {
                out.push(0);
                for number in [*device, *inode, *size, seconds.cast_unsigned(), nanos.cast_unsigned()] {
                    put_number(out, number);
                }
            }
        }
    }

    /// Reads one from a message.
    #[inline]
    pub(crate) fn read(fields: &mut Fields<'_>) -> Option<Identity> {
        if fields.flag()? {
            return Some(Identity::BuildId(fields.bytes()?.to_vec()));
        }
        let mut number = || fields.number();
        let (device, inode, size) = (number()?, number()?, number()?);
        let modified = (number()?.cast_signed(), number()?.cast_signed());
        Some(Identity::File { device, inode, size, modified })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::BuildId(id) => {
                f.write_str("build-id ")?;
                id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Identity::File { device, inode, size, modified: (seconds, nanos) } => {
                write!(f, "file {device:x}:{inode} of {size} bytes, modified at {seconds}.{nanos:09}")
            }
        }
    }
}
