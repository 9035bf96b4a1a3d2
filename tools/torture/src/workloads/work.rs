//! Work of the workers. A worker ends when its round has ended, and returns an error for a violation. Its
//! time-outs are so long that the torture detects a hang first.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mp::connection::RecvIntoError;
use mp::queue::PutManyError;
use mp::{Connection, Event, FrozenTensor, GetError, JoinableQueue, PutError, Queue, Receiver, Sender};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::{Op, Row};
use crate::bookkeeping::ledger::Ledger;
use crate::bookkeeping::parcel::{Job, Parcel};
use crate::random::Random;
use crate::workloads::cuda;
use crate::workloads::files::Cargo;
use crate::workloads::hosts::HostConfig;
use crate::workloads::locks::Locks;
use crate::workloads::newest::{ToAll, Watched};
use crate::workloads::objects::Objects;
use crate::workloads::select::{Inlets, Outlets};
use crate::workloads::sockets::Service;

/// Time-out of waits, which exceeds the deadline for idle workers.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// Largest number of messages in flight in a pipe.
pub(crate) const IN_PIPE: u64 = 4;

/// Kind of work of a worker, with the handles that the worker uses.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Work {
    Put(Queue<Parcel>),
    /// Queue, and largest number of messages to get at once.
    Get(Queue<Parcel>, usize),
    PutJobs(Queue<Job>),
    Acknowledge(Queue<Job>),
    Send(Sender<Parcel>),
    Receive(Receiver<Parcel>),
    PutTasks(JoinableQueue<Job>),
    DoTasks(JoinableQueue<Job>),
    Ping(Connection),
    Pong(Connection),
    Lock(Locks),
    Watch(Watched),
    Broadcast(ToAll),
    Objects(Objects),
    PutAnywhere(Outlets),
    Select(Inlets),
    PutAsync(Queue<Parcel>),
    GetAsync(Queue<Parcel>),
    Call(Service),
    Serve(Service),
    SendAndLeave(Sender<Parcel>),
    ReceiveAll(Receiver<Parcel>),
    /// `true` if the worker may fork its worker processes.
    OwnPool(bool),
    /// `true` if the worker may fork its worker processes.
    OwnLoader(bool),
    PutFiles(Queue<Cargo>),
    GetFiles(Queue<Cargo>),
    BeHome(HostConfig, Queue<Job>, Event),
    /// Settings for joining the cluster, and `true` if the worker puts messages.
    UseHome(HostConfig, bool),
    MakeOnGpu(cuda::Ways),
    /// Queues, and `true` if the worker has a GPU.
    Relay(cuda::Ways, bool),
    ConsumeOnGpu(cuda::Ways),
}

/// Arguments of a worker.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Post {
    pub(crate) work: Work,
    pub(crate) ledger: Ledger,
    pub(crate) common: FrozenTensor<u64>,
    pub(crate) row: Row,
    pub(crate) seed: u64,
}

/// Runs the work of a worker.
pub(crate) fn work(post: Post) -> mp::AnyResult<()> {
    // Work always continues or ends, so no wait of a worker is a hang.
    mp::wait::report_hangs_after(Some(Duration::from_millis(200)));
    mp::wait::on_report(|text, hang| assert!(!hang, "torn: a false alarm of a hang: {text}"));
    post.row.note(Op::Begin, post.row.mark());
    let (worker, work) = Worker::new(post);
    worker.run(work)
}

pub(crate) struct Worker {
    pub(crate) ledger: Ledger,
    pub(crate) common: FrozenTensor<u64>,
    pub(crate) row: Row,
    pub(crate) random: Random,
    pub(crate) mark: u64,
    /// Number of the last message of each producer on each path.
    last: HashMap<(u64, u8), u64>,
}

impl Worker {
    fn new(post: Post) -> (Self, Work) {
        let Post { work, ledger, common, row, seed } = post;
        let mark = row.mark();
        let random = Random::new(seed);
        (Self { ledger, common, row, random, mark, last: HashMap::new() }, work)
    }

    fn run(mut self, work: Work) -> mp::AnyResult<()> {
        match work {
            Work::Put(queue) => self.put(&queue),
            Work::Get(queue, 1) => self.get(&queue),
            Work::Get(queue, most) => self.get_many(&queue, most),
            Work::PutJobs(queue) => self.put_jobs(|me, n, job| me.was_put(n, queue.put_timeout(job, LONG))),
            Work::PutTasks(queue) => self.put_jobs(|me, n, job| me.was_put(n, queue.put_timeout(job, LONG))),
            Work::Acknowledge(queue) => self.acknowledge(&queue),
            Work::DoTasks(queue) => self.do_tasks(&queue),
            Work::Send(sender) => self.send(&sender),
            Work::Receive(receiver) => self.receive(&receiver),
            Work::Ping(connection) => self.ping(&connection),
            Work::Pong(connection) => self.pong(&connection),
            Work::Lock(locks) => locks.work(&self.row, &mut self.random),
            Work::Watch(watched) => watched.work(&self.row, &mut self.random),
            Work::Broadcast(to_all) => to_all.work(&self.row, &mut self.random),
            Work::Objects(objects) => objects.work(&self.row, &mut self.random),
            Work::PutAnywhere(outlets) => self.put_anywhere(&outlets),
            Work::Select(inlets) => self.select(&inlets),
            Work::PutAsync(queue) => self.put_async(&queue),
            Work::GetAsync(queue) => self.get_async(&queue),
            Work::Call(service) => self.call(&service),
            Work::Serve(service) => self.serve(&service),
            Work::SendAndLeave(sender) => self.send_and_leave(&sender),
            Work::ReceiveAll(receiver) => self.receive_all(&receiver),
            Work::OwnPool(copies) => self.own_pool(copies),
            // A loader of an indexed dataset, or of shards.
            Work::OwnLoader(copies) if self.random.percent(50) => self.own_stream(copies),
            Work::OwnLoader(copies) => self.own_loader(copies),
            Work::PutFiles(queue) => self.put_files(&queue),
            Work::GetFiles(queue) => self.get_files(&queue),
            Work::BeHome(config, queue, over) => self.be_home(&config, &queue, &over),
            Work::UseHome(config, puts) => self.use_home(&config, puts),
            Work::MakeOnGpu(ways) => self.make_on_gpu(&ways),
            Work::Relay(ways, gpu) => self.relay(&ways, gpu),
            Work::ConsumeOnGpu(ways) => self.consume_on_gpu(&ways),
        }?;
        self.row.note(Op::End, 0);
        Ok(())
    }

    /// Creates the next message to put. Returns `None` if the round has ended or the ledger is full.
    pub(crate) fn next(&mut self, op: Op) -> mp::AnyResult<Option<Parcel>> {
        let Some(number) = self.ledger.begin().filter(|_| !self.row.over()) else { return Ok(None) };
        self.row.note(op, number);
        Ok(Some(Parcel::new(number, self.mark, &self.common, &mut self.random)?))
    }

    /// Records the result of a put.
    pub(crate) fn was_put<T>(&self, number: u64, end: Result<(), PutError<T>>) -> mp::AnyResult<()> {
        match end {
            Ok(()) => self.ledger.put(number),
            // The message is too large for a queue that is bounded by bytes.
            Err(PutError::TooLarge { .. }) => self.ledger.refused(number)?,
            Err(error) => {
                self.ledger.refused(number)?;
                return Err(format!("message {number} was not put: {error}").into());
            }
        }
        Ok(())
    }

    fn put(&mut self, queue: &Queue<Parcel>) -> mp::AnyResult<()> {
        loop {
            if self.random.percent(10) {
                let many = 1 + self.random.below(20);
                let mut parcels = Vec::new();
                for _ in 0..many {
                    parcels.extend(self.next(Op::PutMany)?);
                }
                let numbers: Vec<u64> = parcels.iter().map(|p| p.job.number).collect();
                let put = match queue.put_many(parcels) {
                    Ok(put) => put,
                    Err(PutManyError { put, error: PutError::TooLarge { .. }, .. }) => {
                        self.ledger.refused(numbers[put])?;
                        put
                    }
                    Err(error) => return Err(error.to_string().into()),
                };
                numbers[..put].iter().for_each(|&n| self.ledger.put(n));
            }
            let Some(parcel) = self.next(Op::Put)? else { return Ok(()) };
            self.was_put(parcel.job.number, queue.put_timeout(parcel, LONG))?;
        }
    }

    fn put_jobs(&mut self, put: impl Fn(&Self, u64, Job) -> mp::AnyResult<()>) -> mp::AnyResult<()> {
        while !self.row.over()
            && let Some(number) = self.ledger.begin()
        {
            self.row.note(Op::Put, number);
            let job = Job::new(number, self.mark, &self.common, &mut self.random)?;
            put(self, number, job)?;
        }
        Ok(())
    }

    fn send(&mut self, sender: &Sender<Parcel>) -> mp::AnyResult<()> {
        while let Some(parcel) = self.next(Op::Send)? {
            self.was_put(parcel.job.number, sender.send_timeout(parcel, LONG))?;
        }
        Ok(())
    }

    /// Checks and records a message that was got without acknowledgement: it is not torn, no other consumer
    /// has got it, and it follows its sender's earlier messages.
    pub(crate) fn got(&mut self, parcel: &Parcel) -> mp::AnyResult<()> {
        self.got_by(0, parcel)
    }

    /// Checks and records a message like [`got`](Self::got), for a worker with several paths. The order is
    /// checked for each path `way`.
    pub(crate) fn got_by(&mut self, way: u8, parcel: &Parcel) -> mp::AnyResult<()> {
        parcel.check()?;
        self.numbered(way, parcel.job.from, parcel.job.number)
    }

    /// Records message `number` of the sender `from` on the path `way`. Returns an error unless the number is
    /// greater than those of the sender's earlier messages on the path.
    pub(crate) fn numbered(&mut self, way: u8, from: u64, number: u64) -> mp::AnyResult<()> {
        if let Some(before) = self.last.insert((from, way), number)
            && before >= number
        {
            return Err(format!("duplicated: message {number} after {before}, both from {from:#x}").into());
        }
        self.ledger.got(number, true)
    }

    fn get(&mut self, queue: &Queue<Parcel>) -> mp::AnyResult<()> {
        loop {
            self.row.note(Op::Get, queue.len() as u64);
            let Some(parcel) = queue.get_timeout(LONG)? else { return Ok(()) };
            self.got(&parcel)?;
        }
    }

    fn get_many(&mut self, queue: &Queue<Parcel>, most: usize) -> mp::AnyResult<()> {
        loop {
            self.row.note(Op::GetMany, queue.len() as u64);
            let mut parcels = Vec::new();
            if queue.get_many_deadline(&mut parcels, most, Instant::now() + LONG)? == 0 {
                return Ok(());
            }
            for parcel in &parcels {
                self.got(parcel)?;
            }
        }
    }

    fn acknowledge(&mut self, queue: &Queue<Job>) -> mp::AnyResult<()> {
        loop {
            self.row.note(Op::Lease, queue.len() as u64);
            let Some(lease) = queue.get_lease_timeout(LONG)? else { return Ok(()) };
            lease.check()?;
            self.ledger.got(lease.number, false)?;
            if self.random.percent(5) {
                self.row.note(Op::GiveBack, lease.number);
                lease.give_back();
            } else {
                self.row.note(Op::Done, lease.number);
                self.ledger.done(lease.ack().number)?;
            }
        }
    }

    fn do_tasks(&mut self, queue: &JoinableQueue<Job>) -> mp::AnyResult<()> {
        loop {
            self.row.note(Op::Lease, queue.len() as u64);
            let Some(task) = queue.get_timeout(LONG)? else { return Ok(()) };
            task.check()?;
            self.ledger.got(task.number, true)?;
            self.row.note(Op::Done, task.number);
            self.ledger.done(task.ack().number)?;
        }
    }

    fn receive(&mut self, receiver: &Receiver<Parcel>) -> mp::AnyResult<()> {
        loop {
            self.row.note(Op::Receive, receiver.len() as u64);
            match receiver.recv_timeout(LONG) {
                Ok(parcel) => self.got(&parcel)?,
                Err(GetError::Disconnected) if self.row.over() => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends messages over a pipe, and waits for the answer to each. Returns when the other process is dead.
    fn ping(&mut self, connection: &Connection) -> mp::AnyResult<()> {
        loop {
            let mut sent = Vec::new();
            for _ in 0..=self.random.below(IN_PIPE) {
                let Some(parcel) = self.next(Op::Send)? else { break };
                let number = parcel.job.number;
                sent.push(number);
                match connection.send(parcel) {
                    Err(PutError::Disconnected(_)) => return Ok(()),
                    end => self.was_put(number, end)?,
                }
            }
            if sent.is_empty() {
                return Ok(());
            }
            for number in sent {
                self.row.note(Op::Receive, number);
                let mut bytes = [0; 8];
                match connection.recv_into(&mut bytes) {
                    Ok(8) if bytes == number.to_le_bytes() => {}
                    Err(RecvIntoError::Get(GetError::Disconnected)) => return Ok(()),
                    other => return Err(format!("torn: {other:?} {bytes:?} for message {number}").into()),
                }
            }
        }
    }

    fn pong(&mut self, connection: &Connection) -> mp::AnyResult<()> {
        loop {
            self.row.note(Op::Receive, 0);
            if self.random.percent(30) && !connection.poll(LONG)? {
                return Err("hang: nothing in a pipe".into());
            }
            let parcel: Parcel = match connection.recv_timeout(LONG) {
                Err(GetError::Disconnected) => return Ok(()),
                other => other?,
            };
            self.got(&parcel)?;
            self.row.note(Op::Send, parcel.job.number);
            match connection.send_bytes(&parcel.job.number.to_le_bytes()) {
                Ok(()) | Err(PutError::Disconnected(_)) => {}
                Err(error) => return Err(error.to_string().into()),
            }
        }
    }
}
