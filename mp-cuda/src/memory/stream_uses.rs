//! Uses of a piece of memory by streams of this process, from its arrival to its last drop in this process.
//!
//! A use is recorded when it begins, because this crate does not see which work is submitted during the use.
//! A *tick* marks a point in the work of a stream. A tick *covers* a use if it was made after the work of the
//! use was submitted. A stream makes a tick when another stream of this process has to run after the use,
//! when the piece is sent, and when the piece is dropped. So the number of ticks does not depend on the
//! number of kernels.
//!
//! | work for which a use waits | exclusive or frozen piece | shared piece |
//! |---|---|---|
//! | ticks in the messages that brought the piece | waits | waits |
//! | uses by other streams of this process, before the piece was shared | waits if one of the two uses writes | waits if one of the two uses writes |
//! | uses by other streams of this process, after the piece was shared | – | does not wait: the program orders these uses |
//!
//! At the last drop in a process, all uses are joined into the *last use* in the piece's row. The next owner
//! of the memory waits for the last use. If only one stream used the piece, and it has waited for the current
//! last use, one swap joins its use. Otherwise a separate stream of this process waits for all uses
//! ([`release_of`]), and its tick is joined. So neither a user's stream nor a host waits at a drop.

use mp_core::clocks::Tick;
use mp_core::fork::PerProcess;
use mp_core::mutex::{Mutex, MutexGuard};

use super::object::PieceRow;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::CudaStream;
use crate::stream::order::tick::{are_of_one_stream, is_complete, keep_latest};
use crate::stream::work::StreamWaitPurpose;
use crate::sync::{AtomicBool, Ordering};
use mp_core::steps::device::use_record::{LastUseChange, last_use_change};

/// Access to a piece during a use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UseAccess {
    pub(crate) writes: bool,
    /// `true` if the piece is shared: other processes use it at the same time.
    pub(crate) shared: bool,
}

/// Uses of a piece by streams of this process.
#[derive(Debug, Default)]
pub(crate) struct PieceUses {
    records: Mutex<UseLog>,
    /// `true` after a use or a tick was recorded. Set before the record is added, so that a thread that drops
    /// or sends the piece does not miss the record.
    is_recorded: AtomicBool,
}

#[derive(Debug, Default)]
struct UseLog {
    /// Ticks from messages: the last tick of each stream that used the piece before this process got it.
    /// Complete ticks are removed.
    before: Vec<Tick>,
    /// Ticks of the uses of earlier pieces in the same memory. Streams wait for these ticks. If work before
    /// such a tick is lost, the data of this piece is not lost.
    earlier: Vec<Tick>,
    streams: Vec<StreamUse>,
    /// `true` if the piece's row counts this process as a writer.
    writes: bool,
}

/// Uses of a piece by one stream.
#[derive(Debug)]
struct StreamUse {
    stream: CudaStream,
    /// Combined access of all uses since the last complete tick.
    access: UseAccess,
    /// For each other stream, the last tick for which this stream has waited.
    waited: Vec<Tick>,
    /// Last tick that covers uses. See `is_uncovered`.
    covering: Option<Tick>,
    /// `true` if `covering` may not cover all uses.
    is_uncovered: bool,
    /// Number of uses that have not ended.
    open: usize,
    /// Number of uses that have begun.
    begun: u64,
}

/// Two ordinal numbers of a use: among the uses of the piece by the stream, and among all uses by the stream.
/// `None` if the stream had another open use of the piece when this use began.
pub(crate) type UseNumber = Option<(u64, u64)>;

/// Returns `true` if a list contains this tick, or a later tick of the same stream.
fn contains(list: &[Tick], tick: Tick) -> bool {
    list.iter().any(|one| are_of_one_stream(*one, tick) && *one >= tick)
}

/// Number of recorded streams up to which no stream is queried for its progress, because a query is a driver
/// call.
const UNQUERIED: usize = 4;

/// Returns `true` if the work before a tick has run. Returns `false` if the work is pending or lost.
fn is_finished(tick: Tick) -> bool {
    is_complete(tick).unwrap_or(false)
}

impl StreamUse {
    /// Returns a tick that covers all uses by the stream, and makes the tick if needed. Returns `None` if
    /// there is no use to cover.
    fn cover(&mut self) -> Result<Option<Tick>> {
        if self.is_uncovered {
            self.covering = Some(self.stream.tick()?);
            self.is_uncovered = self.open > 0;
        }
        Ok(self.covering)
    }

    /// Returns `true` if all work of the uses has run. If the ticks do not show that, queries the stream if
    /// `query` is set.
    fn is_finished(&self, query: bool) -> bool {
        self.open == 0
            && if self.is_uncovered { query && self.has_run() } else { self.covering.is_none_or(is_finished) }
    }

    /// Returns `true` if the stream has run all its work.
    fn has_run(&self) -> bool {
        matches!(self.stream.has_run(), Ok(true))
    }

    /// Makes the stream wait for a tick, unless it has waited for the tick before. If the tick's process
    /// died, returns an error if `purpose` is `Results`.
    fn wait_for(&mut self, tick: Tick, purpose: StreamWaitPurpose) -> Result<()> {
        let waited = if contains(&self.waited, tick) {
            // The tick's process may have died since.
            is_complete(tick).map(drop)
        } else {
            self.stream.wait_for(tick, purpose).inspect(|()| keep_latest(&mut self.waited, tick))
        };
        match waited {
            Err(Error::ProducerDied { .. }) if purpose == StreamWaitPurpose::Memory => Ok(()),
            waited => waited,
        }
    }
}

impl UseLog {
    /// Removes and returns the uses whose work has run. The caller drops them after the lock is released:
    /// dropping a use may drop the value that keeps a user's stream alive. That drop runs the user's
    /// code, which may use this piece.
    ///
    /// Reads of frozen memory are not covered by ticks before the last drop of the piece. So if many streams
    /// have read it, the streams are queried for their progress. Otherwise each reading stream would stay
    /// alive until the last drop.
    #[must_use]
    fn take_finished(&mut self) -> Vec<StreamUse> {
        self.before.retain(|tick| !is_finished(*tick));
        self.earlier.retain(|tick| matches!(is_complete(*tick), Ok(false)));
        let query = self.streams.len() > UNQUERIED;
        let over = self.streams.extract_if(.., |one| one.is_finished(query)).collect();
        self.streams.iter_mut().for_each(|one| one.waited.retain(|tick| !is_finished(*tick)));
        over
    }

    /// Makes ticks that cover the uses selected by `which`. Returns the pending ticks.
    fn cover(&mut self, which: impl Fn(UseAccess) -> bool) -> Result<Vec<Tick>> {
        let mut ticks = Vec::new();
        for one in self.streams.iter_mut().filter(|one| which(one.access)) {
            if let Some(tick) = one.cover()?.filter(|tick| !is_finished(*tick)) {
                keep_latest(&mut ticks, tick);
            }
        }
        Ok(ticks)
    }
}

impl PieceUses {
    /// Locks the log to add a record, and marks the piece as used.
    fn lock_to_record(&self) -> MutexGuard<'_, UseLog> {
        self.is_recorded.store(true, Ordering::Release);
        self.records.lock()
    }

    /// Returns `true` if no stream of this process has used the piece, and no stream has to wait before its
    /// first use.
    #[inline]
    fn is_unused(&self) -> bool {
        !self.is_recorded.load(Ordering::Acquire)
    }

    /// Records the ticks in a message that brought the piece.
    #[inline]
    pub(crate) fn record_received(&self, ticks: &[Tick]) {
        if !ticks.is_empty() {
            let mut records = self.lock_to_record();
            ticks.iter().for_each(|tick| keep_latest(&mut records.before, *tick));
        }
    }

    /// Records the ticks of earlier uses of the piece's memory.
    pub(crate) fn record_earlier_uses(&self, ticks: &[Tick]) {
        if !ticks.is_empty() {
            self.lock_to_record().earlier.extend_from_slice(ticks);
        }
    }

    /// Begins a use: makes the stream wait for all work that has to run before the use. Pass the returned
    /// value to [`end`](Self::end).
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if some of that work will never run; errors of the
    /// stream. After an error no use has begun.
    pub(crate) fn begin(&self, stream: &CudaStream, access: UseAccess, row: &PieceRow) -> Result<UseNumber> {
        let number = stream.use_begins();
        let begun = self.begin_on(stream, access, row).inspect_err(|_| drop(stream.use_ends()))?;
        Ok(begun.map(|begun| (begun, number)))
    }

    fn begin_on(&self, stream: &CudaStream, access: UseAccess, row: &PieceRow) -> Result<Option<u64>> {
        let _over;
        let mut records = self.lock_to_record();
        let records = &mut *records;
        _over = records.take_finished();
        let mine = |one: &StreamUse| one.stream == *stream && one.access.shared == access.shared;
        let at = match records.streams.iter().position(mine) {
            Some(at) => at,
            None => {
                let none = UseAccess { writes: false, shared: access.shared };
                let stream = stream.clone();
                records.streams.push(StreamUse {
                    stream,
                    access: none,
                    waited: Vec::new(),
                    covering: None,
                    is_uncovered: false,
                    open: 0,
                    begun: 0,
                });
                records.streams.len() - 1
            }
        };
        let mut to_wait = records.before.clone();
        for one in records.streams.iter_mut().filter(|one| one.stream != *stream) {
            let writes = one.access.writes || access.writes;
            let unordered = one.access.shared || !writes;
            if !unordered && let Some(tick) = one.cover()? {
                to_wait.push(tick);
            }
        }
        let this = &mut records.streams[at];
        for tick in &records.earlier {
            this.wait_for(*tick, StreamWaitPurpose::Memory)?;
        }
        for tick in to_wait {
            let waited = this.wait_for(tick, StreamWaitPurpose::Results);
            if matches!(waited, Err(Error::ProducerDied { .. })) && access.shared {
                // The error is returned once: later writes by other processes are valid again.
                records.before.retain(|one| *one != tick);
            }
            waited?;
        }
        if access.writes && !records.writes {
            row.begin_use();
            records.writes = true;
        }
        this.access.writes |= access.writes;
        this.is_uncovered = true;
        this.open += 1;
        this.begun += 1;
        Ok((this.open == 1).then_some(this.begun))
    }

    /// Ends a use. `ran` is set if the host has seen that the work of the use has run. In this case the use
    /// counts as complete, unless another use began meanwhile, whose work may still be pending.
    ///
    /// If the stream has waited for a process that died, the data that the use wrote is lost. So streams of
    /// this process and of receivers wait for the tick of the dead process, too, and get its error.
    pub(crate) fn end(&self, stream: &CudaStream, access: UseAccess, ran: UseNumber) {
        let behind = stream.use_ends();
        if let Some((_, number)) = ran {
            stream.record_use_has_run(number);
        }
        let mut records = self.lock_to_record();
        if access.writes {
            behind.into_iter().for_each(|tick| keep_latest(&mut records.before, tick));
        }
        let mine = |one: &&mut StreamUse| one.stream == *stream && one.access.shared == access.shared;
        if let Some(one) = records.streams.iter_mut().find(mine) {
            one.open = one.open.saturating_sub(1);
            if ran.is_some_and(|(begun, _)| begun == one.begun) {
                (one.is_uncovered, one.covering) = (false, None);
            }
        }
    }

    /// Returns an error if earlier writes are lost: writes by other processes, or by streams that waited for
    /// such writes. Called after the host has waited for a stream.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if some of that work will never run.
    pub(crate) fn check_complete(&self) -> Result<()> {
        let before = self.records.lock().before.clone();
        before.into_iter().try_for_each(|tick| is_complete(tick).map(drop))
    }

    /// Returns the ticks for a message with the piece. The receivers' streams wait for these ticks. If the
    /// receivers only read (`frozen`), the ticks cover only writes.
    ///
    /// # Errors
    /// Errors of a stream.
    #[inline]
    pub(crate) fn cover(&self, frozen: bool) -> Result<Vec<Tick>> {
        if self.is_unused() { Ok(Vec::new()) } else { self.cover_recorded(frozen) }
    }

    fn cover_recorded(&self, frozen: bool) -> Result<Vec<Tick>> {
        let _over;
        let mut records = self.records.lock();
        _over = records.take_finished();
        let mut ticks = records.before.clone();
        let mine = records.cover(|access| access.writes || !frozen)?;
        // If no stream of this process wrote the piece, a receiver may be its first writer.
        let earlier = if mine.is_empty() { &records.earlier[..] } else { &[] };
        mine.iter().chain(earlier).for_each(|tick| keep_latest(&mut ticks, *tick));
        Ok(ticks)
    }

    /// Joins the uses into the row's last use, when this process drops or moves the piece. Returns the ticks
    /// that cover the uses. If a tick can't be made, the row shows a use that never ends, even if all uses
    /// were reads. So memory is never reused while uncovered work may access it.
    #[inline]
    pub(crate) fn leave(&self, row: impl FnOnce() -> PieceRow) -> Vec<Tick> {
        if self.is_unused() { Vec::new() } else { self.leave_recorded(&row()) }
    }

    fn leave_recorded(&self, row: &PieceRow) -> Vec<Tick> {
        let (_over, _left);
        let mut records = self.records.lock();
        _over = records.take_finished();
        let (joined, writes) = (records.join(row), std::mem::take(&mut records.writes));
        match (joined, writes) {
            (Ok(()), true) => row.end_use(),
            (Err(_), false) => row.begin_use(),
            (Ok(()), false) | (Err(_), _) => {}
        }
        // Streams of this process wait for these ticks if the piece arrives again.
        _left = std::mem::take(&mut records.streams);
        let covering: Vec<Tick> = _left.iter().filter_map(|one| one.covering).collect();
        covering.iter().for_each(|tick| keep_latest(&mut records.before, *tick));
        covering
    }
}

impl UseLog {
    fn join(&mut self, row: &PieceRow) -> Result<()> {
        let ticks = self.cover(|_| true)?;
        let of = |tick: &Tick| self.streams.iter().find(|one| one.covering == Some(*tick));
        let Some(one) = ticks.first().and_then(of) else { return Ok(()) };
        let mut release = None;
        loop {
            let raw = row.last_use();
            let last = Tick::from_raw(raw);
            let how = last_use_change(
                last,
                &ticks,
                |tick| is_complete(tick).ok(),
                |tick| contains(&one.waited, tick),
            );
            let LastUseChange::Swap { tick, mixes } = how else { return Ok(()) };
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
                    stream.wait_for(tick, StreamWaitPurpose::Results)?;
                }
                stream.tick()?
            };
            if row.join_last_use(raw, joined.raw()).is_ok() {
                return Ok(());
            }
        }
    }
}

/// Release streams of this process, one for each device. A release stream only waits for uses of dropped
/// pieces.
static RELEASE: PerProcess<Mutex<Vec<CudaStream>>> = mp_core::per_process!(Mutex::new(Vec::new()));

/// Returns the release stream of a device, after submitting waits for these ticks to it.
fn release_of(device: &Device, ticks: &[Tick]) -> Result<CudaStream> {
    let stream = release(device)?;
    ticks.iter().try_for_each(|tick| stream.wait_for(*tick, StreamWaitPurpose::Results))?;
    Ok(stream)
}

fn release(device: &Device) -> Result<CudaStream> {
    let there = || RELEASE.lock().iter().find(|stream| stream.device() == device).cloned();
    if let Some(stream) = there() {
        return Ok(stream);
    }
    // The caller holds the piece's lock.
    let stream = CudaStream::new_under_locks(device)?;
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
    fn last_tick_of_each_using_stream_is_recorded() {
        let at = |clock, epoch, count| Tick::new(clock, Tick::base(epoch) + count);
        let mut list = Vec::new();
        for tick in [at(3, 1, 5), at(3, 1, 4), at(4, 1, 1), at(3, 1, 6), at(3, 2, 1)] {
            keep_latest(&mut list, tick);
        }
        // The list retains a tick of the clock's previous owner in addition to the next owner's tick: the
        // previous owner may have died.
        assert_eq!(list, [at(3, 1, 6), at(4, 1, 1), at(3, 2, 1)]);
        assert!(contains(&list, at(3, 1, 5)) && contains(&list, at(3, 2, 1)));
        assert!(
            !contains(&list, at(3, 1, 7))
                && !contains(&list, at(4, 2, 1))
                && !contains(&list[2..], at(3, 1, 6))
        );
    }
}
