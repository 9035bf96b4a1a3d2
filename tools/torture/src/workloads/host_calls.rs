//! Calls by which workers use a queue of a cluster.

use std::iter;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use mp::cluster::{NetError, RemoteGetError, RemotePutError, RemotePutManyError, RemoteQueue};

use crate::bookkeeping::board::Op;
use crate::bookkeeping::parcel::Job;
use crate::workloads::futures::drive;
use crate::workloads::hosts::HostConfig;
use crate::workloads::work::Worker;

/// Longest wait of a call for room or for a message, in milliseconds.
const MOST_WAIT: u64 = 300;

/// Returns `Ok` if the error means that the connection to the queue's home was lost. Otherwise returns the
/// error.
pub(super) fn lost(error: NetError) -> mp::AnyResult<()> {
    match error {
        // `Unreachable`: this process was stopped while it connected.
        NetError::PeerLost(_) | NetError::Unreachable { .. } => Ok(()),
        error => Err(error.into()),
    }
}

/// Outcome of a call: it has returned a result, or the connection to the queue's home was lost.
#[derive(PartialEq, Eq)]
pub(super) enum HostCallEnd {
    Done,
    Lost,
}

impl Worker {
    fn wait_time(&mut self) -> Duration {
        Duration::from_millis(self.random.below(MOST_WAIT))
    }

    pub(super) fn put_remote(
        &mut self,
        config: &HostConfig,
        queue: &RemoteQueue<Job>,
    ) -> mp::AnyResult<HostCallEnd> {
        if self.random.below(config.batch as u64) > 0 {
            return self.put_many_remote(config, queue);
        }
        let number = self.ledger.begin().ok_or("the ledger is full")?;
        self.row.note(Op::Put, number);
        let job = Job::new(number, self.mark, &self.common, &mut self.random)?;
        let end = match self.limit(20) {
            Some(limit) => {
                let put = drive(queue.put_async(job), Some(limit));
                // A dropped future may have put the message.
                let Some(end) = put else { return Ok(HostCallEnd::Done) };
                end
            }
            None => {
                let wait = self.wait_time();
                let since = Instant::now();
                let end = queue.put_timeout(job, wait);
                config.has_ended(since, wait)?;
                end
            }
        };
        match end {
            Ok(()) => {
                self.ledger.put(number);
                Ok(HostCallEnd::Done)
            }
            Err(RemotePutError::Full(job)) => {
                job.check()?;
                self.ledger.refused(number)?;
                Ok(HostCallEnd::Done)
            }
            Err(RemotePutError::PeerLost { value, lost }) => {
                value.check()?;
                if !lost.in_doubt {
                    self.ledger.refused(number)?;
                }
                Ok(HostCallEnd::Lost)
            }
            Err(RemotePutError::Failed { value, error }) => {
                value.check()?;
                self.ledger.refused(number)?;
                lost(error)?;
                Ok(HostCallEnd::Lost)
            }
            Err(error) => Err(format!("message {number} was not put: {error}").into()),
        }
    }

    fn put_many_remote(
        &mut self,
        config: &HostConfig,
        queue: &RemoteQueue<Job>,
    ) -> mp::AnyResult<HostCallEnd> {
        let (mut jobs, mut numbers) = (Vec::new(), Vec::new());
        for _ in 0..1 + self.random.below(config.batch as u64) {
            let number = self.ledger.begin().ok_or("the ledger is full")?;
            jobs.push(Job::new(number, self.mark, &self.common, &mut self.random)?);
            numbers.push(number);
        }
        self.row.note(Op::PutMany, numbers[0]);
        let (wait, since) = (self.wait_time(), Instant::now());
        let result = queue.put_many_timeout(jobs, wait);
        config.has_ended(since, wait)?;
        let Err(failed) = result else {
            numbers.into_iter().for_each(|number| self.ledger.put(number));
            return Ok(HostCallEnd::Done);
        };
        let RemotePutManyError { put, error, rest, in_doubt, .. } = *failed;
        let (first, end) = match error {
            RemotePutError::Full(job) => (job, HostCallEnd::Done),
            RemotePutError::PeerLost { value, .. } => (value, HostCallEnd::Lost),
            RemotePutError::Failed { value, error } => {
                lost(error)?;
                (value, HostCallEnd::Lost)
            }
            error => return Err(format!("{} messages were put, and then: {error}", put).into()),
        };
        let mut returned = numbers.split_off(put.min(numbers.len())).into_iter();
        for job in iter::once(first).chain(rest) {
            job.check()?;
            if returned.next() != Some(job.number) {
                return Err(format!("torn: put_many put {put} messages, and returned {}", job.number).into());
            }
            if !in_doubt {
                self.ledger.refused(job.number)?;
            }
        }
        if let Some(number) = returned.next() {
            return Err(format!("torn: put_many put {put} messages, and did not return {number}").into());
        }
        numbers.into_iter().for_each(|number| self.ledger.put(number));
        Ok(end)
    }

    /// Checks and records a message that was taken. In some cases, then sleeps as if working on the message.
    fn has_taken(&mut self, job: &Job) -> mp::AnyResult<()> {
        job.check()?;
        self.ledger.got_late(job.number)?;
        if self.random.percent(10) {
            // sleep: work on the message, in which signals arrive
            std::thread::sleep(Duration::from_millis(self.random.below(10)));
        }
        Ok(())
    }

    pub(super) fn take_remote(
        &mut self,
        config: &HostConfig,
        queue: &RemoteQueue<Job>,
    ) -> mp::AnyResult<HostCallEnd> {
        let mut jobs = Vec::new();
        let got = match self.limit(40) {
            _ if self.random.below(config.batch as u64) > 0 => {
                self.row.note(Op::GetMany, 0);
                let (wait, since) = (self.wait_time(), Instant::now());
                let got = queue.get_many_timeout(&mut jobs, config.batch, wait);
                config.has_ended(since, wait)?;
                match got {
                    Ok(0) => Ok(None),
                    Ok(_) => Ok(jobs.pop()),
                    Err(error) => Err(error),
                }
            }
            // A dropped future has taken nothing. A future whose answer was not polled has taken nothing,
            // either.
            Some(limit) => {
                let mut get = pin!(queue.get_async());
                self.row.note(Op::Poll, 0);
                if let Poll::Ready(end) = get.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    self.row.note(Op::Get, 0);
                    end
                } else {
                    // sleep: time for an answer or a signal to arrive
                    std::thread::sleep(Duration::from_millis(self.random.below(30)));
                    self.row.note(Op::Get, 0);
                    match drive(get, Some(limit)) {
                        Some(end) => end,
                        None => return Ok(HostCallEnd::Done),
                    }
                }
            }
            None => {
                self.row.note(Op::Get, 0);
                let wait = self.wait_time();
                let since = Instant::now();
                let end = queue.get_timeout(wait);
                config.has_ended(since, wait)?;
                end
            }
        };
        let Some(job) = taken(got)? else { return Ok(HostCallEnd::Lost) };
        jobs.extend(job);
        if jobs.is_empty() {
            return Ok(HostCallEnd::Done);
        }
        for job in &jobs {
            self.has_taken(job)?;
            self.row.note(Op::Done, job.number);
        }
        let since = Instant::now();
        let flushed = queue.flush();
        config.has_ended(since, Duration::ZERO)?;
        match flushed {
            Ok(()) => {
                jobs.iter().try_for_each(|job| self.ledger.done(job.number))?;
                Ok(HostCallEnd::Done)
            }
            Err(error) => {
                // The home has returned the messages to the queue, unless it had already received the
                // acknowledgements.
                lost(error)?;
                jobs.iter().for_each(|job| self.ledger.doubted(job.number));
                Ok(HostCallEnd::Lost)
            }
        }
    }

    pub(super) fn lease_remote(
        &mut self,
        config: &HostConfig,
        queue: &RemoteQueue<Job>,
    ) -> mp::AnyResult<HostCallEnd> {
        self.row.note(Op::Lease, 0);
        let wait = self.wait_time();
        let since = Instant::now();
        let got = queue.get_lease_timeout(wait);
        config.has_ended(since, wait)?;
        let Some(lease) = taken(got)? else { return Ok(HostCallEnd::Lost) };
        let Some(lease) = lease else { return Ok(HostCallEnd::Done) };
        self.has_taken(&lease)?;
        let number = lease.number;
        if self.random.percent(5) {
            self.row.note(Op::GiveBack, number);
            return Ok(HostCallEnd::Done);
        }
        self.row.note(Op::Done, number);
        let since = Instant::now();
        let acknowledged = lease.ack();
        config.has_ended(since, Duration::ZERO)?;
        match acknowledged {
            Ok(_) => {
                self.ledger.done(number)?;
                Ok(HostCallEnd::Done)
            }
            Err(NetError::PeerLost(lost)) => {
                if lost.in_doubt {
                    self.ledger.doubted(number);
                }
                Ok(HostCallEnd::Lost)
            }
            // The home has given the message to another worker.
            Err(NetError::Home { text, .. }) if text.starts_with("the lease has ended") => {
                Ok(HostCallEnd::Done)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Converts the result of a get. Returns `Some(Some(message))`, `Some(None)` if the queue is empty, or `None`
/// if the connection to the queue's home was lost.
fn taken<T>(got: Result<Option<T>, RemoteGetError>) -> mp::AnyResult<Option<Option<T>>> {
    match got {
        Ok(Some(message)) => Ok(Some(Some(message))),
        Ok(None) => Err("torn: the end of an open queue".into()),
        Err(RemoteGetError::Empty) => Ok(Some(None)),
        Err(RemoteGetError::PeerLost(_)) => Ok(None),
        Err(RemoteGetError::Failed(error)) => lost(error).map(|()| None),
        Err(error) => Err(error.into()),
    }
}
