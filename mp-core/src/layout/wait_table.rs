//! Positions of the words in a member's slot that show its threads' waits, and of the names of objects.
//!
//! `blocking::reports::table` describes the states of the words.

/// Number of lanes that have a row. The first of these is lane 1, since lane 0 is shared by several threads.
pub(crate) const ROWS: u32 = 48;
pub(crate) const ROW_WORDS: u64 = 10;
/// Position in a row of the IDs of the processes that the thread waits for, two in a word.
pub(crate) const ROW_PROCESSES: u64 = 3;
/// Maximum number of process IDs in a row.
pub(crate) const PROCESSES: usize = 6;
/// Position in a row of the place of the call in the source: the line, and the end of the file's path.
pub(crate) const ROW_PLACE: u64 = 6;
/// Maximum length in bytes of the path in a row.
pub(crate) const PLACE_BYTES: usize = 28;
/// Position in a member's slot of the name of the process.
pub(crate) const NAME: u64 = 8;
/// Maximum length of a name in bytes.
pub(crate) const NAME_BYTES: usize = 32;
pub(crate) const SERVICES: u64 = 12;
/// Value of the first word of every structure.
pub(crate) const STRUCTURE: u64 = 6;
/// Position of a structure's name, relative to its first word.
pub(crate) const STRUCTURE_NAME: u64 = 3;
/// Number of header words of a structure.
pub(crate) const STRUCTURE_WORDS: u64 = 8;
/// Position of the name of a queue, relative to its first word.
pub const RING_NAME: u64 = 100;
/// Position in a member's slot of the first row, after the lanes.
pub(crate) const FIRST: u64 = 1024;
/// Position in a member's slot of the first word after the rows.
pub(crate) const END: u64 = FIRST + ROW_WORDS * ROWS as u64;
