//! Wait notes: records of the locks that a member's threads wait for, which other processes read to find
//! cycles.
//!
//! # Words, and the processes that change them
//! A member has [`WaitNotesAt::ENTRIES`] notes of four words. A thread claims a note after it has waited for
//! a while, and keeps the note until the end of that wait. During that wait, the thread acquires and releases
//! no other lock. If no note is free, the thread writes none.
//!
//! | word | states | changed by |
//! |---|---|---|
//! | mark: `state 2, thread 22, sequence 40` | `FREE` | a thread of the member → `WRITING`, its own, sequence + 1, by one swap |
//! |  | `WRITING` | that thread, after it has written the other words → `WAITING` |
//! |  | `WAITING` | that thread, at the end of its wait, with or without the lock → `FREE` |
//! | goal, two words: the lock, and, for a writer, the readers that it waits for | any | that thread in `WRITING`; valid only with `WAITING` |
//! | since: ns of the monotonic clock | any | that thread in `WRITING`; valid only with `WAITING` |
//!
//! A process that reads a note loads the mark, the other words, and the mark again. If both marks are equal,
//! the other words belong to that note: before they change, the mark leaves `WAITING`, and no sequence of a
//! mark repeats.
//!
//! # Effects of a death
//! | killed | remaining state | effect |
//! |---|---|---|
//! | process, at any point | a note of a dead member, in any state | the search for deadlocks ignores cycles with dead members; the next tenant of the slot frees all notes before it becomes a member |
//! | only a thread (it ended in its wait, which requires a debugger) | a note that stays claimed | one note less |

use crate::mem::{Mem, Steps, Word};
use crate::words::{Member, WaitGoal, WaitMark, WaitState};

/// Positions of the notes of all members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WaitNotesAt {
    /// First note of the first member.
    pub base: Word,
    /// Distance between the notes of two members, in bytes.
    pub stride: u64,
    /// Number of notes of each member.
    pub entries: u32,
}

impl WaitNotesAt {
    /// Number of words of a note: mark, goal, readers, since.
    pub const WORDS: u64 = 4;
    /// Number of notes of a member.
    pub const ENTRIES: u32 = 64;

    /// Returns the mark of a note; the other words follow.
    pub const fn mark(&self, member: Member, entry: u32) -> Word {
        let words = Self::WORDS * entry as u64;
        Word::at(self.base.offset() + self.stride * member.slot() as u64 + 8 * words)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Load,
    Swap(u64),
    /// Writes this word of the note: 1, 2 or 3.
    Write(u64),
    Mark,
}

/// Writes a note for a waiting thread. Ends with the note, or with `None` if the member has no free note.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WriteNote {
    at: WaitNotesAt,
    me: Member,
    thread: u32,
    goal: [u64; 2],
    since: u64,
    entry: u32,
    claimed: u64,
    pc: Pc,
}

impl WriteNote {
    /// Creates the steps for a thread of `me` that has waited since `since`.
    pub fn new(at: WaitNotesAt, me: Member, thread: u32, goal: WaitGoal, since: u64) -> Self {
        Self { at, me, thread, goal: goal.pack(), since, entry: 0, claimed: 0, pc: Pc::Load }
    }

    const fn word(&self, i: u64) -> Word {
        self.at.mark(self.me, self.entry).plus(i)
    }
}

impl Steps for WriteNote {
    type Out = Option<WrittenNote>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<WrittenNote>> {
        match self.pc {
            Pc::Load if self.entry == self.at.entries => return Some(None),
            Pc::Load => {
                let found = m.load(self.word(0));
                if WaitMark::unpack(found).state == WaitState::Free {
                    self.pc = Pc::Swap(found);
                } else {
                    self.entry += 1;
                }
            }
            Pc::Swap(found) => {
                let sequence = WaitMark::unpack(found).sequence.wrapping_add(1);
                let mark = WaitMark { state: WaitState::Writing, thread: self.thread, sequence };
                self.claimed = mark.pack();
                if m.cas(self.word(0), found, self.claimed).is_ok() {
                    self.pc = Pc::Write(1);
                } else {
                    self.entry += 1;
                    self.pc = Pc::Load;
                }
            }
            Pc::Write(i) => {
                m.store(self.word(i), [self.goal[0], self.goal[1], self.since][i as usize - 1]);
                self.pc = if i < 3 { Pc::Write(i + 1) } else { Pc::Mark };
            }
            Pc::Mark => {
                let mark = WaitMark { state: WaitState::Waiting, ..WaitMark::unpack(self.claimed) };
                m.store(self.word(0), mark.pack());
                return Some(Some(WrittenNote { word: self.word(0), mark }));
            }
        }
        None
    }
}

/// Written note of a waiting thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WrittenNote {
    word: Word,
    mark: WaitMark,
}

impl WrittenNote {
    /// Frees the note. The thread that wrote the note calls this at the end of its wait.
    pub fn take_back<M: Mem + ?Sized>(self, m: &M) {
        m.store(self.word, WaitMark { state: WaitState::Free, ..self.mark }.pack());
    }
}
