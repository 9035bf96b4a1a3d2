//! Words of a member's slot that show its threads' waits, and of the names of objects.
//!
//! `blocking::reports::table` describes their states.

/// Number of lanes with a row. The first is lane 1, since threads share lane 0.
pub(crate) const ROWS: u32 = 48;
pub(crate) const ROW_WORDS: u64 = 3;
/// First word of the name of the process.
pub(crate) const NAME: u64 = 8;
/// Maximum length of a name in bytes.
pub(crate) const NAME_BYTES: usize = 32;
pub(crate) const SERVICES: u64 = 12;
/// Value of a structure's first word, and the position of its name.
pub(crate) const STRUCTURE: u64 = 6;
pub(crate) const STRUCTURE_NAME: u64 = 3;
/// Number of header words of a structure.
pub(crate) const STRUCTURE_WORDS: u64 = 8;
/// Position of the name of a queue, relative to its first word.
pub const RING_NAME: u64 = 100;
/// Position of the first row.
pub(crate) const FIRST: u64 = 100;
/// First word after the rows.
pub(crate) const END: u64 = FIRST + ROW_WORDS * ROWS as u64;
