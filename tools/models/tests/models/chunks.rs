//! Exhaustive model of a pool's worker that runs chunks of items. The worker claims items, runs them, and
//! writes their results to its journal. It is killed and stopped at every shared access. Meanwhile the pool
//! takes items back, reads the journal, or condemns the worker (marks it to be killed). Each item has one
//! outcome, and a death costs only the item that the worker was running. Real processes run the same steps.

use std::collections::VecDeque;

use mp_core::mem::{Mem, Steps, Word};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::random::at_random;
use mp_pool::steps::chunk::{
    BeginChunk, ChunkWord, ClaimItem, CondemnWorker, CutChunk, CutShare, FinishItem, ItemPosition, Turn,
};
use mp_pool::steps::journal::{Journal, JournalResults, ReadJournal};

const CHUNK: Word = Word::at(0);
const JOURNAL: Word = Word::at(8);
const WORKER: usize = 0;
const POOL: usize = 1;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// The worker continues without checking whether items were taken back.
    ClaimsWithoutLook,
    /// The worker stores no result.
    KeepsNothing,
    /// The worker restarts its journal before it has sent the results that the journal contains.
    ForgetsBeforeSending,
    /// The pool does not read the journal of a dead worker.
    IgnoresJournal,
    /// The pool assigns the item that the dead worker was running to another worker, too.
    RunsAgain,
    /// The pool condemns the worker for exceeding the time limit of an item, although the item has ended
    /// meanwhile.
    CondemnsWithoutLook,
}

/// Outcome of an item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Outcome {
    Done,
    Lost,
    /// The worker was condemned because of this item.
    TimedOut,
    /// The pool takes the item back for another worker.
    TakenBack,
}

/// Chunk of items that is sent to the worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Sent {
    id: u64,
    count: usize,
    /// Index of the chunk's first item among the items of all chunks.
    first: usize,
}

/// Message of the worker: results of consecutive items.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Reply {
    chunk: u64,
    item: usize,
    values: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    tasks: VecDeque<Sent>,
    replies: VecDeque<Reply>,
    begun: Vec<bool>,
    /// Items that the worker has computed.
    finished: Vec<bool>,
    outcomes: Vec<Option<Outcome>>,
    /// `true` if the worker has found that it is condemned.
    condemned: bool,
}

/// Returns the result of an item. Some results need two words.
fn value(item: usize) -> Vec<u8> {
    vec![item as u8 + 1; 6 + item % 4]
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Working {
    Take,
    /// Stores the remaining words of a change of the journal, and then continues with the next action.
    Store(VecDeque<(Word, u64)>, Then),
    Begin(BeginChunk),
    Run,
    Claim(ClaimItem),
    Finish(FinishItem),
    /// Planted bug: claims the next item without any check.
    Jump,
    Condemned,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Then {
    Begin,
    /// Continue after the result of an item was written to the journal.
    Kept,
    /// Claim the next item, after the results were sent.
    Claim,
    /// Send the results.
    Send,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Worker {
    doing: Working,
    chunk: Sent,
    word: ChunkWord,
    journal: Journal,
    item: usize,
    /// Index of the first item whose result has not been sent.
    from: usize,
    /// Index of the item after which the worker sends its results.
    late: usize,
    bug: Bug,
}

impl Worker {
    fn claim(&self) -> Working {
        if self.bug == Bug::ClaimsWithoutLook {
            Working::Jump
        } else {
            Working::Claim(ClaimItem::new(CHUNK, self.word))
        }
    }

    fn finish(&self) -> Working {
        Working::Finish(FinishItem::new(CHUNK, self.word))
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

    /// Returns the next state after an attempt to claim an item.
    fn turned(&mut self, turn: Turn) -> Working {
        match turn {
            Turn::Go(word) => {
                self.word = word;
                self.item = word.next() - 1;
                Working::Run
            }
            Turn::End(word) => {
                self.word = word;
                self.finish()
            }
            Turn::Condemned => Working::Condemned,
        }
    }

    fn step(&mut self, m: &Memory, ghost: &mut Ghost) -> bool {
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
                        Working::Begin(BeginChunk::new(CHUNK, self.word, self.chunk.id, self.chunk.count))
                    }
                    Then::Kept if self.item + 1 == self.chunk.count => self.finish(),
                    Then::Kept if self.item == self.late => {
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
                    Then::Kept | Then::Claim => self.claim(),
                }
            }
            Working::Begin(begin) => match begin.step(m) {
                None => return false,
                Some(turn) => self.turned(turn),
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
                Some(turn) => self.turned(turn),
            },
            Working::Jump => {
                let next = self.word.next();
                if next == self.chunk.count {
                    self.finish()
                } else {
                    self.word = ChunkWord(self.word.0 + (1 << 16));
                    m.store(CHUNK, self.word.0);
                    self.turned(Turn::Go(self.word))
                }
            }
            Working::Finish(finish) => match finish.step(m) {
                None => return false,
                Some(Turn::Condemned) => Working::Condemned,
                Some(Turn::Go(word) | Turn::End(word)) => {
                    self.word = word;
                    self.send(ghost);
                    Working::Take
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

/// Action of the pool while the worker works.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Act {
    Cut(CutShare),
    Journal,
    /// Condemns the worker, as if a time limit was exceeded.
    Condemn,
}

/// Record of the pool about a chunk that it has sent.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Given {
    sent: Sent,
    reported: usize,
    end: usize,
}

impl Given {
    fn settle(&mut self, items: std::ops::Range<usize>, outcome: Outcome, ghost: &mut Ghost) {
        for item in items {
            let item = self.sent.first + item;
            assert!(
                outcome != Outcome::TakenBack || !ghost.begun[item],
                "item {item} was begun, and runs again"
            );
            assert_eq!(ghost.outcomes[item].replace(outcome), None, "item {item} has two outcomes");
        }
    }

    /// Records results that the worker has sent, or that its journal contains.
    fn report(&mut self, item: usize, values: &[Vec<u8>], ghost: &mut Ghost) {
        for (item, found) in (item..self.end).zip(values).skip(self.reported.saturating_sub(item)) {
            assert_eq!(item, self.reported, "a result is missing");
            assert_eq!(*found, value(self.sent.first + item), "another result");
            self.settle(item..item + 1, Outcome::Done, ghost);
            self.reported = item + 1;
        }
    }

    fn found(&mut self, results: &JournalResults, before: usize, ghost: &mut Ghost) {
        let JournalResults { first, ends, bytes } = results;
        let begins = std::iter::once(0).chain(ends.iter().map(|end| *end as usize));
        let values: Vec<Vec<u8>> =
            begins.zip(ends).map(|(begin, end)| bytes[begin..*end as usize].to_vec()).collect();
        if *first <= self.reported {
            self.report(*first, &values[..values.len().min(before.saturating_sub(*first))], ghost);
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Dispatching {
    Next,
    Cut(CutChunk),
    Journal(ReadJournal),
    Look,
    Condemn(CondemnWorker, u64, usize),
    /// Read the words of the dead worker.
    Bury,
    Left(ChunkWord, Option<ReadJournal>),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Pool {
    doing: Dispatching,
    acts: VecDeque<Act>,
    given: VecDeque<Given>,
    condemned: Option<(u64, usize)>,
    bug: Bug,
}

impl Pool {
    fn hear(&mut self, ghost: &mut Ghost) {
        let Some(Reply { chunk, item, values }) = ghost.replies.pop_front() else { return };
        if let Some(given) = self.given.iter_mut().find(|given| given.sent.id == chunk) {
            given.report(item, &values, ghost);
        }
        self.given.retain(|given| given.reported < given.end);
    }

    /// Assigns an outcome to each item of a dead worker's chunk.
    fn take_apart(&mut self, word: ChunkWord, found: Option<JournalResults>, ghost: &mut Ghost) {
        let Some(mut given) = self.given.pop_front() else { return };
        let over = self.condemned.filter(|(id, _)| *id == given.sent.id).map(|(_, item)| item);
        if let Some(found) = found.filter(|_| self.bug != Bug::IgnoresJournal) {
            given.found(&found, over.unwrap_or(usize::MAX), ghost);
        }
        let mut claimed = word.claimed_before_death(given.sent.id, over, given.reported, given.end);
        if self.bug == Bug::RunsAgain {
            claimed = given.reported;
        }
        let lost = if over.is_some() { Outcome::TimedOut } else { Outcome::Lost };
        given.settle(given.reported..claimed, lost, ghost);
        given.settle(claimed..given.end, Outcome::TakenBack, ghost);
    }

    fn next(&mut self, fates: &[Fate], ghost: &mut Ghost) -> Option<Dispatching> {
        let gone = fates[WORKER].gone();
        if !ghost.replies.is_empty() {
            self.hear(ghost);
        } else if fates[WORKER] == Fate::Killed || gone && self.condemned.is_some() {
            return Some(Dispatching::Bury);
        } else if let Some(at) = self.given.front().map(|given| given.sent.id)
            && let Some(act) = self.acts.pop_front()
        {
            return Some(match act {
                Act::Cut(share) => Dispatching::Cut(CutChunk::new(CHUNK, at, share)),
                Act::Journal => Dispatching::Journal(ReadJournal::new(JOURNAL, at)),
                Act::Condemn => Dispatching::Look,
            });
        } else if gone {
            return None;
        }
        Some(Dispatching::Next)
    }

    fn step(&mut self, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        self.doing = match &mut self.doing {
            Dispatching::Next => match self.next(fates, ghost) {
                Some(doing) => doing,
                None => return true,
            },
            Dispatching::Cut(cut) => match cut.step(m) {
                None => return false,
                Some(from) => {
                    if let (Some(from), Some(given)) = (from, self.given.front_mut()) {
                        let from = from.max(given.reported);
                        given.settle(from..given.end, Outcome::TakenBack, ghost);
                        given.end = from;
                    }
                    self.given.retain(|given| given.reported < given.end);
                    Dispatching::Next
                }
            },
            Dispatching::Journal(read) => match read.step(m) {
                None => return false,
                Some(found) => {
                    if let (Some(found), Some(given)) = (found, self.given.front_mut()) {
                        given.found(&found, usize::MAX, ghost);
                    }
                    self.given.retain(|given| given.reported < given.end);
                    Dispatching::Next
                }
            },
            Dispatching::Look => {
                let word = ChunkWord(m.load(CHUNK));
                let given = &self.given[0];
                let condemn =
                    |item| Dispatching::Condemn(CondemnWorker::new(CHUNK, word), given.sent.id, item);
                match word.place(given.sent.id, given.reported) {
                    ItemPosition::Running(item) => condemn(item),
                    ItemPosition::Next(item) if item < given.end && fates[WORKER] == Fate::Stopped => {
                        condemn(item)
                    }
                    ItemPosition::Next(_) => Dispatching::Next,
                }
            }
            Dispatching::Condemn(condemn, id, item) => {
                let condemned = condemn.step(m).expect("one step");
                if condemned || self.bug == Bug::CondemnsWithoutLook {
                    self.condemned = Some((*id, *item));
                }
                Dispatching::Next
            }
            Dispatching::Bury => {
                // The pool takes back chunks that the worker has not taken.
                for sent in ghost.tasks.drain(..).collect::<Vec<_>>() {
                    let at = self.given.iter().position(|given| given.sent.id == sent.id).expect("given");
                    let mut given = self.given.remove(at).expect("there");
                    given.settle(given.reported..given.end, Outcome::TakenBack, ghost);
                }
                let Some(id) = self.given.front().map(|given| given.sent.id) else { return true };
                let word = ChunkWord(m.load(CHUNK));
                Dispatching::Left(word, word.is_of(id).then(|| ReadJournal::new(JOURNAL, id)))
            }
            Dispatching::Left(word, read) => {
                let word = *word;
                let found = match read {
                    None => None,
                    Some(read) => match read.step(m) {
                        None => return false,
                        Some(found) => found,
                    },
                };
                self.take_apart(word, found, ghost);
                Dispatching::Bury
            }
        };
        false
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Process {
    Worker(Worker),
    Pool(Pool),
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, _me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        match self {
            Process::Worker(worker) => worker.step(m, ghost),
            Process::Pool(pool) => pool.step(m, fates, ghost),
        }
    }
}

/// Explores a worker and a pool, with one chunk for each number of items in `counts`. The worker sends
/// results after item `late`, and at the end. Worlds in which the pool is killed or stopped are not checked,
/// because its workers end with it.
fn explore(counts: &[usize], late: usize, acts: &[Act], (kills, stops): (u32, u32), bug: Bug) {
    let mut ghost = Ghost::default();
    let mut items = 0;
    for (id, &count) in (1..).zip(counts) {
        ghost.tasks.push_back(Sent { id, count, first: items });
        items += count;
    }
    (ghost.begun, ghost.finished, ghost.outcomes) =
        (vec![false; items], vec![false; items], vec![None; items]);
    let given =
        ghost.tasks.iter().map(|&sent| Given { sent, reported: 0, end: sent.count }).collect::<VecDeque<_>>();
    let worker = Worker {
        doing: Working::Take,
        chunk: ghost.tasks[0],
        word: ChunkWord::default(),
        journal: Journal::new(JOURNAL),
        item: 0,
        from: 0,
        late,
        bug,
    };
    let pool =
        Pool { doing: Dispatching::Next, acts: acts.iter().copied().collect(), given, condemned: None, bug };
    let world = World::new(Memory::new(64), vec![Process::Worker(worker), Process::Pool(pool)], ghost);
    let end = |w: &World<Process>| {
        if w.fates[POOL] != Fate::Ended {
            return;
        }
        let Ghost { begun, finished, outcomes, .. } = &w.ghost;
        let of = |outcome| outcomes.iter().filter(|found| **found == Some(outcome)).count();
        let lost = of(Outcome::Lost) + of(Outcome::TimedOut);
        assert!(lost <= 1, "a death costs {lost} items");
        let Process::Pool(pool) = &w.actors[POOL] else { unreachable!() };
        let dead = w.fates[WORKER] == Fate::Killed || pool.condemned.is_some();
        assert!(lost == 0 || dead, "an item is lost, and no worker has died");
        for (item, outcome) in outcomes.iter().enumerate() {
            match outcome {
                None => assert!(w.fates[WORKER] == Fate::Stopped && !dead, "item {item} has no outcome"),
                Some(Outcome::Done) => assert!(finished[item], "item {item} was not done"),
                Some(Outcome::TakenBack) => assert!(!begun[item], "item {item} was begun, and runs again"),
                Some(Outcome::Lost | Outcome::TimedOut) => {
                    let later = begun[item + 1..].iter().any(|begun| *begun);
                    assert!(!later, "item {item} was done, and is lost");
                }
            }
        }
    };
    // The pool waits for a running worker, and ends.
    world.explore(kills, stops, end, |w| w.fates[POOL] == Fate::Running);
}

/// Actions of the pool on a worker that has not exceeded its time limit.
const ALL: [Act; 4] = [Act::Cut(CutShare::Half), Act::Journal, Act::Cut(CutShare::All), Act::Journal];

#[test]
fn stolen_chunk_items_have_one_outcome_each() {
    for late in 0..3 {
        explore(&[4, 2], late, &ALL, (0, 0), Bug::None);
        explore(&[4, 2], late, &[Act::Cut(CutShare::All), Act::Cut(CutShare::Half)], (0, 0), Bug::None);
    }
}

#[test]
fn killed_worker_loses_only_its_current_chunk_item() {
    for late in 0..3 {
        explore(&[3, 2], late, &[], (1, 0), Bug::None);
        explore(&[3, 2], late, &ALL, (1, 0), Bug::None);
    }
}

#[test]
fn stopped_worker_keeps_only_its_begun_chunk_item() {
    for late in 0..3 {
        explore(&[3, 2], late, &ALL, (0, 1), Bug::None);
        explore(&[3, 2], late, &ALL, (1, 1), Bug::None);
    }
}

#[test]
fn condemned_worker_loses_only_its_timed_out_item() {
    for late in 0..3 {
        let later = &[Act::Condemn, Act::Cut(CutShare::All), Act::Condemn, Act::Journal];
        for acts in [&[Act::Condemn][..], later] {
            explore(&[3, 2], late, acts, (0, 0), Bug::None);
            explore(&[3, 2], late, acts, (1, 1), Bug::None);
        }
    }
}

#[test]
fn chunk_outcomes_hold_in_long_random_schedules() {
    at_random(|| {
        let acts = [ALL.as_slice(), &[Act::Condemn], &ALL, &[Act::Condemn]].concat();
        explore(&[9, 1, 5, 7], 2, &acts, (1, 1), Bug::None);
        explore(&[9, 1, 5, 7], 9, &acts, (1, 1), Bug::None);
    });
}

#[test]
#[should_panic(expected = "was taken back, and runs")]
fn model_finds_claim_of_a_stolen_chunk_item() {
    explore(&[4], 9, &[Act::Cut(CutShare::All)], (0, 0), Bug::ClaimsWithoutLook);
}

#[test]
#[should_panic(expected = "a death costs 2 items")]
fn model_finds_unsaved_chunk_result() {
    explore(&[3], 9, &[], (1, 0), Bug::KeepsNothing);
}

#[test]
#[should_panic(expected = "a death costs 2 items")]
fn model_finds_journal_restarted_before_sending() {
    explore(&[3], 1, &[], (1, 0), Bug::ForgetsBeforeSending);
}

#[test]
#[should_panic(expected = "a death costs 2 items")]
fn model_finds_unread_journal_of_a_dead_worker() {
    explore(&[3], 9, &[], (1, 0), Bug::IgnoresJournal);
}

#[test]
#[should_panic(expected = "was begun, and runs again")]
fn model_finds_item_run_again_after_worker_death() {
    explore(&[3], 9, &[], (1, 0), Bug::RunsAgain);
}

#[test]
#[should_panic(expected = "a death costs 2 items")]
fn model_finds_worker_condemned_for_an_ended_item() {
    explore(&[3], 9, &[Act::Condemn], (1, 0), Bug::CondemnsWithoutLook);
}
