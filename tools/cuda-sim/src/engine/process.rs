//! State of one client process in the engine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::engine::goal::Goal;
use crate::engine::memory::{Addresses, Allocation, Kind};
use crate::engine::streams::{Event, HostCall};
use crate::wire::DeviceInfo;

/// Primary context of a process for one device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: u32,
    /// Number of retains without a release. At zero, the context and all its objects end.
    pub(crate) retained: u32,
    /// Error that every call in the context returns after a failure. `None` before a failure.
    pub(crate) lost: Option<u32>,
    /// Work after which all later work of the context runs: `(stream, number of operations)`. Replaced by
    /// each call that delays later work.
    pub(crate) barrier: Rc<Vec<(u64, u64)>>,
    /// Condition until which the driver's lock is held: the goal of the last call that waits for all
    /// work of the context.
    pub(crate) locked_until: Goal,
    /// Default stream of the context.
    pub(crate) stream: u64,
}

/// Released handles of each kind, for reuse. A new object gets the last released handle of its kind, because
/// handles of a driver are addresses, which are reused, too. So a stale handle refers to another object.
#[derive(Debug, Default)]
pub(crate) struct FreeHandles {
    pub(crate) memory: Vec<u64>,
    pub(crate) events: Vec<u64>,
    pub(crate) streams: Vec<u64>,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) devices: Vec<DeviceInfo>,
    pub(crate) contexts: BTreeMap<u64, Context>,
    pub(crate) addresses: Addresses,
    /// Memory by handle. Several handles may refer to the same memory.
    pub(crate) handles: BTreeMap<u64, Rc<Allocation>>,
    pub(crate) events: BTreeMap<u64, Event>,
    /// Numbers of streams in the engine, by handle.
    pub(crate) streams: BTreeMap<u64, u64>,
    /// Released handles for reuse.
    pub(crate) unused: FreeHandles,
    /// Captured graphs.
    pub(crate) graphs: BTreeSet<u64>,
    /// Functions of each module: name, and sizes of the parameters.
    pub(crate) modules: BTreeMap<u64, Vec<(String, Vec<u32>)>>,
    /// Functions whose code is loaded, by module and name. Code is loaded when a function is first requested.
    pub(crate) loaded: BTreeSet<(u64, String)>,
    /// Module and name of each function, by handle.
    pub(crate) functions: BTreeMap<u64, (u64, String)>,
    /// Registered ranges, by the host's address: number of bytes, and the device's address.
    pub(crate) registered: BTreeMap<u64, (u64, u64)>,
    /// Host functions that the process has to call, and the function that it is calling.
    pub(crate) host_calls: VecDeque<Rc<HostCall>>,
    pub(crate) host_call: Option<Rc<HostCall>>,
    /// `true` if the process reported a normal exit.
    pub(crate) exited_cleanly: bool,
    /// Time until which the work of a dead process continues.
    pub(crate) gone_at: Option<Instant>,
    /// Lifetime connection, which ends with the process.
    life: OwnedFd,
}

impl Process {
    pub(crate) fn new(number: u64, pid: u32, devices: Vec<DeviceInfo>, life: OwnedFd) -> Self {
        Self {
            pid,
            devices,
            contexts: BTreeMap::new(),
            addresses: Addresses::of_process(number),
            handles: BTreeMap::new(),
            events: BTreeMap::new(),
            streams: BTreeMap::new(),
            unused: FreeHandles::default(),
            graphs: BTreeSet::new(),
            modules: BTreeMap::new(),
            loaded: BTreeSet::new(),
            functions: BTreeMap::new(),
            registered: BTreeMap::new(),
            host_calls: VecDeque::new(),
            host_call: None,
            exited_cleanly: false,
            gone_at: None,
            life,
        }
    }

    /// Returns `true` if the process is dead. Polls the lifetime connection, so the result is correct even if
    /// the engine has not read the end of the connection yet. So while the engine handles a call that another
    /// process made after the death, the result is `true`.
    pub(crate) fn is_gone(&self) -> bool {
        let mut life = [PollFd::new(&self.life, PollFlags::empty())];
        self.gone_at.is_some() || poll(&mut life, Some(&Timespec::default())).is_ok_and(|gone| gone > 0)
    }

    /// Returns the device with this number among the devices that the process sees.
    pub(crate) fn device(&self, number: u32) -> Option<&DeviceInfo> {
        self.devices.get(usize::try_from(number).ok()?)
    }

    /// Returns the registered range that contains a host address: host's address, number of bytes, device's
    /// address.
    pub(crate) fn registration(&self, address: u64) -> Option<(u64, u64, u64)> {
        let (start, (bytes, device)) = self.registered.range(..=address).next_back()?;
        (address < start + bytes).then_some((*start, *bytes, *device))
    }

    /// Describes the objects that the process has leaked.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        let mut say = |count: usize, what: &str| {
            if count > 0 {
                left.push(format!("{count} {what}"));
            }
        };
        say(self.handles.len(), "handles of memory");
        // Memory that a stream will free counts as freed, even if no host waits for that.
        let freeing = self.addresses.freeing.len();
        // Closing a handle or unregistering memory waits for all work, which a process should not do at its
        // exit.
        let opened = self.addresses.mapped.values().filter(|one| matches!(one.kind, Kind::Opened(_))).count();
        say(self.addresses.mapped.len() - self.registered.len() - freeing - opened, "mappings");
        say(self.addresses.reserved.len(), "reserved ranges");
        say(self.addresses.pieces.len() - freeing, "pieces of cuMemAlloc");
        // An event that other processes may have open ends with its process. Destroying it would make the use
        // by others undefined.
        let goes = |event: &&Event| event.imported || event.core.name.get().is_none();
        say(self.events.values().filter(goes).count(), "events");
        say(self.graphs.len(), "graphs");
        left
    }
}
