//! Exhaustive model of a channel whose senders are dropped: every interleaving of sending, dropping the
//! sender, receiving, detecting that no sender is left, and recovery, with kills and stops at every shared
//! access. Real processes run the same steps. (Dropped receivers are symmetric: they hold another token.)
//!
//! The receiver reports the end of the channel only after it has received all messages and no sender is left.
//! A stopped sender keeps the channel connected. A killed sender does not.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::{BlockAt, FreeCheck, ReleaseOutcome, ReleaseSeat, UnclaimBlock};
use mp_core::words::{BlockId, BlockKind, BlockLife, BlockState, Holder, Member, Owner, Seat};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{actor_of, is_killed, member};
use mp_models::random::at_random;
use mp_models::ring::{
    ENVELOPES, META, OWNER, PLACE, Remains, TestContext, chain, find_remains, free, intent, memory, own,
    owner, slots,
};
use mp_queue::ring::{ChainAt, Get, GetOutcome, Put, PutOutcome, Settle, TakenMessage};

/// Token of the senders, at an address that is unused in this model.
const TOKEN: BlockAt = BlockAt { id: 1, state: META.base, inline: 2, per_page: 1 };
const NO_PAGES: Pages = |_| None;
type Pages = fn(BlockId) -> Option<Word>;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    // sender
    Claim,
    Put(Put),
    Drop(ReleaseSeat<Pages>),
    UnclaimBlock(BlockState),
    // receiver
    Get(Get),
    /// The queue is empty: checks whether any sender is left.
    Ask,
    Free(u32),
    // recovering actor
    Look,
    Settle(Box<Settle<TestContext>>),
    Own(u32, u64),
    Seat(ReleaseSeat<Pages>),
    Busy(u64),
    Check(FreeCheck<Pages>),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    chain: ChainAt,
    senders: usize,
    items: std::ops::Range<u32>,
    /// `true` after the receiver has found that no sender is left. Then it checks for messages once more.
    reported: bool,
    /// Planted bug: the receiver does not check for messages once more.
    hasty: bool,
    doing: Doing,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Ghost {
    sent: Vec<u32>,
    received: Vec<u32>,
    /// Senders that have released their seats without a recovery.
    left: Vec<usize>,
}

impl Process {
    fn put(&self, me: usize, owner: Owner) -> Doing {
        let e = self.items.start - 1;
        let at = (e, OWNER.of(e), PLACE.of(e));
        Doing::Put(Put::new(self.chain.first, intent(me), at, member(me), owner))
    }

    fn get(&self, me: usize) -> Doing {
        Doing::Get(Get::new(self.chain.first, intent(me), OWNER, member(me)))
    }

    /// Returns the next step of recovery: first recoveries of dead actors, then frees of their envelopes.
    fn recover(&self, m: &Memory, fates: &[Fate]) -> Option<Doing> {
        let found = find_remains(m, fates);
        if let Some(Remains::Intent(dead)) = found {
            let context = TestContext::new(fates, self.chain, dead);
            return Some(Doing::Settle(context.settle()));
        }
        let dead = |p: Member| is_killed(fates, p);
        let state = m.peek(TOKEN.state);
        let seats = (0..TOKEN.inline).map(|i| (i, Seat::unpack(m.peek(TOKEN.seat(i)))));
        let life = BlockState::unpack(state).life;
        if life == BlockLife::Live {
            let mut of_dead = seats.clone().filter_map(|(i, seat)| match seat {
                Seat::Member(p) if dead(p) => Some((i, p)),
                _ => None,
            });
            if let Some((i, p)) = of_dead.next() {
                return Some(Doing::Seat(ReleaseSeat::new(
                    TOKEN,
                    NO_PAGES,
                    p,
                    TOKEN.seat(i),
                    Seat::Member(p),
                )));
            }
            let any = (0..fates.len()).find(|&a| fates[a] == Fate::Killed);
            if let (Some(any), true) = (any, seats.clone().all(|(_, seat)| seat == Seat::Free)) {
                return Some(Doing::Check(FreeCheck::new(TOKEN, NO_PAGES, member(any))));
            }
        }
        match (found, life) {
            (Some(Remains::Envelope(e, owner)), _) => Some(Doing::Own(e, owner.pack())),
            (_, BlockLife::Busy(p)) if dead(p) => Some(Doing::Busy(state)),
            _ => None,
        }
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let is_sender = me < self.senders;
        let mut doing = self.doing.clone();
        let next = match &mut doing {
            Doing::Claim => match self.items.next() {
                Some(e) => {
                    let mine = owner(m, e).then(Holder::Member(member(me)));
                    m.store(OWNER.of(e), mine.pack());
                    self.put(me, mine)
                }
                None => {
                    let (seat, holder) = (TOKEN.seat(me as u32), Seat::Member(member(me)));
                    Doing::Drop(ReleaseSeat::new(TOKEN, NO_PAGES, member(me), seat, holder))
                }
            },
            Doing::Put(put) => {
                let end = put.step(m);
                for e in slots(m, &self.chain).iter().filter_map(|slot| slot.envelope()) {
                    if !ghost.sent.contains(&e) {
                        ghost.sent.push(e);
                        ghost.sent.sort_unstable();
                    }
                }
                match end {
                    None => doing,
                    Some(PutOutcome::Done(_)) => Doing::Claim,
                    Some(PutOutcome::Full(owner)) => self.put(me, owner),
                    Some(PutOutcome::Closed(_)) => unreachable!("no actor closes"),
                }
            }
            Doing::Drop(release) => {
                let end = release.step(m);
                if is_sender
                    && Seat::unpack(m.peek(TOKEN.seat(me as u32))) == Seat::Free
                    && !ghost.left.contains(&me)
                {
                    ghost.left.push(me);
                    ghost.left.sort_unstable();
                }
                match end {
                    None => doing,
                    Some(ReleaseOutcome::MustFree(state)) => Doing::UnclaimBlock(state),
                    Some(ReleaseOutcome::Held) => return true,
                }
            }
            Doing::UnclaimBlock(state) => {
                UnclaimBlock::new(TOKEN, *state).step(m);
                if is_sender {
                    return true;
                }
                Doing::Look
            }
            Doing::Get(get) => match get.step(m) {
                None => doing,
                Some(GetOutcome::Done(TakenMessage::Envelope(e, ..))) => {
                    assert!(!ghost.received.contains(&e), "message {e} twice");
                    ghost.received.push(e);
                    ghost.received.sort_unstable();
                    Doing::Free(e)
                }
                Some(GetOutcome::Empty) if self.reported => {
                    for sender in (0..self.senders).filter(|s| !ghost.left.contains(s)) {
                        assert_eq!(fates[sender], Fate::Killed, "ended before sender {sender} left");
                    }
                    assert_eq!(ghost.sent, ghost.received, "the end was reported before all was received");
                    return true;
                }
                Some(GetOutcome::Empty) => Doing::Ask,
                Some(
                    GetOutcome::Done(TakenMessage::Small(..)) | GetOutcome::Done(TakenMessage::Stray(_)),
                ) => {
                    unreachable!("no message is small, and all are there")
                }
                Some(GetOutcome::Closed) => unreachable!("no actor closes"),
            },
            Doing::Ask => {
                self.reported = BlockState::unpack(m.load(TOKEN.state)).life != BlockLife::Live;
                if self.reported && self.hasty {
                    assert_eq!(ghost.sent, ghost.received, "the end was reported before all was received");
                    return true;
                }
                self.get(me)
            }
            Doing::Free(e) => {
                free(m, *e, me);
                if me > self.senders { Doing::Look } else { self.get(me) }
            }
            Doing::Look => match self.recover(m, fates) {
                Some(doing) => doing,
                None => return fates[..=self.senders].iter().all(|f| f.gone()),
            },
            Doing::Settle(settle) => match settle.step(m) {
                None => doing,
                Some(_) => Doing::Look,
            },
            Doing::Own(e, found) => {
                let won = own(m, *e, *found, me);
                if won { Doing::Free(*e) } else { Doing::Look }
            }
            // The release is made on behalf of the dead actor, also if no seat is left after it.
            Doing::Seat(release) => match release.step(m) {
                None => doing,
                Some(_) => Doing::Look,
            },
            Doing::Busy(found) => {
                let state = BlockState::unpack(*found).with(BlockLife::Busy(member(me)));
                let won = m.cas(TOKEN.state, *found, state.pack()).is_ok();
                if won { Doing::UnclaimBlock(state) } else { Doing::Look }
            }
            Doing::Check(check) => match check.step(m) {
                None => doing,
                Some(_) => Doing::Look,
            },
        };
        self.doing = next;
        false
    }
}

#[derive(Clone, Copy)]
struct Setup {
    senders: usize,
    items: u32,
    recoverers: usize,
    slots: u32,
    hasty: bool,
}

const BASE: Setup = Setup { senders: 1, items: 1, recoverers: 1, slots: 1, hasty: false };

impl Setup {
    /// Creates a world of senders, one receiver and recovering actors.
    fn world(self) -> World<Process> {
        let chain = chain(self.slots, 0);
        let m = memory(&chain, 1);
        let live = BlockState { life: BlockLife::Live, kind: BlockKind::Object, version: 1 };
        m.poke(TOKEN.state, live.pack());
        (0..self.senders).for_each(|i| m.poke(TOKEN.seat(i as u32), Seat::Member(member(i)).pack()));
        let actors = (0..self.senders + 1 + self.recoverers).map(|i| {
            let items = i as u32 * self.items..(i as u32 + 1) * self.items;
            let Self { senders, hasty, .. } = self;
            let mut p = Process { chain, senders, items, reported: false, hasty, doing: Doing::Claim };
            if i == senders {
                p.doing = p.get(i);
            } else if i > senders {
                p.doing = Doing::Look;
            }
            p
        });
        World::new(m, actors.collect(), Ghost::default())
    }

    fn explore(self, kills: u32, stops: u32) {
        let receiver = self.senders;
        let end = |w: &World<Process>| {
            // Remains of an actor that was killed after the last check are left to the next recovery.
            if w.fates[receiver] == Fate::Ended && find_remains(&w.memory, &w.fates).is_none() {
                (0..ENVELOPES).for_each(|e| {
                    let holder = owner(&w.memory, e).holder;
                    // A stopped actor may be freeing the envelope.
                    let stopped =
                        matches!(holder, Holder::Member(o) if w.fates[actor_of(o)] == Fate::Stopped);
                    assert!(holder == Holder::Free || stopped, "envelope {e} leaks: {holder:?}");
                });
            }
        };
        let wedged = |w: &World<Process>| {
            let reclaimed = w.count(receiver + 1..w.actors.len(), Fate::Running) > 0 || kills == 0;
            let stopped = w.count(0..self.senders, Fate::Stopped) > 0;
            w.fates[receiver] == Fate::Running && reclaimed && !stopped
        };
        self.world().explore(kills, stops, end, wedged);
    }
}

#[test]
fn receiver_disconnects_after_last_sender_is_dropped() {
    BASE.explore(1, 0);
    Setup { items: 2, ..BASE }.explore(1, 1);
    Setup { senders: 2, ..BASE }.explore(1, 0);
    Setup { senders: 2, slots: 2, recoverers: 0, ..BASE }.explore(0, 1);
}

#[test]
fn receiver_disconnects_despite_killed_recoverers() {
    Setup { recoverers: 2, ..BASE }.explore(2, 0);
}

#[test]
fn receiver_disconnects_despite_a_stopped_recoverer() {
    Setup { recoverers: 2, ..BASE }.explore(1, 1);
}

#[test]
fn channel_holds_in_long_random_schedules() {
    at_random(|| {
        Setup { senders: 2, items: 3, recoverers: 2, slots: 2, ..BASE }.explore(3, 0);
        Setup { senders: 2, items: 3, ..BASE }.explore(2, 1);
        Setup { senders: 2, items: 3, recoverers: 2, slots: 2, ..BASE }.explore(2, 1);
    });
}

/// After finding that no sender is left, a receiver must check for messages again. Otherwise it loses
/// messages that were sent after its previous check.
#[test]
#[should_panic(expected = "before all was received")]
fn model_finds_receiver_without_second_check() {
    Setup { hasty: true, ..BASE }.explore(0, 0);
}
