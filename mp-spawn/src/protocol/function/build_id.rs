//! Identification of the build of a program or library.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::protocol::fields::{Field, FieldReader};

/// Identity of the build of a program or library.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum BuildIdentity {
    /// Build-id of the linker.
    BuildId(Vec<u8>),
    /// File that the object was loaded from, if it has no build-id.
    File { device: u64, inode: u64, size: u64, modified: (i64, i64) },
}

impl BuildIdentity {
    /// Returns a hash of the identity, the same in each process of this build.
    pub(crate) fn short(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

impl Field for BuildIdentity {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            BuildIdentity::BuildId(id) => (true, id.clone()).put(out),
            BuildIdentity::File { device, inode, size, modified } => {
                (false, ((*device, *inode), (*size, *modified))).put(out);
            }
        }
    }

    #[inline]
    fn read(fields: &mut FieldReader<'_>) -> Option<BuildIdentity> {
        if bool::read(fields)? {
            return Vec::read(fields).map(BuildIdentity::BuildId);
        }
        let ((device, inode), (size, modified)) = Field::read(fields)?;
        Some(BuildIdentity::File { device, inode, size, modified })
    }
}

impl fmt::Display for BuildIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildIdentity::BuildId(id) => {
                f.write_str("build-id ")?;
                id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            BuildIdentity::File { device, inode, size, modified: (seconds, nanos) } => {
                write!(f, "file {device:x}:{inode} of {size} bytes, modified at {seconds}.{nanos:09}")
            }
        }
    }
}
