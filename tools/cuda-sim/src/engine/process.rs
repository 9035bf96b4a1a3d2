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

/// Primary context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: u32,
    /// Number of retains without a release. At zero, everything in the context ends.
    pub(crate) retained: u32,
    /// Error that every call in the context returns after a failure.
    pub(crate) lost: Option<u32>,
    /// Work of the context's streams at the last call that delays later work.
    pub(crate) barrier: Rc<Vec<(u64, u64)>>,
    /// Goal of the last call that waits with the driver's lock, or has waited.
    pub(crate) locked_until: Goal,
    /// Default stream.
    pub(crate) stream: u64,
}

/// Released handles. The next object of the kind gets the last released handle, as from a driver whose
/// handles are addresses. So a stale handle refers to another object.
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
    /// Handles of memory. One memory may have several handles.
    pub(crate) handles: BTreeMap<u64, Rc<Allocation>>,
    pub(crate) events: BTreeMap<u64, Event>,
    /// Handles of streams, with the engine's numbers.
    pub(crate) streams: BTreeMap<u64, u64>,
    /// Released handles.
    pub(crate) unused: FreeHandles,
    /// Captured graphs.
    pub(crate) graphs: BTreeSet<u64>,
    /// Modules with their functions: names, sizes of parameters.
    pub(crate) modules: BTreeMap<u64, Vec<(String, Vec<u32>)>>,
    /// Functions whose code is loaded, which happens when a function is first requested.
    pub(crate) loaded: BTreeSet<(u64, String)>,
    /// Functions: module, name.
    pub(crate) functions: BTreeMap<u64, (u64, String)>,
    /// Registered ranges: the host's address, bytes, the device's address.
    pub(crate) registered: BTreeMap<u64, (u64, u64)>,
    /// Functions that the process must call, and the function that it is calling.
    pub(crate) host_calls: VecDeque<Rc<HostCall>>,
    pub(crate) host_call: Option<Rc<HostCall>>,
    /// `true` if the process reported a normal exit.
    pub(crate) exited_cleanly: bool,
    /// Time until which the work of a dead process continues.
    pub(crate) gone_at: Option<Instant>,
    /// Connection that ends with the process.
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

    /// Returns `true` if the process is dead, even if its connections were not read since its death. Calls
    /// that other processes make after the death are read later.
    pub(crate) fn is_gone(&self) -> bool {
        let mut life = [PollFd::new(&self.life, PollFlags::empty())];
        self.gone_at.is_some() || poll(&mut life, Some(&Timespec::default())).is_ok_and(|gone| gone > 0)
    }

    /// Returns a device by its number among those visible to this process.
    pub(crate) fn device(&self, number: u32) -> Option<&DeviceInfo> {
        self.devices.get(usize::try_from(number).ok()?)
    }

    /// Returns the registered range that contains a host address.
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
