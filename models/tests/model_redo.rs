//! The lock with a redo record, exhaustively: two words change together, whoever is killed at whichever access, the one
//! that repairs included. The steps are the ones that run in processes.

use mp_core::mem::{Steps, Word};
use mp_core::steps::{Plan, Redo, RedoAt, RedoEnd};
use mp_core::words::{Member, Seat};
use mp_models::explore::{Actor, Fate, Memory, World};

const A: Word = Word::at(0);
const B: Word = Word::at(8);
const READS: [Word; 2] = [A, B];
const LOCK: RedoAt = RedoAt { lock: Word::at(16) };
const FLAG: Word = Word::at(24);
const START: u64 = 10;

/// Moves one from A to B.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Transfer;

impl Plan for Transfer {
    fn reads(&self) -> &[Word] {
        &READS
    }
    fn writes(&self, v: &[u64]) -> Vec<(Word, u64)> {
        assert_eq!(v[0] + v[1], START, "torn, and seen under the lock");
        vec![(A, v[0] - 1), (B, v[1] + 1)]
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    left: u32,
    done: u64,
    /// Who was dead when the present attempt began.
    doing: Option<Redo<Transfer, Dead>>,
}

/// Who is dead, as far as one process knows: a bit for each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Dead(u8);

impl Process {
    fn begin(&self, me: usize, fates: &[Fate]) -> Redo<Transfer, Dead> {
        let bits = fates.iter().enumerate().filter(|(_, f)| **f == Fate::Killed);
        let dead = Dead(bits.map(|(i, _)| 1 << i).sum());
        Redo::new(LOCK, Member::new(me as u32, 1), Transfer, dead)
    }
}

impl mp_core::steps::Oracle for Dead {
    fn is_dead(&self, m: Member) -> bool {
        self.0 >> m.slot() & 1 == 1
    }
}

impl Actor for Process {
    type Ghost = ();

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], _: &mut ()) -> bool {
        let mut doing = self.doing.take().unwrap_or_else(|| self.begin(me, fates));
        match doing.step(m) {
            None => self.doing = Some(doing),
            Some(RedoEnd::Held(_)) => {}
            Some(RedoEnd::Done(_)) => {
                self.done += 1;
                self.left -= 1;
            }
        }
        self.left == 0
    }
}

fn explore(processes: usize, times: u32, kills: u32, lossy: &[Word]) {
    let mut m = Memory::new(2 + RedoAt::WORDS as usize);
    m.poke(A, START);
    m.lose(lossy.iter().copied());
    let world = World::new(m, vec![Process { left: times, done: 0, doing: None }; processes], ());
    let end = |w: &World<Process>| {
        let (a, b, flag) = (w.memory.peek(A), w.memory.peek(B), w.memory.peek(FLAG));
        if flag == 0 && Seat::unpack(w.memory.peek(LOCK.lock)) == Seat::Free {
            assert_eq!(a + b, START, "torn");
        }
        if flag == 0 {
            let done: u64 = w.actors.iter().map(|p| p.done).sum();
            let killed = w.count(0..processes, Fate::Killed) as u64;
            let happened = START - a;
            assert!(done <= happened && happened <= done + killed, "{done} done, {happened} happened");
        }
    };
    let explored = world.explore(kills, 0, end, |w| w.fates.contains(&Fate::Running));
    println!("{} states, {} ends", explored.states, explored.ends);
    assert!(explored.ends > 0);
}

#[test]
fn two_processes_one_kill() {
    explore(2, 2, 1, &[]);
}

#[test]
fn three_processes_two_kills() {
    explore(3, 1, 2, &[]);
}

#[test]
fn a_repair_that_is_killed_is_repaired() {
    explore(3, 1, 3, &[]);
}

#[test]
#[should_panic(expected = "torn")]
fn without_the_flag_it_is_torn() {
    explore(2, 1, 1, &[FLAG]);
}
