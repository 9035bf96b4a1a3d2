//! Starts, joins and deaths of processes, while other processes exist or memory is in use.

use std::any::Any;
use std::time::Duration;

use mp::{Arena, Process, ProcessContext, Queue, SpawnOptions, StartMethod, Tensor, start_processes};

use super::effort::{Effort, Times, histogram, same};
use crate::process::DEADLINE;
use crate::work::now;
use crate::{Result, limits, ours};

/// Longest sleep of a process that waits until it is killed.
const HOUR: Duration = Duration::from_secs(3600);

/// Sleeping members of the arena, which are killed on drop.
struct Idle(ProcessContext<()>);

impl Drop for Idle {
    fn drop(&mut self) {
        let killed = self.0.kill_all();
        // The error of a killed process is expected.
        if killed.is_err() || matches!(self.0.join_timeout(DEADLINE), Ok(false)) {
            eprintln!("mp-bench: idle processes didn't end");
        }
    }
}

/// Joins the arena, reports this, and sleeps without a call of mp.
fn sleep(_: usize, ready: Queue<u64>) -> Result<()> {
    ready.put(0)?;
    loop {
        std::thread::park_timeout(HOUR);
    }
}

/// Starts `size` processes and waits until all are members.
pub(super) fn idle(size: u64) -> Result<Box<dyn Any>> {
    let ready = Queue::bounded(size as usize)?;
    let options = SpawnOptions::nprocs(size as usize).start_method(StartMethod::ForkServer);
    let idle = Idle(start_processes(sleep, ready.clone(), options)?);
    for _ in 0..size {
        same(Some(0), ready.get_timeout(DEADLINE)?)?;
    }
    Ok(Box::new(idle))
}

pub(super) fn start(effort: &Effort, _: u64) -> Result<Times> {
    histogram(&ours::spawn_times(StartMethod::Spawn, effort.starts())?)
}

pub(super) fn start_by_server(effort: &Effort, _: u64) -> Result<Times> {
    histogram(&ours::spawn_times(StartMethod::ForkServer, effort.starts())?)
}

pub(super) fn start_limit(effort: &Effort, _: u64) -> Result<Times> {
    histogram(&limits::exec::spawn_times(effort.starts())?)
}

pub(super) fn attach(effort: &Effort, _: u64) -> Result<Times> {
    histogram(&ours::alloc::attach_times(effort.starts())?)
}

/// Allocates `count` tensors, reports this, and sleeps.
fn own((ready, count): (Queue<u64>, u64)) -> Result<()> {
    let tensors = (0..count).map(|_| Ok(Tensor::<u8>::empty([64])?)).collect::<Result<Vec<_>>>()?;
    ready.put(tensors.len() as u64)?;
    loop {
        std::thread::park_timeout(HOUR);
    }
}

/// Returns the time from the signal that kills a process until the process has ended, its `count` tensors are
/// free, and its parent has its status.
fn killed(count: u64) -> Result<u64> {
    let arena = Arena::current()?;
    let blocks = || arena.memory_stats().live_blocks;
    let ready = Queue::bounded(1)?;
    let before = blocks();
    let owner = Process::spawn(own, (ready.clone(), count))?;
    same(Some(count), ready.get_timeout(DEADLINE)?)?;
    let start = now();
    owner.kill()?;
    if !owner.wait_timeout(DEADLINE) {
        return Err(format!("a killed process didn't end within {DEADLINE:?}").into());
    }
    let took = now() - start;
    if arena.members().iter().any(|member| member.pid == owner.pid()) {
        return Err("wrong result: a dead process is still a member".into());
    }
    same(before, blocks())?;
    Ok(took)
}

/// Measures the death of a process that owns a tensor.
pub(super) fn recover(effort: &Effort, _: u64) -> Result<Times> {
    effort.sample(effort.starts(), || killed(1))
}

/// Measures the death of a process that owns `size` tensors.
pub(super) fn recover_owner(effort: &Effort, size: u64) -> Result<Times> {
    effort.sample(effort.starts(), || killed(size))
}

pub(super) fn recover_limit(effort: &Effort, _: u64) -> Result<Times> {
    effort.sample(effort.starts(), limits::failure::killed)
}
