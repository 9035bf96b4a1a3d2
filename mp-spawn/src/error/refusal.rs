//! Why a child does not call the function that it was told to call.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a child does not call the function that it was told to call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// The child runs another program, or another build of this one.
    OtherBuild {
        /// What the child runs.
        found: String,
        /// What the parent runs.
        expected: String,
    },
    /// The reference points out of the program.
    OutOfBounds,
    /// The reference points to no function: it is not aligned as one.
    Misaligned,
    /// The reference points to no function: something else lies there.
    NoFunction,
    /// The reference points to a function of other types.
    OtherTypes {
        /// The function that lies there.
        found: String,
    },
    /// The function lies in a library that has a copy of this crate of its own, and the child runs another copy: the
    /// program's, or another library's.
    OtherCopy,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::OtherBuild { found, expected } => {
                write!(f, "the child runs another build: {found}, expected {expected}")
            }
            Refusal::OutOfBounds => f.write_str("the reference points out of the program"),
            Refusal::Misaligned => f.write_str("the reference is not aligned"),
            Refusal::NoFunction => f.write_str("the reference points to something that is no function"),
            Refusal::OtherTypes { found } => {
                write!(f, "the reference points to a function of other types, `{found}`")
            }
            Refusal::OtherCopy => f.write_str(
                "the function lies in a library with a copy of mp of its own, and another copy runs the child: \
                 start it by a command that loads the library and calls its mp_child_main (see `set_command`)",
            ),
        }
    }
}
