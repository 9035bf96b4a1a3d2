//! Random schedules, and their execution.

use std::collections::HashSet;

use mp_core::words::Holder;
use mp_models::explore::{Fate, World};
use mp_models::ring::{ENVELOPES, MAX_ACTORS, MAX_SLOTS, chain, find_remains, intent, memory, owner};
use proptest::prelude::*;

use super::actor::{Doing, Ghost, Process, Role};

/// Index of the actor that recovers and reclaims at the end. The schedules control the four other actors.
pub const LAST_SWEEPER: usize = 4;

#[derive(Clone, Debug)]
enum Event {
    Steps(usize, u32),
    Kill(usize),
    Stop(usize),
    Resume(usize),
}

#[derive(Clone, Debug)]
pub struct Case {
    slots: u32,
    messages: u32,
    roles: usize,
    events: Vec<Event>,
}

/// Role of a producer. The number of messages is set for each case.
const P: Role = Role::Producer { messages: 0 };
const CASTS: [[Role; 4]; 6] = [
    [P, P, Role::Consumer, Role::Consumer],
    [P, P, Role::Consumer, Role::Recoverer],
    [P, Role::Consumer, Role::Consumer, Role::Recoverer],
    [P, P, Role::Consumer, Role::Closer],
    [P, Role::Consumer, Role::Recoverer, Role::Recoverer],
    [P, Role::Consumer, Role::Closer, Role::Recoverer],
];

pub fn case() -> impl Strategy<Value = Case> {
    let event = prop_oneof![
        30 => (0..4_usize, 1..15_u32).prop_map(|(a, n)| Event::Steps(a, n)),
        1 => (0..4_usize).prop_map(Event::Kill),
        2 => (0..4_usize).prop_map(Event::Stop),
        2 => (0..4_usize).prop_map(Event::Resume),
    ];
    let events = proptest::collection::vec(event, 0..300);
    (1..=MAX_SLOTS, 1..=30_u32, 0..CASTS.len(), events).prop_map(|(slots, messages, roles, events)| Case {
        slots,
        messages,
        roles,
        events,
    })
}

pub fn world(case: &Case) -> World<Process> {
    let chain = chain(case.slots, 0);
    // The laps begin shortly before their wrap, so that they wrap.
    let (ring, m) = (chain.first, memory(&chain, (1 << 38) - 2));
    let cast = CASTS[case.roles];
    let producers = cast.iter().filter(|&&role| role == P).count() as u32;
    let role = |role| match role {
        Role::Producer { .. } => Role::Producer { messages: case.messages / producers },
        other => other,
    };
    let process = |r| Process { role: role(r), ring, made: 0, doing: Doing::Start };
    let actors = cast.into_iter().chain([Role::Recoverer]).map(process).collect();
    World::new(m, actors, Ghost { content: vec![None; ENVELOPES as usize], ..Ghost::default() })
}

/// Makes steps of an actor while `go_on` returns `true`. Panics after too many steps.
fn drive(w: &mut World<Process>, actor: usize, go_on: impl Fn(&World<Process>) -> bool) {
    for _ in 0..10_000 {
        if w.fates[actor] != Fate::Running || !go_on(w) {
            return;
        }
        w.step(actor);
    }
    panic!("actor {actor} does not end");
}

pub fn play(case: &Case, mut w: World<Process>) -> Ghost {
    let mut stopped = HashSet::new();
    for event in &case.events {
        match *event {
            Event::Steps(a, n) => (0..n).for_each(|_| {
                if w.fates[a] == Fate::Running && !stopped.contains(&a) {
                    w.step(a);
                }
            }),
            Event::Kill(a) if w.fates[a] == Fate::Running => w.fates[a] = Fate::Killed,
            Event::Kill(_) => {}
            Event::Stop(a) => drop(stopped.insert(a)),
            Event::Resume(a) => drop(stopped.remove(&a)),
        }
    }
    // No actor is stopped, and all living actors run in turns.
    let made = |w: &World<Process>| w.actors.iter().map(|p| p.made).sum::<u32>();
    for _ in 0..3000 {
        (0..LAST_SWEEPER).for_each(|a| {
            if w.fates[a] == Fate::Running {
                w.step(a);
            }
        });
    }
    let all = |w: &World<Process>, role: Role, fate: Fate| {
        (0..LAST_SWEEPER).filter(|&a| w.actors[a].role == role && w.fates[a] == fate).count()
    };
    let killed = all(&w, Role::Consumer, Fate::Killed);
    let alive = all(&w, Role::Consumer, Fate::Running) + all(&w, Role::Consumer, Fate::Ended) > 0;
    let reclaimed = all(&w, Role::Recoverer, Fate::Running) > 0;
    if alive && (reclaimed || !w.fates.contains(&Fate::Killed)) {
        for a in 0..LAST_SWEEPER {
            let role = w.actors[a].role;
            let done = w.fates[a] != Fate::Running || !matches!(role, Role::Producer { .. } | Role::Closer);
            assert!(done, "{role:?} is not done");
        }
        assert!(w.ghost.queue.is_empty(), "messages are left though an actor takes them");
    }
    // The four actors end. Then the last actor recovers, reclaims, and takes the remaining messages.
    let cut_short = all(&w, Role::Consumer, Fate::Running);
    for fate in w.fates[..LAST_SWEEPER].iter_mut().filter(|fate| **fate == Fate::Running) {
        *fate = Fate::Killed;
    }
    let busy = |w: &World<Process>| {
        let p = &w.actors[LAST_SWEEPER];
        p.doing != Doing::Start || find_remains(&w.memory, &w.fates).is_some()
    };
    drive(&mut w, LAST_SWEEPER, busy);
    w.actors[LAST_SWEEPER].role = Role::Consumer;
    drive(&mut w, LAST_SWEEPER, |_| true);

    let g = &w.ghost;
    let unique: HashSet<_> = g.received.iter().collect();
    assert_eq!(unique.len(), g.received.len(), "a message was received twice");
    let lost = g.taken.iter().filter(|m| !unique.contains(m)).count();
    assert!(lost <= killed + cut_short, "{lost} lost, {killed} + {cut_short} consumers killed");
    assert_eq!(g.received.len() + lost, g.taken.len());
    assert!(g.taken.len() + g.refused as usize <= made(&w) as usize);
    for e in 0..ENVELOPES {
        assert_eq!(owner(&w.memory, e).holder, Holder::Free, "envelope {e} leaks");
    }
    assert!((0..MAX_ACTORS).all(|a| w.memory.peek(intent(a)) == 0), "an intent is left");
    w.ghost
}
