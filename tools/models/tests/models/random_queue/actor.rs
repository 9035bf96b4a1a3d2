//! Process of the random schedules, and a plain queue with which the ring is compared.

use std::collections::VecDeque;

use mp_core::mem::{Mem, Steps};
use mp_core::words::{Holder, Owner};
use mp_models::explore::{Actor, Fate, Memory};
use mp_models::members::member;
use mp_models::ring::{ENVELOPES, MAX_ACTORS, OWNER, PLACE, RingRecovery, chain, free, intent, owner, slots};
use mp_queue::ring::{Close, Get, GetOutcome, Put, PutOutcome, RingAt, Slot, TakenMessage};

use super::schedule::LAST_SWEEPER;

/// Message: its producer, and its number among the messages of the producer.
pub type Message = (usize, u32);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    Producer { messages: u32 },
    Consumer,
    Closer,
    Recoverer,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Doing {
    /// First action of the role.
    Start,
    Put(u32, Put),
    Get(Get),
    Close(Close),
    Recover(RingRecovery),
    /// Releases an envelope that the process owns.
    Free(u32),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Process {
    pub role: Role,
    pub ring: RingAt,
    /// Number of messages that the producer has made so far.
    pub made: u32,
    pub doing: Doing,
}

/// State for checks: a plain queue, and observations of each actor.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Ghost {
    pub content: Vec<Option<Message>>,
    pub queue: VecDeque<Message>,
    pub taken: Vec<Message>,
    pub received: Vec<Message>,
    pub closed: bool,
    pub refused: u32,
    /// For each actor, `true` if the queue was empty at some time during its current call. `was_full` is the
    /// same for a full queue.
    pub was_empty: [bool; MAX_ACTORS],
    pub was_full: [bool; MAX_ACTORS],
}

impl Ghost {
    /// Applies a change of the ring's slots to the plain queue.
    fn follow(&mut self, before: &[Slot], after: &[Slot]) {
        for (&before, &after) in before.iter().zip(after) {
            let (left, came) = (before.envelope(), after.envelope());
            if left == came {
                continue;
            }
            if let Some(e) = left {
                let message = self.content[e as usize].expect("an envelope with a message in it");
                assert_eq!(self.queue.pop_front(), Some(message), "taken out of order");
                self.taken.push(message);
            }
            if let Some(e) = came {
                assert!(!self.closed, "published after the close");
                self.queue.push_back(self.content[e as usize].expect("an envelope with a message in it"));
            }
        }
        assert!(self.queue.len() <= before.len(), "more messages than slots");
        let (empty, full) = (self.queue.is_empty(), self.queue.len() == before.len());
        self.was_empty.iter_mut().for_each(|was| *was |= empty);
        self.was_full.iter_mut().for_each(|was| *was |= full);
    }

    fn begin(&mut self, me: usize, slots: u32) {
        self.was_empty[me] = self.queue.is_empty();
        self.was_full[me] = self.queue.len() == slots as usize;
    }
}

impl Process {
    fn start(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> Option<Doing> {
        match self.role {
            Role::Producer { messages } if self.made == messages => None,
            Role::Producer { .. } => {
                let free = (0..ENVELOPES).find(|&e| owner(m, e).holder == Holder::Free);
                let Some(e) = free else { return Some(Doing::Start) };
                let mine = owner(m, e).then(Holder::Member(member(me)));
                m.cas(OWNER.of(e), owner(m, e).pack(), mine.pack()).expect("one step at a time");
                ghost.content[e as usize] = Some((me, self.made));
                self.made += 1;
                Some(self.put(me, e, mine, ghost))
            }
            Role::Consumer => {
                ghost.begin(me, self.ring.slots);
                Some(Doing::Get(Get::new(self.ring, intent(me), OWNER, member(me))))
            }
            Role::Closer => Some(Doing::Close(Close::new(self.ring))),
            Role::Recoverer => Some(self.recover(RingRecovery::Look, me, m, fates)),
        }
    }

    fn put(&self, me: usize, e: u32, owner: Owner, ghost: &mut Ghost) -> Doing {
        ghost.begin(me, self.ring.slots);
        let at = (e, OWNER.of(e), PLACE.of(e));
        Doing::Put(e, Put::new(self.ring, intent(me), at, member(me), owner))
    }

    fn recover(&self, mut recovery: RingRecovery, me: usize, m: &Memory, fates: &[Fate]) -> Doing {
        recovery.step(me, m, fates, chain(self.ring.slots, 0));
        if recovery == RingRecovery::Look { Doing::Start } else { Doing::Recover(recovery) }
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let before = slots(m, &chain(self.ring.slots, 0));
        let mut doing = std::mem::replace(&mut self.doing, Doing::Start);
        let next = match &mut doing {
            Doing::Start => self.start(me, m, fates, ghost),
            Doing::Put(e, put) => match put.step(m) {
                None => Some(doing),
                Some(PutOutcome::Done(_)) => Some(Doing::Start),
                Some(PutOutcome::Full(owner)) => {
                    assert!(ghost.was_full[me], "refused, and the queue was never full");
                    Some(self.put(me, *e, owner, ghost))
                }
                Some(PutOutcome::Closed(_)) => {
                    assert!(ghost.closed, "refused, and the queue is not closed");
                    ghost.refused += 1;
                    Some(Doing::Free(*e))
                }
            },
            Doing::Get(get) => match get.step(m) {
                None => Some(doing),
                Some(GetOutcome::Done(TakenMessage::Envelope(e, owner, _))) => {
                    assert_eq!(owner.holder, Holder::Member(member(me)));
                    ghost.received.push(ghost.content[e as usize].expect("a message"));
                    Some(Doing::Free(e))
                }
                Some(GetOutcome::Empty) => {
                    assert!(ghost.was_empty[me], "found empty, and it never was");
                    let more = fates.contains(&Fate::Running) && me != LAST_SWEEPER;
                    more.then_some(Doing::Start)
                }
                Some(
                    GetOutcome::Done(TakenMessage::Small(..)) | GetOutcome::Done(TakenMessage::Stray(_)),
                ) => {
                    unreachable!("no message is small, and all are there")
                }
                Some(GetOutcome::Closed) => {
                    assert!(ghost.closed && ghost.queue.is_empty(), "an end before the queue was drained");
                    None
                }
            },
            Doing::Close(close) => match close.step(m) {
                None => Some(doing),
                Some(was_open) => {
                    assert_eq!(was_open, !ghost.closed);
                    ghost.closed = true;
                    None
                }
            },
            Doing::Recover(recovery) => {
                if let RingRecovery::Free(e) = recovery {
                    ghost.content[*e as usize] = None;
                }
                Some(self.recover(recovery.clone(), me, m, fates))
            }
            Doing::Free(e) => {
                ghost.content[*e as usize] = None;
                free(m, *e, me);
                Some(Doing::Start)
            }
        };
        ghost.follow(&before, &slots(m, &chain(self.ring.slots, 0)));
        match next {
            Some(doing) => self.doing = doing,
            None => return true,
        }
        false
    }
}
