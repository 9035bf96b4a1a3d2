//! Exhaustive model of updates of several words. Updates are atomic, even if any process is killed at any
//! access, including processes that complete another process's update. No process waits for a process that is
//! stopped during an update. Real processes run the same steps.

use mp_core::mem::{Column, Steps, Word};
use mp_core::steps::{Update, UpdateAt, UpdateOutcome, UpdatePlan};
use mp_core::words::CurrentUpdate;
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{DeathSnapshot, member};
use mp_models::random::at_random;

const A: Word = Word::at(0);
const B: Word = Word::at(8);
const C: Word = Word::at(16);
const D: Word = Word::at(24);
const AT: UpdateAt =
    UpdateAt { current: Word::at(32), own: Column { base: Word::at(40), stride: 8 * UpdateAt::OWN_WORDS } };
/// Constant sum of the words A and B, and of the words C and D.
const SUM: u64 = 23;
/// Initial value of the words A and C.
const FIRST: u64 = 20;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    /// Decrements C and increments D. No word returns to an earlier value.
    Transfer,
    /// Exchanges A and B. A second exchange restores their earlier values.
    Exchange,
    /// Planted bug: exchanges A and B, but declares that it needs no exclusive access.
    Careless,
}

impl UpdatePlan for Kind {
    fn reads(&self) -> &[Word] {
        match self {
            Kind::Transfer => &[C, D],
            Kind::Exchange | Kind::Careless => &[A, B],
        }
    }
    fn writes(&self, v: &[u64]) -> Vec<(usize, u64)> {
        match self {
            Kind::Transfer => vec![(0, v[0] - 1), (1, v[1] + 1)],
            Kind::Exchange | Kind::Careless => vec![(0, v[1]), (1, v[0])],
        }
    }
    fn exclusive(&self) -> bool {
        *self == Kind::Exchange
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    program: Vec<Kind>,
    transfers: u64,
    exchanges: u64,
    /// Current attempt, with the deaths that were known when the attempt began.
    doing: Option<Update<Kind, DeathSnapshot>>,
}

impl Process {
    fn begin(&self, me: usize, fates: &[Fate]) -> Update<Kind, DeathSnapshot> {
        let known = DeathSnapshot::new(me, fates);
        Update::new(AT, member(me), self.program[0], known)
    }
}

impl Actor for Process {
    type Ghost = ();

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], _: &mut ()) -> bool {
        let mut doing = self.doing.take().unwrap_or_else(|| self.begin(me, fates));
        match doing.step(m) {
            None => self.doing = Some(doing),
            Some(UpdateOutcome::Busy(_)) => {}
            Some(UpdateOutcome::Done(v)) => {
                // The words did not change after they were read, so no partial update may be visible.
                assert_eq!(v[0] + v[1], SUM, "torn: a partial update was read");
                match self.program.remove(0) {
                    Kind::Transfer => self.transfers += 1,
                    Kind::Exchange | Kind::Careless => self.exchanges += 1,
                }
            }
        }
        self.program.is_empty()
    }
}

fn world(programs: &[&[Kind]], lossy: &[Word]) -> World<Process> {
    let mut m = Memory::new(5 + programs.len() * UpdateAt::OWN_WORDS as usize);
    for (first, second) in [(A, B), (C, D)] {
        m.poke(first, FIRST);
        m.poke(second, SUM - FIRST);
    }
    m.lose(lossy.iter().copied());
    let process =
        |program: &&[Kind]| Process { program: program.to_vec(), transfers: 0, exchanges: 0, doing: None };
    World::new(m, programs.iter().map(process).collect(), ())
}

fn explore(world: World<Process>, kills: u32, stops: u32) {
    let end = |w: &World<Process>| {
        // If no running process can complete the update, the next process would.
        if CurrentUpdate::unpack(w.memory.peek(AT.current)).making.is_some() {
            return;
        }
        let [a, b, c, d] = [A, B, C, D].map(|word| w.memory.peek(word));
        assert!(a + b == SUM && c + d == SUM, "torn");
        let sum = |of: fn(&Process) -> u64| w.actors.iter().map(of).sum::<u64>();
        let (transfers, exchanges) = (sum(|p| p.transfers), sum(|p| p.exchanges));
        let lost = w.fates.iter().filter(|f| matches!(f, Fate::Killed | Fate::Stopped)).count() as u64;
        let happened = FIRST - c;
        assert!(transfers <= happened && happened <= transfers + lost, "{transfers}, {happened}");
        if lost == 0 {
            assert_eq!(a == FIRST, exchanges % 2 == 0, "{exchanges} exchanges");
        }
    };
    // A process that needs exclusive access may wait for a stopped process. All other processes never wait.
    let wedged = |w: &World<Process>| {
        let running = || w.actors.iter().zip(&w.fates).filter(|(_, fate)| **fate == Fate::Running);
        let alone = |p: &Process| p.program.first() == Some(&Kind::Exchange);
        let may_wait = w.fates.contains(&Fate::Stopped) && running().any(|(p, _)| alone(p));
        running().next().is_some() && !may_wait
    };
    world.explore(kills, stops, end, wedged);
}

const T: Kind = Kind::Transfer;
const X: Kind = Kind::Exchange;
const BAD: Kind = Kind::Careless;

#[test]
fn updates_of_two_processes_survive_one_kill() {
    explore(world(&[&[T, T], &[T, T]], &[]), 1, 0);
}

#[test]
fn updates_of_three_processes_survive_one_kill() {
    explore(world(&[&[T], &[T], &[T]], &[]), 1, 0);
}

#[test]
fn updates_continue_while_one_of_three_is_stopped() {
    explore(world(&[&[T], &[T], &[T]], &[]), 0, 1);
}

#[test]
fn late_helper_of_an_update_changes_nothing() {
    explore(world(&[&[X, X], &[X, X]], &[]), 1, 0);
}

#[test]
fn exclusive_updates_of_three_processes_are_atomic() {
    explore(world(&[&[X], &[X], &[X]], &[]), 0, 0);
}

#[test]
fn stopped_process_delays_only_exclusive_updates() {
    explore(world(&[&[X, X], &[X, X]], &[]), 0, 1);
    // A process that makes only other updates is never delayed.
    explore(world(&[&[X], &[T, T]], &[]), 0, 1);
}

#[test]
#[should_panic(expected = "torn")]
fn model_finds_torn_unchecked_exclusive_update() {
    explore(world(&[&[BAD, BAD], &[BAD, BAD]], &[]), 0, 0);
}

#[test]
#[should_panic(expected = "torn")]
fn model_finds_torn_unmarked_update() {
    explore(world(&[&[X, X], &[X, X]], &[AT.making(0)]), 0, 0);
}

#[test]
fn updates_hold_in_long_random_schedules() {
    at_random(|| {
        explore(world(&[&[T, X, T, X], &[X, T, X], &[T, T, X], &[X, X, T]], &[]), 2, 0);
        explore(world(&[&[T, T, T], &[T, T], &[T, T, T], &[T, T], &[T]], &[]), 1, 2);
    });
}
