//! Open lane of a worker: its reader, and the samples that were read and not yet taken.

use std::collections::VecDeque;
use std::error::Error;

use super::dataset::{IterableDataset, SampleOf, ShardPosition, ShardReader};
use super::lane::LanePosition;
use super::plan::{ShardOrder, StreamPlan};
use crate::dataset::context::Context;
use crate::dataset::stream_position::{MOST_SAMPLES, Moment, position};
use crate::{AnyResult, Item};

/// A sample that was read, or the error of the read.
pub(crate) struct ReadSample<S> {
    pub(crate) item: Item,
    pub(crate) shard: usize,
    pub(crate) sample: AnyResult<S>,
}

/// Borrowed values that are needed to read a lane.
pub(crate) struct ReadContext<'a, D: IterableDataset> {
    pub(crate) dataset: &'a mut D,
    pub(crate) plan: &'a StreamPlan,
    pub(crate) order: &'a ShardOrder,
    pub(crate) cx: &'a Context<D::Batch>,
    pub(crate) epoch: u64,
    pub(crate) pass: u64,
    pub(crate) lane: u64,
}

/// Samples of a window. `None` for a sample that can't be read any more.
type Window<D> = Vec<Option<ReadSample<SampleOf<D>>>>;

pub(crate) struct OpenLane<D: IterableDataset> {
    reader: Option<D::Reader>,
    /// Position of the reader, or, without a reader, the position at which the next reader is opened.
    now: LanePosition,
    /// Position of the lane in the current window: start of the window, and number of its samples that were
    /// taken.
    begins: LanePosition,
    /// Samples of the current window that were not taken. `None` for a sample that can no longer be read.
    window: VecDeque<Option<ReadSample<SampleOf<D>>>>,
    /// `true` if the lane has no samples after the window.
    is_last: bool,
}

impl<D: IterableDataset> OpenLane<D> {
    pub(crate) fn new(at: &LanePosition) -> Self {
        let window = VecDeque::new();
        OpenLane { reader: None, now: at.clone(), begins: at.clone(), window, is_last: false }
    }

    /// Returns the lane's position, and `true` if the lane has ended.
    pub(crate) fn at(&self) -> (LanePosition, bool) {
        let mut at = if self.window.is_empty() { self.now() } else { self.begins.clone() };
        at.cuts.retain(|cut| cut.0 >= at.shard_in_lane);
        (at, self.window.is_empty() && self.is_last)
    }

    fn now(&self) -> LanePosition {
        let token = self.reader.as_ref().map_or(self.now.token, ShardReader::token);
        LanePosition { token, done: 0, lost: 0, window: Vec::new(), ..self.now.clone() }
    }

    /// Takes the next samples, after skipping the samples of lost batches. Returns `most` samples, or fewer
    /// if the lane ends.
    pub(crate) fn take(
        &mut self,
        most: u64,
        reading: &mut ReadContext<'_, D>,
    ) -> AnyResult<Vec<ReadSample<SampleOf<D>>>> {
        let mut lost = std::mem::take(&mut self.now.lost);
        while lost > 0 {
            // Takes at most one batch of samples at a time.
            let some = lost.min(reading.plan.batch_size);
            let at_the_end = (self.take_next(some, reading)?.len() as u64) < some;
            lost = if at_the_end { 0 } else { lost - some };
        }
        self.take_next(most, reading)
    }

    fn take_next(
        &mut self,
        most: u64,
        reading: &mut ReadContext<'_, D>,
    ) -> AnyResult<Vec<ReadSample<SampleOf<D>>>> {
        let mut taken = Vec::new();
        while (taken.len() as u64) < most {
            // Number of samples that were taken before, if this lane was opened again.
            let mut before = std::mem::take(&mut self.now.done);
            while self.window.is_empty() && !self.is_last {
                self.fill(reading)?;
                let over = before.min(self.window.len() as u64);
                self.skip(over);
                before -= over;
                self.skip_missing();
            }
            let Some(read) = self.window.pop_front() else { break };
            self.begins.done += 1;
            taken.extend(read);
            self.skip_missing();
        }
        Ok(taken)
    }

    fn skip(&mut self, samples: u64) {
        self.window.drain(..samples as usize);
        self.begins.done += samples;
    }

    fn skip_missing(&mut self) {
        let missing = self.window.iter().take_while(|read| read.is_none()).count();
        self.skip(missing as u64);
    }

    /// Reads the next window: the rest of a saved window, or a new window that begins at the lane's position.
    fn fill(&mut self, reading: &mut ReadContext<'_, D>) -> AnyResult<()> {
        let plan = reading.plan;
        let saved = std::mem::take(&mut self.now.window);
        self.begins = self.now();
        let mut window = Vec::new();
        let (first, samples) = if saved.is_empty() {
            self.read_next(reading, &mut window)?
        } else {
            (self.read_again(&saved, reading, &mut window)?, saved)
        };
        if plan.window > 0 {
            self.begins.window = samples;
        }
        plan.permute(&mut window, (reading.epoch, reading.pass), first);
        self.window = window.into();
        Ok(())
    }

    /// Reads the samples of a new window. Returns the position of the first sample, and the end of the read
    /// samples in each shard.
    fn read_next(
        &mut self,
        reading: &mut ReadContext<'_, D>,
        window: &mut Window<D>,
    ) -> AnyResult<(u64, Vec<(u64, u64)>)> {
        let (mut first, mut ends) = (0, Vec::<(u64, u64)>::new());
        while (window.len() as u64) < reading.plan.read_at_once() {
            let LanePosition { shard_in_lane, sample, .. } = self.now;
            let Some(shard) = reading.plan.shard(reading.order, reading.lane, shard_in_lane) else {
                self.is_last = true;
                break;
            };
            if self.now.end_of(shard_in_lane) <= sample {
                self.begin_shard(shard_in_lane + 1);
                continue;
            }
            if window.is_empty() {
                first = position(shard, sample);
            }
            match self.read(shard, reading)? {
                None => self.begin_shard(shard_in_lane + 1),
                read => {
                    window.push(read);
                    ends.pop_if(|end| end.0 == shard_in_lane);
                    ends.push((shard_in_lane, self.now.sample));
                }
            }
        }
        Ok((first, ends))
    }

    /// Reads the samples of a saved window again, except samples that can no longer be read. Returns the
    /// position of the first sample.
    fn read_again(
        &mut self,
        samples: &[(u64, u64)],
        reading: &mut ReadContext<'_, D>,
        window: &mut Window<D>,
    ) -> AnyResult<u64> {
        let mut first = None;
        for &(shard_in_lane, end) in samples {
            if shard_in_lane != self.now.shard_in_lane {
                self.begin_shard(shard_in_lane);
            }
            let shard = reading
                .plan
                .shard(reading.order, reading.lane, shard_in_lane)
                .ok_or("there is no such shard")?;
            first.get_or_insert(position(shard, self.now.sample));
            while self.now.sample < end {
                if self.now.end_of(shard_in_lane) <= self.now.sample {
                    window.extend((self.now.sample..end).map(|_| None));
                    (self.reader, self.now.sample, self.now.token) = (None, end, None);
                    break;
                }
                let Some(read) = self.read(shard, reading)? else {
                    return Err(shorter(self.now.sample, end));
                };
                window.push(Some(read));
            }
        }
        self.is_last = (window.len() as u64) < reading.plan.read_at_once();
        Ok(first.unwrap_or_default())
    }

    /// Reads the next sample of shard `shard`, the current shard of the lane.
    fn read(
        &mut self,
        shard: usize,
        reading: &mut ReadContext<'_, D>,
    ) -> AnyResult<Option<ReadSample<SampleOf<D>>>> {
        let sample = self.now.sample;
        reading.cx.note_moment(Moment::Read, position(shard, sample));
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => self.open(shard, reading.dataset)?,
        };
        if sample >= MOST_SAMPLES {
            return Err("the shard has more samples than 2⁴⁰".into());
        }
        let item = Item { index: sample as usize, position: position(shard, sample) };
        let Some(sample) = reader.read().transpose() else { return Ok(None) };
        self.now.sample += 1;
        self.reader = Some(reader);
        Ok(Some(ReadSample { item, shard, sample }))
    }

    fn begin_shard(&mut self, shard_in_lane: u64) {
        self.reader = None;
        (self.now.shard_in_lane, self.now.sample, self.now.token) = (shard_in_lane, 0, None);
    }

    /// Opens a reader at the lane's position.
    fn open(&self, shard: usize, dataset: &mut D) -> AnyResult<D::Reader> {
        let LanePosition { sample, token, .. } = self.now;
        if token.is_some() {
            let reader = dataset.open(shard, ShardPosition { sample, token })?;
            let says = reader.token();
            if says != token {
                return Err(format!(
                    "the reader was opened at token {token:?}, sample {sample}, and says it is at {says:?}: \
                    a token has to lead to where it \
                     was asked for"
                )
                .into());
            }
            return Ok(reader);
        }
        let mut reader = dataset.open(shard, ShardPosition::default())?;
        for before in 0..sample {
            // A sample that can't be read counts, too.
            if let Ok(None) = reader.read() {
                return Err(shorter(before, sample));
            }
        }
        Ok(reader)
    }
}

fn shorter(is: u64, was: u64) -> Box<dyn Error + Send + Sync> {
    format!(
        "the shard ends after {is} samples, but {was} were read from it before: its contents have changed"
    )
    .into()
}
