//! Messages that are redelivered when their holder dies.
//!
//! A consumer that *leases* takes a message out of its slot as [`Get`](super::Get) does, but becomes its
//! leaseholder and not its owner. The message in the envelope stays complete until the consumer acknowledges
//! it. The owner word is one of these:
//!
//! | owner | meaning | changed by |
//! |---|---|---|
//! | `LEASED(m)` | `m` has a lease of the message | `m` → `MEMBER(m)` when it acknowledges the message; `m`, or a process that recovers `m` → `RETURNED` or `UNDELIVERABLE` |
//! | `RETURNED` | the message will be redelivered | a consumer of its queue → `LEASED(c)`, `MEMBER(c)` |
//! | `UNDELIVERABLE` | the message was delivered as often as the queue allows | a caller that takes dead letters → `MEMBER(c)` |
//!
//! The envelope's place word still names the queue. Consumers find returned messages by a scan of all
//! envelopes. They scan only if the queue's *hint* reports that there may be a returned message. A process
//! *notes* a return by incrementing `noted` in the hint:
//!
//! | half of the hint word | changed by |
//! |---|---|
//! | `noted` (32 bits) is the number of notes | a process that has returned a message; a process that recovers a dead member with a seat in the ring |
//! | `seen` (32 bits) is the value of `noted` before the last scan that found no message | the consumer that scanned, if the word is unchanged |
//!
//! While `noted` and `seen` differ, there may be a returned message. The hint never returns to an earlier
//! value, except after exactly 2^32 notes. So a consumer that was stopped during its scan can't hide messages
//! that were returned meanwhile.
//!
//! | killed | left | recovery or reclaim |
//! |---|---|---|
//! | while leasing: slot taken, owner still `QUEUED` | an envelope that no slot contains and no living thread intends | the envelope becomes a lease of the dead member ([`Settle`](super::Settle)) |
//! | with a lease | `LEASED(dead)` | the message is returned |
//! | while returning: owner `RETURNED`, not noted yet | a returned message without a note | the return is noted, while the seat of the dead member exists |
//! | after the acknowledgement | `MEMBER(dead)` | the envelope is freed: the message was finished |
//! | while recovering another member, after it created or returned a lease of that member; also if stopped there | `LEASED(dead)` or `RETURNED`, and the seat of the dead member | other recovering processes do the same work |
//!
//! A recovering process need not hold the ring. The ring is not freed while the seat of the dead member
//! exists. That seat is released only when no process recovers the member's leases any more
//! ([`mp_core::steps::BeginRecovery`]). So a recovering process may access the ring to note the messages
//! ([`NoteReturned`]), after it has returned all of them.
//!
//! No message is lost, and no process gets a message while another living process has it.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::{EnvelopesAt, TouchedGroups};
use mp_core::words::{BlockId, EnvelopeId, GroupState, Holder, Owner, RingPlace, deliveries};

use super::RingAt;

/// Location and settings for returned messages of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReturnWords {
    /// Location of the hint of returned messages. The hint does not cover undeliverable messages: a caller
    /// that requests them scans all envelopes.
    pub returned: Word,
    /// Limit on deliveries of a message. 0 means no limit.
    pub limit: u32,
}

/// Number that one note adds to the hint.
const NOTE: u64 = 1 << 32;

/// Returns `true` if the value `hint` reports that there may be a returned message.
#[inline]
pub fn may_have_returned(hint: u64) -> bool {
    (hint >> 32) as u32 != hint as u32
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Meta,
    Swap,
    Note,
}

/// Returns a leased message to its queue. Ends with the new holder of the message: returned or undeliverable.
/// Ends with `None` if the owner word has changed, because another process has the message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Return {
    at: ReturnWords,
    owner_at: Word,
    meta_at: Word,
    from: Owner,
    to: Holder,
    /// `true` if the caller holds the ring, and so notes the return in the ring's hint.
    notes: bool,
    pc: Pc,
}

impl Return {
    /// Creates the steps to return an envelope to the queue with these words, which the caller must hold.
    /// `from` is the expected owner, whose word is at `owner_at`.
    pub fn new(at: ReturnWords, owner_at: Word, meta_at: Word, from: Owner) -> Self {
        Self { at, owner_at, meta_at, from, to: Holder::Returned, notes: true, pc: Pc::Meta }
    }

    /// Makes the steps return the lease of a dead member that the caller recovers. The steps change no word
    /// of the ring. The caller notes the return later, see [`NoteReturned`].
    #[must_use]
    pub fn for_dead_holder(self) -> Self {
        Self { notes: false, ..self }
    }
}

impl Steps for Return {
    type Out = Option<Holder>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<Holder>> {
        match self.pc {
            // If the envelope gets a new owner meanwhile, the swap fails.
            Pc::Meta => {
                let times = deliveries(m.load(self.meta_at));
                if self.at.limit != 0 && times >= self.at.limit {
                    self.to = Holder::Undeliverable;
                }
                self.pc = Pc::Swap;
            }
            Pc::Swap => match m.cas(self.owner_at, self.from.pack(), self.from.then(self.to).pack()) {
                Ok(()) if self.notes && self.to == Holder::Returned => {
                    self.pc = Pc::Note;
                }
                Ok(()) => return Some(Some(self.to)),
                Err(_) => return Some(None),
            },
            Pc::Note => {
                m.add(self.at.returned, NOTE);
                return Some(Some(self.to));
            }
        }
        None
    }
}

/// Notes that there may be returned messages. Used by a process that recovers a dead member with a seat in
/// the ring, after it has returned the dead member's leases.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NoteReturned {
    at: ReturnWords,
}

impl NoteReturned {
    /// Creates the steps for the queue with these words. The caller or the dead member must hold the queue.
    pub fn new(at: ReturnWords) -> Self {
        Self { at }
    }
}

impl Steps for NoteReturned {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        m.add(self.at.returned, NOTE);
        Some(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ReclaimPc {
    Hint,
    Count,
    Group,
    Owner,
    Place,
    Touch,
    Mark,
    Take,
    Unmark,
    Rest,
}

/// Takes or leases a returned or undeliverable message, if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reclaim {
    at: ReturnWords,
    ring: BlockId,
    envelopes: EnvelopesAt,
    touched: Option<TouchedGroups>,
    most: u32,
    wanted: Holder,
    to: Holder,
    /// `true` if the scan ignores the hint and leaves it unchanged.
    all: bool,
    /// Envelope at which the scan starts. If this is not envelope 0 and the scan finds no message, a complete
    /// scan follows.
    start: EnvelopeId,
    hint: u64,
    count: u64,
    envelope: EnvelopeId,
    owner: Owner,
    place: u64,
    pc: ReclaimPc,
}

impl Reclaim {
    /// Creates the steps to take a message of the queue in `ring`. `wanted` is the present holder of the
    /// message: returned or undeliverable. `to` becomes its holder.
    pub fn new(
        at: ReturnWords,
        ring: RingAt,
        envelopes: EnvelopesAt,
        (wanted, to): (Holder, Holder),
    ) -> Self {
        let owner = Owner { holder: Holder::Free, seq: 0 };
        let (start, hint, count, envelope, place) = (0, 0, 0, 0, 0);
        // Undeliverable messages have no hint, so all envelopes are scanned.
        let all = wanted == Holder::Undeliverable;
        let pc = if all { ReclaimPc::Count } else { ReclaimPc::Hint };
        let (ring, most, touched) = (ring.block, ring.envelopes, None);
        Self {
            at,
            ring,
            envelopes,
            touched,
            most,
            wanted,
            to,
            all,
            start,
            hint,
            count,
            envelope,
            owner,
            place,
            pc,
        }
    }

    /// Before an envelope is taken, records in `groups` that the calling process touches the envelope's
    /// group.
    #[must_use]
    pub fn touching(self, groups: TouchedGroups) -> Self {
        Self { touched: Some(groups), ..self }
    }

    /// Starts the scan at envelope `start`. A caller that takes many messages in sequence passes the envelope
    /// that it took last, so that the total time is linear.
    #[must_use]
    pub fn starting_at(self, start: EnvelopeId) -> Self {
        Self { start, ..self }
    }

    /// Makes the scan ignore the hint, for a ring that no process holds.
    #[must_use]
    pub fn ignoring_hint(self) -> Self {
        Self { all: true, pc: ReclaimPc::Count, ..self }
    }

    /// Advances the scan by this many envelopes. After the last envelope, the scan ends, unless the hint must
    /// be updated first.
    fn skip(&mut self, envelopes: u32) -> Option<Option<(EnvelopeId, Owner)>> {
        self.envelope += envelopes;
        if u64::from(self.envelope) < self.count {
            let first = self.envelope.is_multiple_of(GroupState::ENVELOPES);
            self.pc = if first { ReclaimPc::Group } else { ReclaimPc::Owner };
            return None;
        }
        if self.start > 0 {
            (self.start, self.envelope, self.pc) = (0, 0, ReclaimPc::Group);
            return None;
        }
        self.pc = ReclaimPc::Rest;
        self.all.then_some(None)
    }
}

impl Steps for Reclaim {
    type Out = Option<(EnvelopeId, Owner)>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Self::Out> {
        match self.pc {
            ReclaimPc::Hint => {
                self.hint = m.load(self.at.returned);
                if !may_have_returned(self.hint) {
                    return Some(None);
                }
                self.pc = ReclaimPc::Count;
            }
            ReclaimPc::Count => {
                self.count = m.load(self.envelopes.count).min(self.most.into());
                // `start` may be too large if the count was corrupt when an earlier scan read it.
                self.start = if u64::from(self.start) < self.count { self.start } else { 0 };
                self.envelope = self.start;
                if self.count == 0 && self.all {
                    return Some(None);
                }
                self.pc = if self.count == 0 { ReclaimPc::Rest } else { ReclaimPc::Group };
            }
            // An absent group has no messages, and its memory must not be touched.
            ReclaimPc::Group => match GroupState::unpack(m.load(self.envelopes.group_of(self.envelope))) {
                group if group.is_scanned() => self.pc = ReclaimPc::Owner,
                _ => return self.skip(GroupState::ENVELOPES - self.envelope % GroupState::ENVELOPES),
            },
            ReclaimPc::Owner => {
                self.owner = Owner::unpack(m.load(self.envelopes.owners.of(self.envelope)));
                if self.owner.holder != self.wanted {
                    return self.skip(1);
                }
                self.pc = ReclaimPc::Place;
            }
            // The place belongs to this owner word only if the word has not changed. Otherwise the swap
            // fails.
            ReclaimPc::Place => {
                self.place = m.load(self.envelopes.places.of(self.envelope));
                if RingPlace::unpack(self.place).ring != self.ring {
                    return self.skip(1);
                }
                self.pc = if self.touched.is_some() { ReclaimPc::Touch } else { ReclaimPc::Take };
            }
            ReclaimPc::Touch => {
                let has = self.touched.is_none_or(|groups| groups.has(m, self.envelope));
                self.pc = if has { ReclaimPc::Take } else { ReclaimPc::Mark };
            }
            ReclaimPc::Mark => {
                self.touched.into_iter().for_each(|groups| groups.add(m, self.envelope));
                self.pc = ReclaimPc::Take;
            }
            ReclaimPc::Take => {
                let taken = self.owner.then(self.to);
                match m.cas(self.envelopes.owners.of(self.envelope), self.owner.pack(), taken.pack()) {
                    Ok(()) => {
                        self.owner = taken;
                        self.pc = ReclaimPc::Unmark;
                        // Only a consumer that died in `Enclose` leaves a mark.
                        if self.place & RingPlace::ENCLOSING == 0 {
                            return Some(Some((self.envelope, taken)));
                        }
                    }
                    Err(_) => self.pc = ReclaimPc::Owner,
                }
            }
            ReclaimPc::Unmark => {
                m.store(self.envelopes.places.of(self.envelope), self.place & !RingPlace::ENCLOSING);
                return Some(Some((self.envelope, self.owner)));
            }
            ReclaimPc::Rest => {
                let noted = self.hint >> 32;
                match m.cas(self.at.returned, self.hint, noted << 32 | noted) {
                    Ok(()) => return Some(None),
                    Err(_) => self.pc = ReclaimPc::Hint,
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use mp_core::mem::HeapMem;
    use mp_core::mem::{Column, run};
    use mp_core::words::Member;

    use super::*;

    const AT: ReturnWords = ReturnWords { returned: Word::at(0), limit: 0 };
    const COUNT: Word = Word::at(8);
    const META: Word = Word::at(16);
    const OWNERS: Column = Column { base: Word::at(24), stride: 16 };
    const PLACES: Column = Column { base: Word::at(32), stride: 16 };
    const GROUPS: Column = Column { base: Word::at(88), stride: 8 };
    const ENVELOPES: EnvelopesAt =
        EnvelopesAt { count: COUNT, groups: GROUPS, owners: OWNERS, places: PLACES };

    fn reclaim() -> Reclaim {
        let (head, tail, first) = (Word::at(64), Word::at(72), Word::at(80));
        let ring = RingAt { block: 0, slots: 1, before: 0, head, tail, first, envelopes: 2 };
        let to = (Holder::Returned, Holder::Leased(Member::new(1, 1)));
        Reclaim::new(AT, ring, ENVELOPES, to)
    }

    /// A consumer died in `Enclose` and left the mark in the place word.
    #[test]
    fn next_leaseholder_removes_mark_of_a_dead_consumer() {
        let m = HeapMem::new(16);
        m.store(COUNT, 1);
        m.store(GROUPS.of(0), GroupState::InUse.pack());
        let place = RingPlace { ring: 0, slot: 3 }.pack();
        m.store(PLACES.of(0), place | RingPlace::ENCLOSING);
        m.store(OWNERS.of(0), Owner { holder: Holder::Returned, seq: 5 }.pack());
        run(NoteReturned::new(AT), &m);
        let (_, owner) = run(reclaim(), &m).unwrap();
        assert_eq!((m.load(OWNERS.of(0)), m.load(PLACES.of(0))), (owner.pack(), place));
    }

    /// A recovery reads only groups that the dead process has touched.
    #[test]
    fn envelope_group_is_touched_before_message_is_leased() {
        let m = HeapMem::new(16);
        m.store(COUNT, 1);
        m.store(GROUPS.of(0), GroupState::InUse.pack());
        m.store(OWNERS.of(0), Owner { holder: Holder::Returned, seq: 5 }.pack());
        run(NoteReturned::new(AT), &m);
        let touched = TouchedGroups::at(Word::at(120));
        let mut reclaim = reclaim().touching(touched);
        let leased = std::iter::from_fn(|| {
            let end = reclaim.step(&m);
            let holder = Owner::unpack(m.load(OWNERS.of(0))).holder;
            assert!(holder == Holder::Returned || touched.has(&m, 0));
            Some(end)
        });
        assert!(matches!(leased.flatten().next(), Some(Some((0, _)))));
    }

    #[test]
    fn returned_message_before_start_of_a_scan_is_found() {
        let m = HeapMem::new(16);
        m.store(COUNT, 2);
        m.store(GROUPS.of(0), GroupState::InUse.pack());
        for e in [0, 1] {
            m.store(OWNERS.of(e), Owner { holder: Holder::Returned, seq: 5 }.pack());
        }
        run(NoteReturned::new(AT), &m);
        assert!(matches!(run(reclaim().starting_at(1), &m), Some((1, _))));
        assert!(matches!(run(reclaim().starting_at(1), &m), Some((0, _))));
        assert_eq!(run(reclaim().starting_at(1), &m), None);
        assert!(!may_have_returned(m.load(AT.returned)));
    }

    /// The memory of an absent group may not be mapped, so the scan must not read it.
    #[test]
    fn envelope_scan_within_a_group_reads_no_absent_group() {
        let (owners, places) =
            (Column { base: Word::at(256), stride: 8 }, Column { base: Word::at(2048), stride: 8 });
        let m = HeapMem::new(512);
        m.store(COUNT, 192);
        m.store(GROUPS.of(0), GroupState::InUse.pack());
        for absent in 1..3 {
            m.store(GROUPS.of(absent), GroupState::Absent { base: 0 }.pack());
        }
        m.store(owners.of(150), Owner { holder: Holder::Returned, seq: 5 }.pack());
        run(NoteReturned::new(AT), &m);
        let scan = Reclaim { envelopes: EnvelopesAt { owners, places, ..ENVELOPES }, most: 192, ..reclaim() };
        assert_eq!(run(scan.starting_at(70), &m), None);
    }

    /// The message is returned after its envelope was scanned, and noted before the scan ends. The same call
    /// must find it, because no other call may follow.
    #[test]
    fn message_returned_during_a_scan_is_found() {
        let m = HeapMem::new(16);
        m.store(COUNT, 2);
        m.store(GROUPS.of(0), GroupState::InUse.pack());
        let leased = Owner { holder: Holder::Leased(Member::new(2, 1)), seq: 5 };
        m.store(OWNERS.of(0), leased.pack());
        // A message was noted, and another process has it by now.
        run(NoteReturned::new(AT), &m);
        let mut look = reclaim();
        while look.pc != ReclaimPc::Rest {
            assert_eq!(look.step(&m), None);
        }
        let back = Return::new(AT, OWNERS.of(0), META, leased);
        assert_eq!(run(back, &m), Some(Holder::Returned));
        assert!(matches!(run(look, &m), Some((0, _))));
        // The hint still reports a message that no process has taken, until a scan has found none.
        assert!(may_have_returned(m.load(AT.returned)));
        assert_eq!(run(reclaim(), &m), None);
        assert!(!may_have_returned(m.load(AT.returned)));
    }
}
