//! Engine of the simulator: the GPU and its kernel module, as one process for each session. The engine stores
//! memory, streams and handles of all clients, runs their work, and records violations. Work of a stopped
//! client continues. Work of a killed client continues for a configurable time, and is then discarded.

mod calls;
mod goal;
mod memory;
mod process;
mod profile;
mod races;
mod schedule;
mod serve;
mod streams;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::{Rc, Weak};

use memory::Allocation;
use process::{FreeHandles, Process};
use profile::Config;
use races::clock::Clock;
use races::findings::Findings;
use streams::{EventCore, Stream};

pub use serve::run;

/// Names of kernels, and sizes of their parameters in bytes. `kernels.ptx` contains the same kernels.
pub const KERNELS: &[(&str, &[u32])] = streams::work::KERNELS;

/// Exported memory. The descriptor that clients get is the reading end of a pipe, and the engine keeps the
/// writing end.
#[derive(Debug)]
struct Export {
    allocation: Rc<Allocation>,
    /// Identity of the pipe.
    file: (u64, u64),
    /// Writing end of the pipe. A poll reports an error when no process or message has a reading end.
    end: OwnedFd,
}

/// State of the simulated machine.
#[derive(Debug)]
struct Engine {
    config: Config,
    findings: Findings,
    processes: BTreeMap<u64, Process>,
    streams: BTreeMap<u64, Stream>,
    exports: Vec<Export>,
    allocations: Vec<Weak<Allocation>>,
    /// Events that other processes may open, by name.
    shared_events: BTreeMap<u64, Weak<EventCore>>,
    /// Memory of `cuMemAlloc` by the id in its handle: process that allocated it, and memory.
    shared_memory: HashMap<u64, (u64, Weak<Allocation>)>,
    /// Vector clock of the hosts: the work whose end some host has observed. All hosts share one clock,
    /// because their calls are ordered by their arrival at the engine.
    host: Rc<Clock>,
    /// Vector clock of writes to host memory, which hosts can observe without a call. It is joined to `host`
    /// at the next call.
    published: Clock,
    /// Words that streams have written: value, and vector clock of the write.
    words: HashMap<(u64, u64, u64), (u64, Clock)>,
    /// For each word, the id of the process that last submitted a write of the word to a stream.
    writers: HashMap<(u64, u64, u64), u32>,
    /// Devices that fell off the bus, by index.
    lost: Vec<u32>,
    calls: u64,
    next: u64,
    actors: u32,
    random: u64,
}

impl Engine {
    fn new(config: Config, folder: &Path) -> std::io::Result<Self> {
        Ok(Self {
            random: config.seed,
            findings: Findings::create(&folder.join("findings"))?,
            config,
            processes: BTreeMap::new(),
            streams: BTreeMap::new(),
            exports: Vec::new(),
            allocations: Vec::new(),
            shared_events: BTreeMap::new(),
            shared_memory: HashMap::new(),
            host: Rc::default(),
            published: Clock::default(),
            words: HashMap::new(),
            writers: HashMap::new(),
            lost: Vec::new(),
            calls: 0,
            next: 0,
            actors: 0,
        })
    }

    /// Returns a unique number, for handles and ids. As an address, the number is outside of the host's
    /// range.
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        0x0800_0000_0000 + self.next * 64
    }

    /// Returns a handle for an object of a process: the last released handle of its kind, or a new one.
    fn handle(&mut self, process: u64, kind: impl Fn(&mut FreeHandles) -> &mut Vec<u64>) -> u64 {
        let unused = self.processes.get_mut(&process).and_then(|owner| kind(&mut owner.unused).pop());
        unused.unwrap_or_else(|| self.fresh())
    }

    /// Returns the next pseudo-random number below `below` (splitmix64 from the seed).
    fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((x ^ (x >> 31)) % below.max(1) as u64).unwrap_or(0)
    }

    /// Returns the number of bytes of a device that allocations use.
    fn used(&mut self, device: u32) -> u64 {
        self.allocations.retain(|allocation| allocation.strong_count() > 0);
        let all = self.allocations.iter().filter_map(Weak::upgrade);
        all.filter(|allocation| allocation.device == device).map(|allocation| allocation.size).sum()
    }

    /// Allocates memory of a device. Returns `None` if the device has too little free memory.
    fn allocate(&mut self, device: u32, size: u64, handle_types: i32) -> Option<Rc<Allocation>> {
        let total = self.config.devices.iter().find(|one| one.index == device)?.bytes;
        if self.used(device).checked_add(size)? > total {
            return None;
        }
        let mut bytes = Vec::<u8>::new();
        bytes.try_reserve_exact(usize::try_from(size).ok()?).ok()?;
        // Zeroed pages that were never touched: the kernel provides them at the first write.
        drop(bytes);
        let bytes = vec![0; usize::try_from(size).ok()?];
        let id = self.fresh();
        let allocation = Rc::new(Allocation {
            id,
            device,
            size,
            handle_types,
            bytes: bytes.into(),
            shadow: std::cell::RefCell::default(),
        });
        self.allocations.push(Rc::downgrade(&allocation));
        Some(allocation)
    }

    /// Returns the statistics of the session as JSON.
    fn stats(&mut self) -> String {
        let bytes: Vec<u64> =
            (0..self.config.devices.len()).map(|i| self.used(u32::try_from(i).unwrap_or(0))).collect();
        let queued: usize = self.streams.values().map(|stream| stream.queue.len()).sum();
        let live = self.processes.values().filter(|process| process.gone_at.is_none()).count();
        let opened = |process: &Process| process.events.values().filter(|event| event.imported).count();
        let made = |process: &Process| process.events.len() - opened(process);
        let reserved = |process: &Process| process.addresses.reserved.len();
        serde_json::json!({
            "bytes": bytes,
            "events": self.processes.values().map(made).sum::<usize>(),
            "opened-events": self.processes.values().map(opened).sum::<usize>(),
            "handles": self.processes.values().map(|process| process.handles.len()).sum::<usize>(),
            "reserved": self.processes.values().map(reserved).sum::<usize>(),
            "processes": live,
            "leaving": self.processes.len() - live,
            "streams": self.streams.len(),
            "queued": queued,
            "exports": self.exports.len(),
            "calls": self.calls,
            "findings": self.findings.count(),
        })
        .to_string()
    }
}
