//! How streams of this process use a piece of memory, from its arrival to its last drop here.
//!
//! A use is noted when it begins, since the work that a stream is given meanwhile isn't seen here. It is *told* by a tick of its stream:
//! when another stream of this process has to run after it, when the piece is sent, and when it is dropped. So a stream makes no tick
//! for each kernel, but one for each time that the order matters to another.
//!
//! | what a use waits for | exclusive, frozen | shared |
//! |---|---|---|
//! | what the messages said that brought the piece | yes | yes |
//! | uses of other streams of this process, from before it was shared | if one of the two writes | if one of the two writes |
//! | uses of other streams of this process, since then | – | no: their order is the program's own |
//!
//! At the last drop in a process all its uses are joined into the row's *last use*, for which the maker's next owner waits: by a swap if
//! one stream used the piece and has waited for the last use that is there, else by a stream of this process that waits for all of
//! them ([`release_of`]). So no stream of a user waits for another's work at a drop, and no host.

use mp_core::clocks::Tick;
use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutant;
use mp_core::mutex::{Mutex, MutexGuard};

use super::object::Row;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::Stream;
use crate::stream::order::clock::{are_of_one_stream, is_complete, note};
use crate::sync::{AtomicBool, Ordering};
use mp_core::steps::row::{Joining, joining};

/// What a use may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    pub(crate) writes: bool,
    /// The piece is shared: others use it at the same time, and mean to.
    pub(crate) shared: bool,
}

/// The uses of a piece.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    noted: Mutex<Noted>,
    /// Whether anything was ever noted. It is set before that is, so who ends or sends a piece sees it of all that came before.
    is_noted: AtomicBool,
}

#[derive(Debug, Default)]
struct Noted {
    /// What streams of other processes do with it: the last tick of each, as messages said. Those that are complete are left out.
    before: Vec<Tick>,
    /// What was done before in the same memory: streams that use it wait for that. If it never runs, nothing is lost here.
    room: Vec<Tick>,
    streams: Vec<Use>,
    /// Whether the row was told that this process writes.
    writes: bool,
}

/// What one stream does with it.
#[derive(Debug)]
struct Use {
    stream: Stream,
    /// Access that was borrowed, of all uses since the last tick that was complete.
    access: Access,
    /// What the stream has waited for: the last tick of each other one.
    waited: Vec<Tick>,
    /// A tick behind some of the uses.
    told: Option<Tick>,
    /// Whether there may be work behind `told`.
    untold: bool,
    /// How many uses have not ended.
    open: usize,
    /// How many have begun.
    begun: u64,
}

/// A use that has begun: its number among those of the piece by its stream, if no other of them was open then; and among all of the stream.
pub(crate) type Begun = Option<(u64, u64)>;

/// Whether a list has this tick, or a later one of its stream.
fn has(list: &[Tick], tick: Tick) -> bool {
    list.iter().any(|one| are_of_one_stream(*one, tick) && *one >= tick)
}

/// How many streams with uses that no tick tells of are not asked whether they have run: to ask is a call of the driver.
const NOT_ASKED: usize = 4;

/// Whether a tick's work has run. What is lost has not.
fn is_over(tick: Tick) -> bool {
    is_complete(tick).unwrap_or(false)
}

impl Use {
    /// A tick behind all that the stream was given up to now; none if it has no use.
    fn tell(&mut self) -> Result<Option<Tick>> {
        if self.untold {
            self.told = Some(self.stream.tick()?);
            self.untold = self.open > 0;
        }
        Ok(self.told)
    }

    /// Whether it needs no more attention: all its work has run. If that takes to `ask` the stream, it is known only then.
    fn is_over(&self, ask: bool) -> bool {
        self.open == 0 && if self.untold { ask && self.has_run() } else { self.told.is_none_or(is_over) }
    }

    /// Whether its stream has run all that it was given.
    fn has_run(&self) -> bool {
        matches!(self.stream.has_run(), Ok(true))
    }

    /// Has the stream wait for a tick, if it didn't already.
    fn wait_for(&mut self, tick: Tick) -> Result<()> {
        if has(&self.waited, tick) {
            // Its process may have died meanwhile.
            return is_complete(tick).map(drop);
        }
        self.stream.wait_for(tick)?;
        note(&mut self.waited, tick);
        Ok(())
    }

    /// As [`wait_for`](Self::wait_for), for what only has to be out of the way.
    fn wait_for_room(&mut self, tick: Tick) -> Result<()> {
        if has(&self.waited, tick) {
            return Ok(());
        }
        match self.stream.wait_for_room(tick) {
            Ok(_) => note(&mut self.waited, tick),
            Err(Error::ProducerDied { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Noted {
    /// The uses that are over: to be dropped when this is unlocked, since what keeps a user's stream alive is the user's, and may use
    /// this piece when it is dropped.
    ///
    /// Reads of frozen memory are told at its last drop alone. So of many streams it is asked whether they have run, or each stream that
    /// ever read it would be kept.
    #[must_use]
    fn forget_what_is_over(&mut self) -> Vec<Use> {
        self.before.retain(|tick| !is_over(*tick));
        self.room.retain(|tick| matches!(is_complete(*tick), Ok(false)));
        let ask = self.streams.len() > NOT_ASKED && !mutant!("cuda.uses.not-asked");
        let over = self.streams.extract_if(.., |one| one.is_over(ask)).collect();
        self.streams.iter_mut().for_each(|one| one.waited.retain(|tick| !is_over(*tick)));
        over
    }

    /// Ticks of the uses that have not run, which are told now.
    fn tell(&mut self, which: impl Fn(Access) -> bool) -> Result<Vec<Tick>> {
        let mut ticks = Vec::new();
        for one in self.streams.iter_mut().filter(|one| which(one.access)) {
            if let Some(tick) = one.tell()?.filter(|tick| !is_over(*tick)) {
                note(&mut ticks, tick);
            }
        }
        Ok(ticks)
    }
}

impl Uses {
    /// To note something.
    fn noting(&self) -> MutexGuard<'_, Noted> {
        self.is_noted.store(true, Ordering::Release);
        self.noted.lock()
    }

    /// Whether no stream of this process has used it, and none has to wait for anything: so it is on its way through a process.
    #[inline]
    fn is_blank(&self) -> bool {
        !self.is_noted.load(Ordering::Acquire)
    }

    /// Notes what a message said that brought the piece.
    #[inline]
    pub(crate) fn arrived(&self, ticks: &[Tick]) {
        if !ticks.is_empty() {
            let mut noted = self.noting();
            ticks.iter().for_each(|tick| note(&mut noted.before, *tick));
        }
    }

    /// Notes what the piece's memory was used for before it was cut.
    pub(crate) fn begins_behind(&self, ticks: &[Tick]) {
        if !ticks.is_empty() {
            self.noting().room.extend_from_slice(ticks);
        }
    }

    /// Begins a use: the stream waits for all that has to run before it. What [`end`](Self::end) is to be told.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if some of that never will run; what a stream refuses. Then no use has begun.
    pub(crate) fn begin(&self, stream: &Stream, access: Access, row: &Row) -> Result<Begun> {
        let number = stream.use_begins();
        let begun = self.begin_on(stream, access, row).inspect_err(|_| drop(stream.use_ends()))?;
        Ok(begun.map(|begun| (begun, number)))
    }

    fn begin_on(&self, stream: &Stream, access: Access, row: &Row) -> Result<Option<u64>> {
        let _over;
        let mut noted = self.noting();
        let noted = &mut *noted;
        _over = noted.forget_what_is_over();
        let mine = |one: &Use| one.stream == *stream && one.access.shared == access.shared;
        let at = match noted.streams.iter().position(mine) {
            Some(at) => at,
            None => {
                let none = Access { writes: false, shared: access.shared };
                let stream = stream.clone();
                noted.streams.push(Use {
                    stream,
                    access: none,
                    waited: Vec::new(),
                    told: None,
                    untold: false,
                    open: 0,
                    begun: 0,
                });
                noted.streams.len() - 1
            }
        };
        let mut to_wait = noted.before.clone();
        for one in noted.streams.iter_mut().filter(|one| one.stream != *stream) {
            let writes = one.access.writes || access.writes && !mutant!("cuda.uses.reader-not-waited");
            let unordered = one.access.shared || !writes;
            if !unordered && let Some(tick) = one.tell()? {
                to_wait.push(tick);
            }
        }
        let this = &mut noted.streams[at];
        for tick in &noted.room {
            this.wait_for_room(*tick)?;
        }
        for tick in to_wait {
            let waited = this.wait_for(tick);
            if matches!(waited, Err(Error::ProducerDied { .. })) && access.shared {
                // It is told once: what others write to it from now on counts again.
                noted.before.retain(|one| *one != tick);
            }
            waited?;
        }
        if access.writes && !noted.writes {
            row.begin_use();
            noted.writes = true;
        }
        this.access.writes |= access.writes;
        this.untold = true;
        this.open += 1;
        this.begun += 1;
        Ok((this.open == 1).then_some(this.begun))
    }

    /// Ends a use that was begun. If all is given that [`begin`](Self::begin) said, the host has seen that the stream has run it: then no
    /// use is left of it, unless another one was there meanwhile, whose work may have come after that.
    ///
    /// What it wrote is lost if the stream was released from a wait for a process that died: so that is to be waited for as what a
    /// message said, here and by receivers.
    pub(crate) fn end(&self, stream: &Stream, access: Access, ran: Begun) {
        let behind = stream.use_ends();
        if let Some((_, number)) = ran {
            stream.use_has_run(number);
        }
        let mut noted = self.noting();
        if access.writes && !mutant!("cuda.uses.not-behind-what-was-awaited") {
            behind.into_iter().for_each(|tick| note(&mut noted.before, tick));
        }
        let mine = |one: &&mut Use| one.stream == *stream && one.access.shared == access.shared;
        if let Some(one) = noted.streams.iter_mut().find(mine) {
            one.open = one.open.saturating_sub(1);
            if ran.is_some_and(|(begun, _)| begun == one.begun) {
                (one.untold, one.told) = (false, None);
            }
        }
    }

    /// Whether all has run that was written before by others, and by streams behind them: for a host that has waited for a stream.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if some of that never will.
    pub(crate) fn is_whole(&self) -> Result<()> {
        let before = self.noted.lock().before.clone();
        before.into_iter().try_for_each(|tick| is_complete(tick).map(drop))
    }

    /// What a message has to say that takes the piece along: what its receivers' streams have to wait for. If none of them will write, that is
    /// what was written.
    ///
    /// # Errors
    /// What a stream refuses.
    #[inline]
    pub(crate) fn tell(&self, frozen: bool) -> Result<Vec<Tick>> {
        if self.is_blank() { Ok(Vec::new()) } else { self.tell_noted(frozen) }
    }

    fn tell_noted(&self, frozen: bool) -> Result<Vec<Tick>> {
        let _over;
        let mut noted = self.noted.lock();
        _over = noted.forget_what_is_over();
        let mut ticks = noted.before.clone();
        let sent_before = mutant!("cuda.uses.sent-before-told");
        let mine = noted.tell(|access| (access.writes || !frozen) && !sent_before)?;
        // If no stream of this process wrote it, a receiver's may be the first.
        let room = if mine.is_empty() { &noted.room[..] } else { &[] };
        mine.iter().chain(room).for_each(|tick| note(&mut ticks, *tick));
        Ok(ticks)
    }

    /// The piece leaves this process, or has no holder here any more: its uses become the row's last use. If they can't be told, the
    /// row says that a use never ended, also where all of them read: no memory is given away under work that no tick is behind. The
    /// ticks behind the uses.
    #[inline]
    pub(crate) fn leave(&self, row: impl FnOnce() -> Row) -> Vec<Tick> {
        if self.is_blank() { Vec::new() } else { self.leave_noted(&row()) }
    }

    fn leave_noted(&self, row: &Row) -> Vec<Tick> {
        let (_over, _left);
        let mut noted = self.noted.lock();
        _over = noted.forget_what_is_over();
        let (joined, writes) = (noted.join(row), std::mem::take(&mut noted.writes));
        match (joined, writes) {
            (Ok(()), true) => row.end_use(),
            (Err(_), false) if !mutant!("cuda.uses.read-not-told") => row.begin_use(),
            (Ok(()), false) | (Err(_), _) => {}
        }
        // What a stream of this process has to wait for, if the piece comes back.
        _left = std::mem::take(&mut noted.streams);
        let told: Vec<Tick> = _left.iter().filter_map(|one| one.told).collect();
        told.iter().for_each(|tick| note(&mut noted.before, *tick));
        told
    }
}

impl Noted {
    fn join(&mut self, row: &Row) -> Result<()> {
        let ticks = self.tell(|_| true)?;
        let of = |tick: &Tick| self.streams.iter().find(|one| one.told == Some(*tick));
        let Some(one) = ticks.first().and_then(of) else { return Ok(()) };
        let mut release = None;
        loop {
            let raw = row.last_use();
            let last = Tick::from_raw(raw);
            let how = joining(last, &ticks, |tick| is_complete(tick).ok(), |tick| has(&one.waited, tick));
            let Joining::Swap { tick, mixes } = how else { return Ok(()) };
            if mixes {
                row.mix();
            }
            let joined = if let Some(tick) = tick {
                tick
            } else {
                let stream = match &release {
                    Some(stream) => stream,
                    None => release.insert(release_of(one.stream.device(), &ticks)?),
                };
                if let Some(tick) = last {
                    stream.wait_for(tick)?;
                }
                stream.tick()?
            };
            if row.join_last_use(raw, joined.raw()).is_ok() {
                return Ok(());
            }
        }
    }
}

/// The streams of this process that wait for uses, and do nothing else: one a device.
static RELEASE: PerProcess<Mutex<Vec<Stream>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

/// The stream of this device, waiting for these ticks.
fn release_of(device: &Device, ticks: &[Tick]) -> Result<Stream> {
    let stream = release(device)?;
    ticks.iter().try_for_each(|tick| stream.wait_for(*tick).map(drop))?;
    Ok(stream)
}

fn release(device: &Device) -> Result<Stream> {
    let there = || RELEASE.lock().iter().find(|stream| stream.device() == device).cloned();
    if let Some(stream) = there() {
        return Ok(stream);
    }
    // The piece's lock is held.
    let stream = if mutant!("cuda.uses.ended-under-locks") {
        Stream::new(device)
    } else {
        Stream::beside_locks(device)
    }?;
    let mut streams = RELEASE.lock();
    match streams.iter().find(|stream| stream.device() == device) {
        Some(there) => Ok(there.clone()),
        None => {
            streams.push(stream.clone());
            Ok(stream)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tick_of_each_stream_is_noted() {
        let at = |clock, epoch, count| Tick::new(clock, Tick::base(epoch) + count);
        let mut list = Vec::new();
        for tick in [at(3, 1, 5), at(3, 1, 4), at(4, 1, 1), at(3, 1, 6), at(3, 2, 1)] {
            note(&mut list, tick);
        }
        // That of the owner before is not forgotten for the next one's: it may have died.
        assert_eq!(list, [at(3, 1, 6), at(4, 1, 1), at(3, 2, 1)]);
        assert!(has(&list, at(3, 1, 5)) && has(&list, at(3, 2, 1)));
        assert!(!has(&list, at(3, 1, 7)) && !has(&list, at(4, 2, 1)) && !has(&list[2..], at(3, 1, 6)));
    }
}
