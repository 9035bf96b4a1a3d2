//! Long random schedules, for worlds with too many schedules to explore exhaustively.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::explore::{Actor, Explored, Fate, World};

/// Number of random schedules of each world.
const CASES: u32 = 300;
/// Largest number of random choices in a schedule. After them, all actors continue until they end.
const CHOICES: usize = 400;
/// Number of turns after the random choices, after which the actors count as stuck.
const MOST_TURNS: u32 = 20_000;

thread_local!(static AT_RANDOM: Cell<bool> = const { Cell::new(false) });

/// Runs `test` with random schedules instead of exhaustive exploration on this thread, so that its worlds may
/// be larger.
pub fn at_random(test: impl FnOnce()) {
    struct ResetOnDrop;
    impl Drop for ResetOnDrop {
        fn drop(&mut self) {
            AT_RANDOM.set(false);
        }
    }
    let _reset = ResetOnDrop;
    AT_RANDOM.set(true);
    test();
}

pub(crate) fn is_on() -> bool {
    AT_RANDOM.get()
}

/// Runs random schedules with up to `kills` kills and `stops` stops. Prints the shortest schedule that fails.
pub(crate) fn play<A: Actor>(
    world: &World<A>,
    (kills, stops): (u32, u32),
    end: impl Fn(&World<A>),
    wedged: impl Fn(&World<A>) -> bool,
) -> Explored {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let (steps, ends) = (Cell::new(0), Cell::new(0));
    let schedules = proptest::collection::vec(any::<u16>(), 0..CHOICES);
    let played = runner.run(&schedules, |choices| {
        let mut played = Played { world: world.clone(), steps: 0 };
        choices.into_iter().for_each(|choice| played.choose(choice, kills, stops));
        if played.goes_on() {
            end(&played.world);
            ends.set(ends.get() + 1);
        } else {
            assert!(!wedged(&played.world), "wedged: {:?}", played.world.fates);
        }
        steps.set(steps.get() + played.steps);
        Ok(())
    });
    if let Err(error) = played {
        panic!("{error}");
    }
    Explored { states: steps.get(), ends: ends.get() }
}

struct Played<A: Actor> {
    world: World<A>,
    steps: usize,
}

impl<A: Actor> Played<A> {
    fn running(&self) -> Vec<usize> {
        (0..self.world.actors.len()).filter(|&i| self.world.fates[i] == Fate::Running).collect()
    }

    /// Applies a choice. The lower byte selects the actor, the upper byte the action: a step, several steps,
    /// a kill or a stop.
    fn choose(&mut self, choice: u16, kills: u32, stops: u32) {
        let running = self.running();
        let [who, what] = choice.to_le_bytes();
        let Some(&i) = running.get(usize::from(who) % running.len().max(1)) else { return };
        match what {
            0..4 if self.world.fault(i, Fate::Killed, kills) => {}
            4..8 if self.world.fault(i, Fate::Stopped, stops) => {}
            0..200 => self.steps(i, 1),
            200..250 => self.steps(i, 5),
            _ => self.steps(i, 20),
        }
    }

    fn steps(&mut self, i: usize, n: usize) {
        for _ in 0..n {
            if self.world.fates[i] == Fate::Running {
                self.world.step(i);
                self.steps += 1;
            }
        }
    }

    /// Continues the actors in turns of random lengths. Returns `true` if all of them end.
    fn goes_on(&mut self) -> bool {
        // A generator of full period, so every order of turns occurs.
        let mut random = 1_u32;
        for _ in 0..MOST_TURNS {
            let running = self.running();
            if running.is_empty() {
                return true;
            }
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (who, turns) = (random >> 16, random >> 24 & 7);
            self.steps(running[who as usize % running.len()], 1 + turns as usize);
        }
        false
    }
}
