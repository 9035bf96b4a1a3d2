//! The worker: it takes chunks, and claims, runs and journals their items, one shared access at a time.

use std::collections::VecDeque;

use mp_core::mem::{Mem, Steps, Word};
use mp_models::explore::Memory;
use mp_pool::steps::chunk::{Begin, ChunkWord, Claim, Finish, Turn};
use mp_pool::steps::journal::Journal;

use super::{Bug, CHUNK, Ghost, Outcome, Reply, Sent, value};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Working {
    Take,
    /// Words of the journal that are still to be stored, and what comes then.
    Store(VecDeque<(Word, u64)>, Then),
    Begin(Begin),
    Run,
    Claim(Claim),
    Finish(Finish),
    /// A claim that looks at nothing.
    Jump,
    Condemned,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Then {
    Begin,
    /// The result of the item is in the journal.
    Kept,
    /// Results are sent, and the item after them is claimed.
    Claim,
    /// What it has is sent.
    Send,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Worker {
    pub(super) doing: Working,
    pub(super) chunk: Sent,
    pub(super) word: ChunkWord,
    pub(super) journal: Journal,
    pub(super) item: usize,
    /// Results from this item on are not sent.
    pub(super) from: usize,
    /// How it works.
    pub(super) way: Way,
    pub(super) bug: Bug,
}

/// How a worker works.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Way {
    /// After this item it sends what it has.
    pub(super) late: usize,
    /// How many items it claims at a time.
    pub(super) most: usize,
    /// After item `late` it ends, as after an interrupt.
    pub(super) leaves: bool,
}

impl Way {
    /// One item at a time; results are sent after item `late`, and at the end.
    pub(super) const fn one(late: usize) -> Way {
        Way { late, most: 1, leaves: false }
    }
}

impl Worker {
    fn claim(&self) -> Working {
        if self.bug == Bug::ClaimsWithoutLook {
            Working::Jump
        } else {
            Working::Claim(Claim::new(CHUNK, self.word, self.item + 1, self.way.most))
        }
    }

    fn finish(&self) -> Working {
        Working::Finish(Finish::new(CHUNK, self.word, self.item + 1))
    }

    /// The results are in the journal, the item is claimed or will be.
    fn goes_on(&mut self) -> Working {
        if self.item + 1 < self.word.next() {
            self.item += 1;
            return Working::Run;
        }
        self.claim()
    }

    fn keep(&mut self) -> Working {
        let mut stores = VecDeque::new();
        let room = self.journal.append(&value(self.chunk.first + self.item), |w, v| stores.push_back((w, v)));
        assert!(room);
        if self.bug == Bug::KeepsNothing {
            stores.clear();
        }
        Working::Store(stores, Then::Kept)
    }

    fn anew(&mut self, item: usize, then: Then) -> Working {
        let mut stores = VecDeque::new();
        self.journal.begin(self.chunk.id, item, |w, v| stores.push_back((w, v)));
        Working::Store(stores, then)
    }

    fn send(&mut self, ghost: &mut Ghost) {
        let first = self.chunk.first;
        if self.from <= self.item {
            let values = (self.from..=self.item).map(|item| value(first + item)).collect();
            ghost.replies.push_back(Reply { chunk: self.chunk.id, item: self.from, values });
        }
        self.from = self.item + 1;
    }

    /// The item was claimed, by this word.
    fn turned(&mut self, turn: Turn, item: usize) -> Working {
        match turn {
            Turn::Go(word) => {
                self.word = word;
                self.item = item;
                Working::Run
            }
            Turn::End(word) => {
                self.word = word;
                self.finish()
            }
            Turn::Condemned => Working::Condemned,
        }
    }

    pub(super) fn step(&mut self, m: &Memory, ghost: &mut Ghost) -> bool {
        self.doing = match &mut self.doing {
            Working::Take => {
                let Some(chunk) = ghost.tasks.pop_front() else { return true };
                (self.chunk, self.item, self.from) = (chunk, 0, 0);
                self.anew(0, Then::Begin)
            }
            Working::Store(stores, then) => {
                if let Some((w, v)) = stores.pop_front() {
                    m.store(w, v);
                    return false;
                }
                match then {
                    Then::Begin => {
                        Working::Begin(Begin::new(CHUNK, self.word, self.chunk.id, self.chunk.count))
                    }
                    Then::Kept if self.item + 1 == self.chunk.count => self.finish(),
                    // What it has claimed it gives back first.
                    Then::Kept if self.item == self.way.late && (self.way.most > 1 || self.way.leaves) => {
                        self.finish()
                    }
                    Then::Kept if self.item == self.way.late => {
                        if self.bug == Bug::ForgetsBeforeSending {
                            self.anew(self.item + 1, Then::Send)
                        } else {
                            self.send(ghost);
                            self.anew(self.item + 1, Then::Claim)
                        }
                    }
                    Then::Send => {
                        self.send(ghost);
                        self.claim()
                    }
                    Then::Kept => self.goes_on(),
                    Then::Claim => self.claim(),
                }
            }
            Working::Begin(begin) => match begin.step(m) {
                None => return false,
                Some(turn) => self.turned(turn, 0),
            },
            Working::Run => {
                let item = self.chunk.first + self.item;
                assert!(!std::mem::replace(&mut ghost.begun[item], true), "item {item} runs twice");
                assert_ne!(
                    ghost.outcomes[item],
                    Some(Outcome::TakenBack),
                    "item {item} was taken back, and runs"
                );
                ghost.finished[item] = true;
                self.keep()
            }
            Working::Claim(claim) => match claim.step(m) {
                None => return false,
                Some(turn) => self.turned(turn, self.item + 1),
            },
            Working::Jump => {
                let next = self.word.next();
                if next == self.chunk.count {
                    self.finish()
                } else {
                    self.word = ChunkWord(self.word.0 + (1 << 16));
                    m.store(CHUNK, self.word.0);
                    self.turned(Turn::Go(self.word), next)
                }
            }
            Working::Finish(finish) => match finish.step(m) {
                None => return false,
                Some(Turn::Condemned) => Working::Condemned,
                Some(Turn::Go(word) | Turn::End(word)) => {
                    self.word = word;
                    self.send(ghost);
                    let is_late = self.item == self.way.late && self.item + 1 < word.end();
                    if is_late && self.way.leaves {
                        return true;
                    }
                    if is_late && self.way.most > 1 {
                        self.anew(self.item + 1, Then::Claim)
                    } else {
                        Working::Take
                    }
                }
            },
            Working::Condemned => {
                ghost.condemned = true;
                return true;
            }
        };
        false
    }
}
