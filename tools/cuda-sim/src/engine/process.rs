//! What the engine knows of one client process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::engine::memory::{Addresses, Allocation, Kind};
use crate::engine::schedule::Goal;
use crate::engine::streams::{Event, HostCall};
use crate::wire::DeviceInfo;

/// A primary context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: u32,
    /// How often it was retained and not released. With the last one all that is in it ends.
    pub(crate) retained: u32,
    /// What every call in it returns, once something in it has failed.
    pub(crate) lost: Option<u32>,
    /// What its streams had been asked for at the last call that holds up what comes later.
    pub(crate) barrier: Rc<Vec<(u64, u64)>>,
    /// What the last call waited for, or waits for, that has the driver's lock meanwhile.
    pub(crate) locked_until: Goal,
    /// The default stream.
    pub(crate) stream: u64,
}

/// Handles that a process has given back. The next object of the kind gets the last of them, as from a driver whose handles are
/// addresses: so a handle that is used after its end reaches another object.
#[derive(Debug, Default)]
pub(crate) struct Unused {
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
    /// Handles of memory; the same memory may have several.
    pub(crate) handles: BTreeMap<u64, Rc<Allocation>>,
    pub(crate) events: BTreeMap<u64, Event>,
    /// Handles of streams, by which the engine's numbers of them are found.
    pub(crate) streams: BTreeMap<u64, u64>,
    /// Handles that were given back.
    pub(crate) unused: Unused,
    /// Graphs that were captured.
    pub(crate) graphs: BTreeSet<u64>,
    /// Modules, each with its functions: names, sizes of parameters.
    pub(crate) modules: BTreeMap<u64, Vec<(String, Vec<u32>)>>,
    /// Those of which the code is loaded, which it is when they are first looked up.
    pub(crate) loaded: BTreeSet<(u64, String)>,
    /// Functions: module, name.
    pub(crate) functions: BTreeMap<u64, (u64, String)>,
    /// Registered ranges: the host's address, bytes, the device's address.
    pub(crate) registered: BTreeMap<u64, (u64, u64)>,
    /// Functions of its own that it is to call, and the one that it calls.
    pub(crate) host_calls: VecDeque<Rc<HostCall>>,
    pub(crate) host_call: Option<Rc<HostCall>>,
    /// It ended by itself, having said so.
    pub(crate) said_bye: bool,
    /// It is gone; its work runs on until then.
    pub(crate) gone_at: Option<Instant>,
    /// The connection that ends with it.
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
            unused: Unused::default(),
            graphs: BTreeSet::new(),
            modules: BTreeMap::new(),
            loaded: BTreeSet::new(),
            functions: BTreeMap::new(),
            registered: BTreeMap::new(),
            host_calls: VecDeque::new(),
            host_call: None,
            said_bye: false,
            gone_at: None,
            life,
        }
    }

    /// Whether it is gone, be it that its connections were not looked at since. What another process does after its death comes later.
    pub(crate) fn is_gone(&self) -> bool {
        let mut life = [PollFd::new(&self.life, PollFlags::empty())];
        self.gone_at.is_some() || poll(&mut life, Some(&Timespec::default())).is_ok_and(|gone| gone > 0)
    }

    /// The device of a number among those that this process sees.
    pub(crate) fn device(&self, number: u32) -> Option<&DeviceInfo> {
        self.devices.get(usize::try_from(number).ok()?)
    }

    /// The registered range that an address of the host is in.
    pub(crate) fn registration(&self, address: u64) -> Option<(u64, u64, u64)> {
        let (start, (bytes, device)) = self.registered.range(..=address).next_back()?;
        (address < start + bytes).then_some((*start, *bytes, *device))
    }

    /// What it has left, in words.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        let mut say = |count: usize, what: &str| {
            if count > 0 {
                left.push(format!("{count} {what}"));
            }
        };
        say(self.handles.len(), "handles of memory");
        // What a stream was told to free is gone, be it that the stream was not waited for.
        let freeing = self.addresses.freeing.len();
        // To close a handle, or to unregister memory, waits for all work, for which an end is not to wait.
        let opened = self.addresses.mapped.values().filter(|one| matches!(one.kind, Kind::Opened(_))).count();
        say(self.addresses.mapped.len() - self.registered.len() - freeing - opened, "mappings");
        say(self.addresses.reserved.len(), "reserved ranges");
        say(self.addresses.pieces.len() - freeing, "pieces of cuMemAlloc");
        // One that others may have open goes with its process: if it were destroyed, what theirs do would be undefined.
        let goes = |event: &&Event| event.imported || event.core.name.get().is_none();
        say(self.events.values().filter(goes).count(), "events");
        say(self.graphs.len(), "graphs");
        left
    }
}
