//! Positions of the words in a member's slot that show its threads' waits, and of the names of objects.
//!
//! `blocking::reports::table` describes the states of the words.

/// Number of lanes with a row. The first is lane 1, since threads share lane 0.
pub(crate) const ROWS: u32 = 48;
pub(crate) const ROW_WORDS: u64 = 10;
/// Position in a row of the processes that are waited for: two process IDs a word.
pub(crate) const ROW_PROCESSES: u64 = 3;
/// Maximum number of processes in a row.
pub(crate) const PROCESSES: usize = 6;
/// Position in a row of the place of the call in the source: the line, and the end of the file's path.
pub(crate) const ROW_PLACE: u64 = 6;
/// Maximum length of the path in bytes.
pub(crate) const PLACE_BYTES: usize = 28;
/// First word of the name of the process.
pub(crate) const NAME: u64 = 8;
/// Maximum length of a name in bytes.
pub(crate) const NAME_BYTES: usize = 32;
pub(crate) const SERVICES: u64 = 12;
/// Value of the first word of every structure, and the position of a structure's name.
pub(crate) const STRUCTURE: u64 = 6;
pub(crate) const STRUCTURE_NAME: u64 = 3;
/// Number of header words of a structure.
pub(crate) const STRUCTURE_WORDS: u64 = 8;
/// Position of the name of a queue, relative to its first word.
pub const RING_NAME: u64 = 100;
/// Position of the first row, after the lanes.
pub(crate) const FIRST: u64 = 1024;
/// First word after the rows.
pub(crate) const END: u64 = FIRST + ROW_WORDS * ROWS as u64;
