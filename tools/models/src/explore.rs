//! Exhaustive exploration of all schedules of a small world of processes that share memory.
//!
//! A world is a memory and a few actors. Each actor makes at most one shared access in each step (this is
//! checked). From each state, the explorer tries the next step of each actor. It also tries to kill and to
//! stop each actor, up to given numbers of kills and stops. States are stored as 128-bit hashes. Finally the
//! explorer searches for states from which no end can be reached: in these states, an actor waits forever.

use std::cell::Cell;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use mp_core::mem::{Mem, Word};

use crate::digest::{ByDigest, digest};
use crate::random;

/// Sequentially consistent memory of a world. Planted bugs make it lose writes to some words.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    words: Vec<Cell<u64>>,
    lossy: Vec<Word>,
    no_additions: bool,
    accesses: Cell<u32>,
}

impl PartialEq for Memory {
    fn eq(&self, other: &Self) -> bool {
        self.words == other.words
    }
}
impl Eq for Memory {}

impl Hash for Memory {
    fn hash<H: Hasher>(&self, h: &mut H) {
        self.words.iter().for_each(|w| w.get().hash(h));
    }
}

impl Memory {
    /// Creates a memory of `len` words, all 0.
    pub fn new(len: usize) -> Self {
        Self { words: vec![Cell::new(0); len], ..Self::default() }
    }

    /// Makes later writes to these words have no effect, to plant a bug.
    pub fn lose(&mut self, words: impl IntoIterator<Item = Word>) {
        self.lossy.extend(words);
    }

    /// Makes later additions to any word have no effect, to plant a bug.
    pub fn lose_additions(&mut self) {
        self.no_additions = true;
    }

    /// Reads a word for a check, without counting an access.
    pub fn peek(&self, w: Word) -> u64 {
        self.words[(w.offset() / 8) as usize].get()
    }

    /// Writes a word for the initial state, without counting an access.
    pub fn poke(&self, w: Word, v: u64) {
        self.words[(w.offset() / 8) as usize].set(v);
    }

    fn access(&self, w: Word) -> u64 {
        self.accesses.set(self.accesses.get() + 1);
        self.peek(w)
    }

    fn change(&self, w: Word, v: u64) {
        if !self.lossy.contains(&w) {
            self.poke(w, v);
        }
    }
}

impl Mem for Memory {
    fn load(&self, w: Word) -> u64 {
        self.access(w)
    }
    fn load_relaxed(&self, w: Word) -> u64 {
        self.access(w)
    }
    fn store(&self, w: Word, v: u64) {
        self.access(w);
        self.change(w, v);
    }
    fn store_relaxed(&self, w: Word, v: u64) {
        self.store(w, v);
    }
    fn cas(&self, w: Word, old: u64, new: u64) -> Result<(), u64> {
        match self.access(w) {
            v if v == old => {
                self.change(w, new);
                Ok(())
            }
            v => Err(v),
        }
    }
    fn add(&self, w: Word, v: u64) -> u64 {
        let old = self.access(w);
        if !self.no_additions {
            self.change(w, old.wrapping_add(v));
        }
        old
    }
    fn or(&self, w: Word, v: u64) -> u64 {
        let old = self.access(w);
        self.change(w, old | v);
        old
    }
    fn and(&self, w: Word, v: u64) -> u64 {
        let old = self.access(w);
        self.change(w, old & v);
        old
    }
    fn has_pairs(&self) -> bool {
        true
    }
    fn cas_pair(&self, w: Word, old: [u64; 2], new: [u64; 2]) -> bool {
        let same = self.access(w) == old[0] && self.peek(w.plus(1)) == old[1];
        if same {
            self.change(w, new[0]);
            self.change(w.plus(1), new[1]);
        }
        same
    }
    fn fence_after_rmw(&self) {}
}

/// Condition of an actor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fate {
    /// The actor continues.
    Running,
    /// The actor has ended.
    Ended,
    /// The actor was killed: it never continues, and other actors can detect its death.
    Killed,
    /// The actor was stopped forever: it never continues, and other actors can't detect the stop.
    Stopped,
}

impl Fate {
    /// Returns `true` if the actor has ended, was killed or was stopped.
    pub fn gone(self) -> bool {
        self != Self::Running
    }
}

/// Process of a world.
pub trait Actor: Clone + Eq + Hash + std::fmt::Debug {
    /// State for checks, which the steps of actors must not depend on.
    type Ghost: Clone + Eq + Hash + std::fmt::Debug;

    /// Makes one step of this actor, whose index is `me`. `fates` contains the conditions of all actors.
    /// Returns `true` if this actor has ended.
    fn step(&mut self, me: usize, memory: &Memory, fates: &[Fate], ghost: &mut Self::Ghost) -> bool;
}

/// State of a world.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World<A: Actor> {
    /// Shared memory.
    pub memory: Memory,
    /// Processes.
    pub actors: Vec<A>,
    /// Conditions of the processes.
    pub fates: Vec<Fate>,
    /// State for checks.
    pub ghost: A::Ghost,
    kills: u32,
    stops: u32,
}

/// Result of an exploration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explored {
    /// Number of states, or of steps in random schedules.
    pub states: usize,
    /// Number of ends: states in which no actor runs.
    pub ends: usize,
}

impl<A: Actor> World<A> {
    /// Creates a world in its initial state.
    pub fn new(memory: Memory, actors: Vec<A>, ghost: A::Ghost) -> Self {
        let fates = vec![Fate::Running; actors.len()];
        Self { memory, actors, fates, ghost, kills: 0, stops: 0 }
    }

    /// Returns the number of actors in `range` with this condition.
    pub fn count(&self, range: std::ops::Range<usize>, fate: Fate) -> usize {
        self.fates[range].iter().filter(|&&f| f == fate).count()
    }

    /// Kills or stops actor `i`, according to `fate`. Returns `false` if `most` actors were already killed or
    /// stopped.
    pub(crate) fn fault(&mut self, i: usize, fate: Fate, most: u32) -> bool {
        let count = if fate == Fate::Killed { &mut self.kills } else { &mut self.stops };
        let may = *count < most;
        if may {
            *count += 1;
            self.fates[i] = fate;
        }
        may
    }

    /// Makes one step of actor `i`.
    pub fn step(&mut self, i: usize) {
        self.memory.accesses.set(0);
        let ended = self.actors[i].step(i, &self.memory, &self.fates, &mut self.ghost);
        assert!(self.memory.accesses.get() <= 1, "a step with {} accesses", self.memory.accesses.get());
        if ended {
            self.fates[i] = Fate::Ended;
        }
    }

    /// Explores all schedules with up to `kills` kills and `stops` stops. Inside of
    /// [`at_random`](crate::random::at_random), explores random schedules instead.
    ///
    /// `end` checks each end, which is a state in which no actor runs. `wedged` is called for each state, and
    /// returns `true` if it is an error that no end can be reached from the state. (For example, it is not an
    /// error if all consumers are dead.) Prints the numbers of states and ends.
    ///
    /// # Panics
    /// Panics if a check fails, if no end can be reached from a state for which `wedged` returns `true`, or
    /// if there is no end.
    pub fn explore(
        self,
        kills: u32,
        stops: u32,
        end: impl Fn(&Self),
        wedged: impl Fn(&Self) -> bool,
    ) -> Explored {
        let explored = match random::is_on() {
            true => random::play(&self, (kills, stops), end, wedged),
            false => self.explore_all((kills, stops), end, wedged),
        };
        println!("{} states, {} ends", explored.states, explored.ends);
        assert!(explored.ends > 0, "no end was reached");
        explored
    }

    fn explore_all(
        self,
        (kills, stops): (u32, u32),
        end: impl Fn(&Self),
        wedged: impl Fn(&Self) -> bool,
    ) -> Explored {
        let mut index: ByDigest<u32> = ByDigest::default();
        // Backward steps, and for each state whether it is an error to be stuck in it.
        let mut back: Vec<(u32, u32)> = Vec::new();
        let mut wrong: Vec<bool> = Vec::new();
        let mut ends: Vec<u32> = Vec::new();
        let mut queue = VecDeque::new();
        index.insert(digest(&self), 0);
        wrong.push(wedged(&self));
        queue.push_back((0_u32, self));
        while let Some((i, mut state)) = queue.pop_front() {
            if !state.fates.contains(&Fate::Running) {
                end(&state);
                ends.push(i);
                continue;
            }
            let mut visit = |next: &Self| {
                let fresh = index.len() as u32;
                let j = *index.entry(digest(next)).or_insert(fresh);
                if j == fresh {
                    wrong.push(wedged(next));
                }
                (j, j == fresh)
            };
            for actor in 0..state.actors.len() {
                if state.fates[actor] != Fate::Running {
                    continue;
                }
                let mut next = state.clone();
                next.step(actor);
                let (j, is_fresh) = visit(&next);
                back.push((j, i));
                if is_fresh {
                    queue.push_back((j, next));
                }
                // Most of these states are already known. Only new states are copied.
                for (fate, most) in [(Fate::Killed, kills), (Fate::Stopped, stops)] {
                    let before = (state.kills, state.stops);
                    if state.fault(actor, fate, most) {
                        let (j, is_fresh) = visit(&state);
                        if is_fresh {
                            queue.push_back((j, state.clone()));
                        }
                        (state.kills, state.stops) = before;
                        state.fates[actor] = Fate::Running;
                    }
                }
            }
        }
        let stuck = stuck(&back, &ends, wrong.len());
        let bad = stuck.iter().filter(|&&i| wrong[i]).count();
        assert!(bad == 0, "{bad} of {} states are wedged", wrong.len());
        Explored { states: wrong.len(), ends: ends.len() }
    }
}

/// Returns the states from which no end can be reached. `back` contains the steps between states as `(to,
/// from)`.
fn stuck(back: &[(u32, u32)], ends: &[u32], states: usize) -> Vec<usize> {
    // The steps into state `i` are `from[begins[i]..begins[i + 1]]`.
    let mut begins = vec![0_u32; states + 1];
    back.iter().for_each(|&(to, _)| begins[to as usize + 1] += 1);
    (0..states).for_each(|i| begins[i + 1] += begins[i]);
    let mut from = vec![0_u32; back.len()];
    let mut next = begins.clone();
    for &(to, i) in back {
        let place = &mut next[to as usize];
        from[*place as usize] = i;
        *place += 1;
    }
    let mut fine = vec![false; states];
    let mut todo = ends.to_vec();
    todo.iter().for_each(|&i| fine[i as usize] = true);
    while let Some(i) = todo.pop() {
        for &j in &from[begins[i as usize] as usize..begins[i as usize + 1] as usize] {
            if !std::mem::replace(&mut fine[j as usize], true) {
                todo.push(j);
            }
        }
    }
    (0..states).filter(|&i| !fine[i]).collect()
}
