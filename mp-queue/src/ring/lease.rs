//! Messages that are delivered again when their holder dies.
//!
//! A consumer that *leases* takes a message out of its slot as [`Get`](super::Get) does, but becomes its leaseholder
//! instead of its owner: the envelope stays whole until the consumer says that it is done. The owner word says all:
//!
//! | owner | meaning | changed by |
//! |---|---|---|
//! | `LEASED(m)` | `m` works on it | `m` → `MEMBER(m)` when it is done; `m`, or if `m` is dead a sweeper → `RETURNED` or `UNDELIVERABLE` |
//! | `RETURNED` | to be delivered again | a consumer of its queue → `LEASED(c)`, `MEMBER(c)` |
//! | `UNDELIVERABLE` | delivered as often as the queue allows | who looks for such → `MEMBER(c)` |
//!
//! Where it belongs is in its place word still. Consumers find what was returned by looking at all envelopes; they look
//! only if the queue's *hint* is not 0. Who returns one counts the hint up, afterwards; who looked at all envelopes and
//! found none sets it back to 0, if it is still what it was before.
//!
//! | killed | left | the sweep |
//! |---|---|---|
//! | leasing: slot taken, owner still `QUEUED` | no slot holds it, nobody live intends it | takes the lease over and returns it ([`Settle`](super::Settle)) |
//! | holding a lease | `LEASED(dead)` | returns it |
//! | returning: owner `RETURNED`, hint not yet | a returned message that no hint tells of | sets the hint |
//! | done: owner `MEMBER(dead)` | | frees it: it was done |
//! | sweeping | `LEASED(sweeper)` | as any lease |
//!
//! Nothing is lost, and nobody gets a message while another living process has it.

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::words::{BlockId, EnvelopeId, Holder, Owner, Place, deliveries};

/// Where a queue keeps count of what came back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReturnsAt {
    /// The hint of returned messages.
    pub returned: Word,
    /// The hint of undeliverable ones.
    pub undeliverable: Word,
    /// How often a message is delivered at most; 0 is for ever.
    pub limit: u32,
}

impl ReturnsAt {
    fn hint(&self, holder: Holder) -> Word {
        if holder == Holder::Undeliverable { self.undeliverable } else { self.returned }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Meta,
    Swap,
    Note,
}

/// Returns a leased message to its queue, or notes again that it is there. Ends with what it is now; `None` if it was
/// somebody else's already.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Return {
    at: ReturnsAt,
    owner_at: Word,
    meta_at: Word,
    from: Owner,
    to: Holder,
    pc: Pc,
}

impl Return {
    /// To return the envelope whose owner word, at `owner_at`, is `from`, to the queue with these words.
    pub fn new(at: ReturnsAt, owner_at: Word, meta_at: Word, from: Owner) -> Self {
        let (to, pc) = match from.holder {
            Holder::Returned | Holder::Undeliverable => (from.holder, Pc::Note),
            _ => (Holder::Returned, Pc::Meta),
        };
        Self { at, owner_at, meta_at, from, to, pc }
    }
}

impl Steps for Return {
    type Out = Option<Holder>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<Holder>> {
        match self.pc {
            // Of an envelope that changed hands meanwhile: then the swap fails.
            Pc::Meta => {
                let times = deliveries(m.load(self.meta_at));
                if self.at.limit != 0 && times >= self.at.limit {
                    self.to = Holder::Undeliverable;
                }
                self.pc = Pc::Swap;
            }
            Pc::Swap => match m.cas(self.owner_at, self.from.pack(), self.from.then(self.to).pack()) {
                Ok(()) => self.pc = Pc::Note,
                Err(_) => return Some(None),
            },
            Pc::Note => {
                m.add(self.at.hint(self.to), 1);
                return Some(Some(self.to));
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Scan {
    Hint,
    Count,
    Owner,
    Place,
    Take,
    Rest,
}

/// Takes a message that came back, if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reclaim {
    at: ReturnsAt,
    ring: BlockId,
    count_at: Word,
    owners: Column,
    places: Column,
    wanted: Holder,
    to: Holder,
    hint: u64,
    count: u64,
    envelope: EnvelopeId,
    owner: Owner,
    pc: Scan,
}

impl Reclaim {
    /// To take one of the queue in block `ring` that is `wanted` (returned, or undeliverable), for `to`. At `count_at` is
    /// how many envelopes there are.
    pub fn new(
        at: ReturnsAt,
        ring: BlockId,
        count_at: Word,
        (owners, places): (Column, Column),
        (wanted, to): (Holder, Holder),
    ) -> Self {
        let owner = Owner { holder: Holder::Free, seq: 0 };
        let pc = Scan::Hint;
        Self { at, ring, count_at, owners, places, wanted, to, hint: 0, count: 0, envelope: 0, owner, pc }
    }

    fn next(&mut self) {
        self.envelope += 1;
        self.pc = if u64::from(self.envelope) < self.count { Scan::Owner } else { Scan::Rest };
    }
}

impl Steps for Reclaim {
    type Out = Option<(EnvelopeId, Owner)>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Self::Out> {
        match self.pc {
            Scan::Hint => {
                self.hint = m.load(self.at.hint(self.wanted));
                if self.hint == 0 {
                    return Some(None);
                }
                self.pc = Scan::Count;
            }
            Scan::Count => {
                self.count = m.load(self.count_at);
                self.envelope = 0;
                self.pc = if self.count == 0 { Scan::Rest } else { Scan::Owner };
            }
            Scan::Owner => {
                self.owner = Owner::unpack(m.load(self.owners.of(self.envelope)));
                if self.owner.holder == self.wanted {
                    self.pc = Scan::Place;
                } else {
                    self.next();
                }
            }
            // It belongs to this owner word only if the word has not changed: the swap will tell.
            Scan::Place => {
                let place = Place::unpack(m.load(self.places.of(self.envelope)));
                if place.ring == self.ring {
                    self.pc = Scan::Take;
                } else {
                    self.next();
                }
            }
            Scan::Take => {
                let taken = self.owner.then(self.to);
                match m.cas(self.owners.of(self.envelope), self.owner.pack(), taken.pack()) {
                    Ok(()) => return Some(Some((self.envelope, taken))),
                    Err(_) => self.pc = Scan::Owner,
                }
            }
            Scan::Rest => match m.cas(self.at.hint(self.wanted), self.hint, 0) {
                Ok(()) => return Some(None),
                Err(_) => self.pc = Scan::Hint,
            },
        }
        None
    }
}
