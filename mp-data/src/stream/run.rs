//! A lane that a worker has open: its reader, and the samples that are read and not given.

use std::collections::VecDeque;

use super::dataset::{IterableDataset, Position, SampleOf, ShardReader};
use super::order::StreamPlan;
use crate::context::Context;
use crate::lane::LaneAt;
use crate::moment::{MOST_SAMPLES, Moment, position};
use crate::{AnyResult, Item};

/// A sample, or why it can't be read.
pub(crate) struct Read<S> {
    pub(crate) item: Item,
    pub(crate) shard: usize,
    pub(crate) sample: AnyResult<S>,
}

/// What is known of the lane while it is read.
pub(crate) struct Reading<'a, D: IterableDataset> {
    pub(crate) dataset: &'a mut D,
    pub(crate) plan: &'a StreamPlan,
    pub(crate) order: &'a [u32],
    pub(crate) cx: &'a Context<D::Batch>,
    pub(crate) epoch: u64,
    pub(crate) pass: u64,
    pub(crate) lane: u64,
}

pub(crate) struct Run<D: IterableDataset> {
    reader: Option<D::Reader>,
    /// Where the reader is; or where one is to be opened.
    now: LaneAt,
    /// Where the window begins whose samples are here, and how many of them were taken.
    begins: LaneAt,
    window: VecDeque<Read<SampleOf<D>>>,
    /// Behind the window the lane has no samples.
    is_last: bool,
}

impl<D: IterableDataset> Run<D> {
    pub(crate) fn new(at: &LaneAt) -> Self {
        let window = VecDeque::new();
        Run { reader: None, now: at.clone(), begins: at.clone(), window, is_last: false }
    }

    /// Where it is, and whether it is at its end.
    pub(crate) fn at(&self) -> (LaneAt, bool) {
        let mut at = if self.window.is_empty() { self.now() } else { self.begins.clone() };
        at.cuts.retain(|cut| cut.0 >= at.place);
        (at, self.window.is_empty() && self.is_last)
    }

    fn now(&self) -> LaneAt {
        let token = self.reader.as_ref().map_or(self.now.token, ShardReader::token);
        LaneAt { token, done: 0, ..self.now.clone() }
    }

    /// The next samples, `most` of them unless the lane ends.
    pub(crate) fn take(
        &mut self,
        most: u64,
        reading: &mut Reading<'_, D>,
    ) -> AnyResult<Vec<Read<SampleOf<D>>>> {
        let mut taken = Vec::new();
        while (taken.len() as u64) < most {
            // What was given before, if this is a lane that was opened again.
            let mut before = std::mem::take(&mut self.now.done);
            while self.window.is_empty() && !self.is_last {
                self.fill(reading, before > 0)?;
                let over = before.min(self.window.len() as u64);
                self.window.drain(..over as usize);
                self.begins.done = over;
                before -= over;
            }
            let Some(read) = self.window.pop_front() else { break };
            self.begins.done += 1;
            taken.push(read);
        }
        Ok(taken)
    }

    fn fill(&mut self, reading: &mut Reading<'_, D>, again: bool) -> AnyResult<()> {
        let plan = reading.plan;
        let again = again && plan.window > 0;
        let moment = if again { Moment::ReadAgain } else { Moment::Read };
        self.begins = self.now();
        let mut begins = 0;
        let mut window = Vec::new();
        while (window.len() as u64) < plan.read_at_once() {
            let (place, sample) = (self.now.place, self.now.sample);
            let Some(shard) = plan.shard(reading.order, reading.lane, place) else {
                self.is_last = true;
                break;
            };
            if window.is_empty() {
                begins = position(shard, sample);
            }
            if self.now.end_of(place) <= sample {
                self.next_shard();
                continue;
            }
            reading.cx.is_at(moment, position(shard, sample));
            let mut reader = match self.reader.take() {
                Some(reader) => reader,
                None => self.open(shard, reading.dataset)?,
            };
            if sample >= MOST_SAMPLES {
                return Err("the shard has more samples than 2⁴⁰".into());
            }
            let item = Item { index: sample as usize, position: position(shard, sample) };
            match reader.read() {
                Ok(None) => {
                    self.next_shard();
                    continue;
                }
                Ok(Some(sample)) => window.push(Read { item, shard, sample: Ok(sample) }),
                Err(error) => window.push(Read { item, shard, sample: Err(error) }),
            }
            self.now.sample += 1;
            self.reader = Some(reader);
        }
        plan.permute(&mut window, (reading.epoch, reading.pass), begins);
        self.window = window.into();
        Ok(())
    }

    fn next_shard(&mut self) {
        self.reader = None;
        (self.now.place, self.now.sample, self.now.token) = (self.now.place + 1, 0, None);
    }

    /// A reader at the place where the lane is.
    fn open(&self, shard: usize, dataset: &mut D) -> AnyResult<D::Reader> {
        let LaneAt { sample, token, .. } = self.now;
        if token.is_some() {
            let reader = dataset.open(shard, Position { sample, token })?;
            let says = reader.token();
            if says != token {
                return Err(format!(
                    "the reader was opened at token {token:?}, sample {sample}, and says it is at {says:?}: a token has to lead to the place \
                     at which it was asked for"
                )
                .into());
            }
            return Ok(reader);
        }
        let mut reader = dataset.open(shard, Position::default())?;
        for before in 0..sample {
            // A sample that can't be read is one.
            if let Ok(None) = reader.read() {
                return Err(format!(
                    "the shard ends after {before} samples, but {sample} were read from it before: it is not the same any more"
                )
                .into());
            }
        }
        Ok(reader)
    }
}
