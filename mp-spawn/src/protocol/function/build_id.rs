//! Identification of the build of a program or library.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::protocol::fields::{Fields, put_bytes, put_number};

/// Identity of the build of a program or library.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Identity {
    /// Build-id of the linker.
    BuildId(Vec<u8>),
    /// File that the object was loaded from, if it has no build-id.
    File { device: u64, inode: u64, size: u64, modified: (i64, i64) },
}

impl Identity {
    /// Returns a hash of the identity, the same in each process of this build.
    pub(crate) fn short(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Appends the identity to a message.
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

    /// Reads an identity from a message.
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
