//! Members, and detection of dead members.
//!
//! # States of a member's word
//! | state | member named in the word | changed by |
//! |---|---|---|
//! | `FREE(epoch)` | none | a joiner that holds both locks of the slot → `LIVE(epoch + 1)` |
//! | `LIVE(epoch)` | none | a process that has detected the member's death → `DEAD` |
//! | `DEAD(epoch)` | none | recovering processes count themselves in the word; a process that is the only one counted, and has recovered everything → `VACATING` |
//! | `VACATING(epoch)` | none | recovering processes count themselves in the word; a process that is the only one counted, and has recovered everything → `RECLAIMING(me)` |
//! | `RECLAIMING(epoch)` | the reclaiming process | the reclaiming process → `FREE`; if it is dead, another process → `RECLAIMING(me)` |
//!
//! The module `recovery` recovers and reclaims. [`BeginRecovery`](crate::steps::BeginRecovery) describes how
//! the reclaim follows the recoveries.
//!
//! # Detection of a member's death
//! The member's parent detects the death by the pidfd of the member's process. Any process detects the death
//! by finding both locks of the slot free. One lock alone proves nothing: see [`sys::locks`](crate::sys). A
//! stopped process holds its locks, and is not dead.

use crate::error::{Error, Result, printable};
use crate::layout::{LANES, control, wait_table};
use crate::mem::{Mem, Word, raise};
use crate::members::Members;
use crate::parking::Notices;
use crate::ring_layer::{self, RingLayer};
use crate::steps::lock::wait_note::WaitNotesAt;
use crate::sys::{directory, locks, memory};
use crate::words::{BlockId, Member, Presence, Tenancy, WaitMark, WaitState};

/// Information about a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemberInfo {
    /// Tag of the member.
    pub member: Member,
    /// Process ID, in the PID namespace of the process itself.
    pub pid: u32,
    /// `true` if the member is not known to be dead.
    pub live: bool,
}

const STATE: u64 = 0;
pub(crate) const PID: u64 = 1;
const RECOVERING: u64 = 2;
const RECOVERED: u64 = 3;
const LANES_USED: u64 = 4;
pub(crate) const KNOWS_RINGS: u64 = 5;
const LANES_EVER: u64 = 6;

/// Returns the word that marks a dead member as recovered: epoch (32 bits), recovered (1 bit), the excepted
/// ring + 1, or 0 (24 bits).
const fn recovered_word(epoch: u32, but: Option<BlockId>) -> u64 {
    let but = match but {
        None => 0,
        Some(ring) => (ring as u64 + 1) & 0xff_ffff,
    };
    but << 33 | 1 << 32 | epoch as u64
}

impl Members {
    /// Returns the members, including dead ones that were not reclaimed yet.
    pub(crate) fn members(self) -> Vec<MemberInfo> {
        let info = |(member, t): (Member, Tenancy)| MemberInfo {
            member,
            pid: self.map().load(self.layout().member(member.slot(), PID)) as u32,
            live: t.presence == Presence::Live,
        };
        self.tenants().map(info).collect()
    }

    pub(crate) fn tenancy(self, slot: u32) -> Tenancy {
        Tenancy::unpack(self.map().load(self.tenancy_word(slot)))
    }

    pub(crate) fn change_tenancy(self, slot: u32, from: Tenancy, to: Tenancy) -> bool {
        self.map().cas(self.layout().member(slot, STATE), from.pack(), to.pack()).is_ok()
    }

    /// Makes this process a member, and returns its tag. Takes both locks of a slot before the slot gets a
    /// new epoch.
    pub(crate) fn join(self) -> Result<Member> {
        for slot in 0..self.layout().members {
            if u64::from(slot) >= self.map().load(Word::at(control::MEMBERS)) {
                let (own, touched) = (self.layout().member_bytes(slot), self.layout().touched_bytes(slot));
                // A page of heads is reserved with its first head: for this slot, or before, for an earlier
                // one.
                for (at, len) in self.layout().heads_from(slot).into_iter().chain([own, touched]) {
                    self.0.commit(at, len)?;
                }
            }
            let before = self.tenancy(slot);
            if before.presence != Presence::Free {
                continue;
            }
            if !self.lock_slot(slot)? {
                continue;
            }
            // Since the state was read, another process may have joined in this slot and died. From here on,
            // no other process can join in this slot.
            if self.tenancy(slot) != before {
                self.unlock_slot(slot);
                continue;
            }
            let now = Tenancy { presence: Presence::Live, epoch: before.epoch.wrapping_add(1) };
            let (pid, knows_rings) = (u64::from(std::process::id()), u64::from(ring_layer::is_registered()));
            for (word, v) in [(PID, pid), (LANES_USED, 0), (KNOWS_RINGS, knows_rings), (RECOVERING, 0)] {
                self.map().store(self.layout().member(slot, word), v);
            }
            // The slot's previous member may have died while it made an update.
            self.map().store(self.layout().updates().making(slot), 0);
            self.free_wait_notes(Member::new(slot, now.epoch));
            self.clear_waits(slot);
            raise(self.map(), Word::at(control::MEMBERS), u64::from(slot) + 1);
            if self.change_tenancy(slot, before, now) {
                return Ok(Member::new(slot, now.epoch));
            }
            self.unlock_slot(slot);
        }
        let limit = u64::from(self.layout().members);
        Err(Error::ArenaFull { what: "member slots", asked: 1, limit })
    }

    /// Returns the maximum number of members, and a cheap upper bound of the present number.
    #[doc(hidden)]
    pub fn most_members(self) -> (usize, usize) {
        let limit = self.layout().members;
        let used = self.map().load(Word::at(control::MEMBERS)).min(u64::from(limit));
        (limit as usize, used as usize)
    }

    /// Takes the locks of a slot. Returns `false` if another process has them. In a local arena there are no
    /// locks.
    fn lock_slot(self, slot: u32) -> Result<bool> {
        let Ok(file) = self.0.file() else { return Ok(true) };
        locks::acquire(file, slot)
            .map_err(|source| Error::Os { what: "locking a member slot of the arena", source })
    }

    pub(crate) fn unlock_slot(self, slot: u32) {
        if let Ok(file) = self.0.file() {
            locks::release(file, slot);
        }
    }

    /// Returns a member's state word.
    pub(crate) fn tenancy_word(self, slot: u32) -> Word {
        self.layout().member(slot, STATE)
    }

    /// Returns the word in which the member in `slot` announces the dead members' slots that it recovers.
    pub(crate) fn recovering_word(self, slot: u32) -> Word {
        self.layout().member(slot, RECOVERING)
    }

    /// Records that a process has recovered everything that other processes wait for from the dead member of
    /// a slot, except in the ring `but`. May be called any number of times.
    pub(crate) fn note_recovered(self, slot: u32, epoch: u32, but: Option<BlockId>) {
        let word = self.layout().member(slot, RECOVERED);
        let (before, now) = (self.map().load(word), recovered_word(epoch, but));
        // A late process does not undo a complete recovery.
        let done = before == recovered_word(epoch, None);
        if !done && before != now {
            _ = self.map().cas(word, before, now);
        }
    }

    /// Returns `true` if a member is dead, and everything that holders of this ring wait for was recovered.
    /// The member may still have seats in rings.
    pub(crate) fn has_left(self, m: Member, ring: BlockId) -> bool {
        let t = self.tenancy(m.slot());
        match t.presence {
            Presence::Free => return true,
            _ if t.member(m.slot()) != m => return true,
            Presence::Live => return false,
            Presence::Dead(_) | Presence::Vacating(_) | Presence::Reclaiming(_) => {}
        }
        let seen = self.map().load(self.layout().member(m.slot(), RECOVERED));
        // Everything, or everything except in another ring.
        (seen & recovered_word(u32::MAX, None) == recovered_word(t.epoch, None))
            && seen != recovered_word(t.epoch, Some(ring))
    }

    /// Returns `true` if a member is known to be dead. Makes no system call.
    pub(crate) fn is_known_dead(self, m: Member) -> bool {
        let t = self.tenancy(m.slot());
        t.presence != Presence::Live || t.member(m.slot()) != m
    }

    pub(crate) fn set_dead(self, m: Member) {
        let t = self.tenancy(m.slot());
        let same = t.member(m.slot()) == m;
        if t.presence == Presence::Live
            && same
            && self.change_tenancy(m.slot(), t, Tenancy { presence: Presence::Dead(0), ..t })
        {
            Notices(self.0).tell_of_a_lost_holder();
        }
    }

    /// Returns `true` if a member is marked as dead, or if its locks show that it is dead (this check takes
    /// 1–3 µs).
    ///
    /// A stopped process is not dead. Returns `false` when in doubt.
    pub fn is_dead(self, m: Member) -> bool {
        if self.is_known_dead(m) {
            return true;
        }
        let locks_free = |file| locks::both_free(file, m.slot()).unwrap_or(false);
        if self.me().is_ok_and(|me| me == m) || !self.0.file().is_ok_and(locks_free) {
            return false;
        }
        // An observer changes nothing.
        if self.0.is_here() {
            self.set_dead(m);
        }
        true
    }

    /// Returns `true` if no other member lives.
    pub(crate) fn is_last(self) -> bool {
        let Ok(me) = self.me() else { return false };
        self.live_members().all(|member| member.slot() == me.slot() || self.is_dead(member))
    }

    /// Returns process IDs and start times of live members. The start times are read from `/proc` here, not
    /// stored by each member when it joins: few programs need them, and reading `/proc` takes a fifth of the
    /// time of joining.
    ///
    /// Without `/proc`, the start time is 0. A named file that lists these processes then has no process
    /// namespace, and readers of the file ignore the times.
    pub(crate) fn live_processes(self) -> impl Iterator<Item = (Member, u32, u64)> + use<> {
        self.live_members().filter_map(move |member| {
            let pid = self.map().load(self.layout().member(member.slot(), PID)) as u32;
            let unknown = || (directory::process_namespace() == 0).then_some(0);
            let start = memory::start_time_of(pid).or_else(unknown)?;
            // If the member is alive now, it was alive when its start time was read.
            (!self.is_dead(member)).then_some((member, pid, start))
        })
    }

    /// Returns the process ID of a member, or 0 if it is gone.
    pub fn pid_of(self, m: Member) -> u32 {
        let t = self.tenancy(m.slot());
        let pid = self.map().load(self.layout().member(m.slot(), PID)) as u32;
        if t.presence != Presence::Free && t.member(m.slot()) == m { pid } else { 0 }
    }

    /// Returns `true` if the member's process has this ID. Reads one word.
    pub(crate) fn has_pid(self, m: Member, pid: u32) -> bool {
        self.map().load(self.layout().member(m.slot(), PID)) as u32 == pid
    }

    /// Returns the name of a member's process.
    pub(crate) fn name_of(self, m: Member) -> String {
        self.read_name(self.layout().member(m.slot(), wait_table::NAME))
    }

    /// Reads a name of [`NAME_BYTES`](wait_table::NAME_BYTES) bytes at `at`. A name that is being changed may
    /// be read as a mixture.
    pub(crate) fn read_name(self, at: Word) -> String {
        self.read_text::<{ wait_table::NAME_BYTES }>(at)
    }

    /// Reads a text of at most `N` bytes at `at`. The text ends before the first zero byte.
    pub(crate) fn read_text<const N: usize>(self, at: Word) -> String {
        let bytes = self.read_bytes::<N>(at);
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        printable(&String::from_utf8_lossy(bytes))
    }

    pub(crate) fn read_bytes<const N: usize>(self, at: Word) -> [u8; N] {
        let mut bytes = [0; N];
        for (i, part) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *part = self.map().load_relaxed(at.plus(i as u64)).to_le_bytes();
        }
        bytes
    }

    /// Returns `true` if a member's process is stopped by a signal or a debugger. Used in errors that name
    /// the process waited for. The process may continue at any moment. Returns `false` when in doubt.
    pub fn is_stopped(self, m: Member) -> bool {
        match self.pid_of(m) {
            0 => false,
            pid => memory::is_stopped(pid),
        }
    }

    /// Returns the slots that may have a member, each with its state.
    pub(crate) fn used_slots(self) -> impl Iterator<Item = (u32, Tenancy)> + use<> {
        let used = self.map().load(Word::at(control::MEMBERS)).min(u64::from(self.layout().members));
        (0..used as u32).map(move |slot| (slot, self.tenancy(slot)))
    }

    /// Returns the members that are not yet reclaimed, each with the state of its slot.
    pub(crate) fn tenants(self) -> impl Iterator<Item = (Member, Tenancy)> + use<> {
        let tenants = self.used_slots().filter(|(_, t)| t.presence != Presence::Free);
        tenants.map(|(slot, t)| (t.member(slot), t))
    }

    /// Returns the members that are not known to be dead.
    pub(crate) fn live_members(self) -> impl Iterator<Item = Member> + use<> {
        self.tenants().filter(|(_, t)| t.presence == Presence::Live).map(|(member, _)| member)
    }

    /// Returns the intent words that a member has ever used.
    pub(crate) fn intents(self, m: Member) -> impl Iterator<Item = Word> + use<> {
        let used = self.map().load(self.layout().member(m.slot(), LANES_USED)).min(u64::from(LANES));
        (0..used as u32).map(move |lane| self.layout().intent(m, lane))
    }

    /// Returns the intent words of the lanes that any member of a slot has ever used. The lanes' counts
    /// remain when a member leaves.
    pub(crate) fn lanes_ever(self, slot: u32) -> impl Iterator<Item = Word> + use<> {
        let used = self.map().load_relaxed(self.layout().member(slot, LANES_EVER)).min(u64::from(LANES));
        (0..used as u32).map(move |lane| self.layout().intent(Member::new(slot, 0), lane))
    }

    /// Records that this process uses a lane. Called before it uses the lane for the first time.
    pub(crate) fn note_lane(self, me: Member, lane: u32) {
        raise(self.map(), self.layout().member(me.slot(), LANES_EVER), u64::from(lane) + 1);
        raise(self.map(), self.layout().member(me.slot(), LANES_USED), u64::from(lane) + 1);
    }

    /// Records that this process has a ring layer. Only processes with a ring layer then reclaim this
    /// process, because it may die while it drains a ring or holds a message of a ring.
    pub(crate) fn note_rings(self, me: Member) {
        self.map().store(self.layout().member(me.slot(), KNOWS_RINGS), 1);
    }

    pub(crate) fn knew_rings(self, m: Member) -> bool {
        self.map().load(self.layout().member(m.slot(), KNOWS_RINGS)) != 0
    }

    /// Same as [`register_ring_layer`](crate::register_ring_layer), for a process that is already a member.
    /// Called before the process uses its first ring, on platforms on which no function runs before `main`.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn set_ring_layer(self, rings: &'static &'static dyn RingLayer) -> Result<()> {
        // Recorded before this process can access a ring.
        self.note_rings(self.me()?);
        ring_layer::register(rings);
        Ok(())
    }

    /// Frees the wait notes that the slot's previous member left. Called before this process becomes a
    /// member.
    pub(crate) fn free_wait_notes(self, me: Member) {
        for entry in 0..WaitNotesAt::ENTRIES {
            let word = self.layout().wait_notes().mark(me, entry);
            let mark = WaitMark::unpack(self.map().load(word));
            if mark.state != WaitState::Free {
                let free = WaitMark { state: WaitState::Free, thread: 0, sequence: mark.sequence };
                self.map().store(word, free.pack());
            }
        }
    }

    /// Clears the words that show the waits of the slot's previous member. Called before the slot has a new
    /// member.
    fn clear_waits(self, slot: u32) {
        for word in wait_table::NAME..wait_table::SERVICES + 2 {
            self.map().store(self.layout().member(slot, word), 0);
        }
        for row in 0..wait_table::ROWS {
            let first = wait_table::FIRST + wait_table::ROW_WORDS * u64::from(row);
            self.map().store(self.layout().member(slot, first), 0);
        }
    }
}
