//! Calls that prevent later work of one stream from running concurrently with earlier work of another.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mp_cuda::driver::api::{DriverHandle, IpcHandle};

use crate::barrier_calls::{CALLS, Call};
use crate::gpu::{Gpu, Outcome, ProbeError};
use crate::helper::{self, Helper, ms, number, tell, us};
use crate::host::{self, Shared};

/// Sizes of virtual memory, and of legacy memory.
pub(crate) const BLOCK: usize = 32 << 20;
pub(crate) const PIECE: usize = 8 << 20;

/// Words of the page.
const STARTED: usize = 0;
const SEEN: usize = 8;

/// Objects that the calls use.
pub(crate) struct Bench {
    pub(crate) gpu: Gpu,
    /// Busy stream, and writing stream.
    pub(crate) a: DriverHandle,
    pub(crate) b: DriverHandle,
    /// Result or argument of a call.
    pub(crate) handle: u64,
    pub(crate) at: u64,
    pub(crate) object: DriverHandle,
    pub(crate) stream: Option<DriverHandle>,
    pub(crate) file: Option<OwnedFd>,
    /// Memory that stays allocated.
    pub(crate) buffer: u64,
    pub(crate) pages: Shared,
    pub(crate) bytes: &'static [u8],
    /// Objects of another process.
    pub(crate) their_event: IpcHandle,
    pub(crate) their_memory: IpcHandle,
    pub(crate) their_file: OwnedFd,
    words: Shared,
    device: u64,
    count: u64,
}

/// Measurements of a row: the call, the time from the write until its value is observed, and whether A was
/// busy then.
struct Row {
    call: Duration,
    seen: Duration,
    busy: bool,
}

impl Bench {
    /// Creates all objects that calls use. Returns the process that has created some of them, and must live
    /// as long.
    pub(crate) fn start() -> Outcome<(Self, Helper)> {
        let (mine, theirs) = host::pair()?;
        let mut maker = Helper::start("barriers", &[theirs.to_string()])?;
        let gpu = Gpu::start()?;
        let words = Shared::new(4096)?;
        let device = gpu.register(words.host, words.bytes)?;
        let line = maker.hear()?;
        let (event, memory) = line.split_once(' ').ok_or_else(|| ProbeError(line.clone()))?;
        let bench = Bench {
            a: gpu.stream()?,
            b: gpu.stream()?,
            handle: 0,
            at: 0,
            object: DriverHandle::NULL,
            stream: None,
            file: None,
            buffer: gpu.alloc(2 * PIECE)?,
            pages: Shared::new(256 << 10)?,
            bytes: Box::leak(vec![1; 1 << 20].into_boxed_slice()),
            their_event: helper::handle(event)?,
            their_memory: helper::handle(memory)?,
            their_file: host::receive(mine)?,
            gpu,
            words,
            device,
            count: 0,
        };
        Ok((bench, maker))
    }
}

pub(crate) fn ask() -> Outcome {
    let (mut bench, _maker) = Bench::start()?;
    println!("{}, driver {}", bench.gpu.device_name()?, bench.gpu.version()?);
    // First uses of the kernel and the streams.
    bench.row(&CALLS[0], 1)?;
    println!(
        "{:<54} | {:>10} {:>9} {:<5} | {:>10} {:>9} {:<5}",
        "a spin of 200 ms on A; the call; a write on B",
        "call us",
        "seen ms",
        "A",
        "again us",
        "seen ms",
        "A"
    );
    for call in CALLS {
        let figures = |row: Outcome<Row>| match row {
            Err(ProbeError(why)) => why,
            Ok(row) => {
                let a = if row.busy { "busy" } else { "over" };
                format!("{:>10.1} {:>9.2} {a:<5}", us(row.call), ms(row.seen))
            }
        };
        let first = figures(bench.row(call, 200));
        let again = figures(bench.row(call, 80));
        println!("{:<54} | {first} | {again}", call.name);
    }
    println!("(again: with a spin of 80 ms; busy: A's spin was running still when B's word was seen)");
    Ok(())
}

impl Bench {
    fn row(&mut self, call: &Call, spin: u64) -> Outcome<Row> {
        (call.before)(self)?;
        self.gpu.sync(self.b)?;
        self.count += 1;
        let count = self.count;
        self.gpu.write(self.a, self.device + 8 * STARTED as u64, count)?;
        self.gpu.spin(self.a, spin)?;
        self.words.seen("the start of A's spin", STARTED, count)?;
        // The kernel is queued after the write.
        std::thread::sleep(Duration::from_millis(2));
        let begin = Instant::now();
        let outcome = (call.call)(self);
        let time = begin.elapsed();
        let b = self.stream.unwrap_or(self.b);
        let row = match outcome {
            Err(why) => Err(why),
            Ok(()) => self.write_and_see(b, count).map(|(seen, busy)| Row { call: time, seen, busy }),
        };
        self.gpu.sync(self.a)?;
        self.gpu.sync(b)?;
        let after = (call.after)(self);
        row.and_then(|row| after.map(|()| row))
    }

    fn write_and_see(&self, b: DriverHandle, count: u64) -> Outcome<(Duration, bool)> {
        let begin = Instant::now();
        self.gpu.write(b, self.device + 8 * SEEN as u64, count)?;
        self.words.seen("B's word", SEEN, count)?;
        let seen = begin.elapsed();
        Ok((seen, self.gpu.is_busy(self.a)))
    }
}

/// Creates objects for import by others.
pub(crate) fn help(arguments: &[String]) -> Outcome {
    let gpu = Gpu::start()?;
    let file = gpu.export(gpu.create(BLOCK)?)?;
    host::send(number(arguments, 0)?, &file)?;
    let event = gpu.event()?;
    let (stream, memory) = (gpu.stream()?, gpu.alloc(PIECE)?);
    gpu.record(event, stream)?;
    gpu.sync(stream)?;
    let (event, memory) = (gpu.event_handle(event)?, gpu.memory_handle(memory)?);
    tell(&format!("{} {}", helper::text(event), helper::text(memory)))?;
    _ = helper::heard();
    // The descriptor is open until then.
    _ = file.as_raw_fd();
    Ok(())
}
