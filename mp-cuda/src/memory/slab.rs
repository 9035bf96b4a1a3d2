//! Slab in this process: its object in shared memory, and its mapping. Before the slab is opened, each piece
//! holds a handle to the object. After that, one handle of this process serves for all pieces.
//!
//! | maker | mapping |
//! |---|---|
//! | this process | made together with the slab; a process never imports its own slab |
//! | another process | made when a piece is first opened: the long-lived descriptor is copied, imported, and closed |
//! | another library of this process | made and owned by that library |
//! | another library of another process | made as for another process, or opened by a legacy handle; closed with the last piece in this process |
//!
//! The whole slab is mapped, so a process can access bytes outside of its pieces. Processes of a program
//! trust each other.

use std::os::fd::AsFd;

use mp_core::clocks::Tick;
use mp_core::mutex::Mutex;
use mp_core::{Arena, Members};

use super::legacy::LegacyMapping;
use super::object::SlabObject;
use super::ticks;
use super::virtual_memory::{DeviceMemory, MappedMemory};
use crate::codes;
use crate::device::Device;
use crate::driver::api::IpcHandle;
use crate::error::{Error, Result};
use crate::sync::{AtomicBool, Ordering};
use crate::uuid::Uuid;

/// Slab of which this process has a piece or a mapping. Dropping it unmaps the slab.
#[derive(Debug)]
pub(crate) struct Slab {
    /// Mapping of the slab. Dropped before the handle to the object, because the maker treats holders of the
    /// object as processes with a mapping.
    mapping: Mutex<SlabMapping>,
    /// `true` after the slab was mapped or opened. Set under the lock of `mapping`, which a thread holds
    /// while the driver opens the slab.
    is_mapped: AtomicBool,
    object: SlabObject,
    /// `true` if this process made the slab. Such a slab is mapped for its whole lifetime.
    is_made_here: bool,
}

#[derive(Debug, Default)]
struct SlabMapping {
    mapped: Option<MappedMemory>,
    /// Devices that may access the mapping.
    devices: Vec<Uuid>,
    /// Mappings by the legacy handle, one for each device.
    opened: Vec<LegacyMapping>,
    /// Address of the slab, if a library of this process owns the memory.
    foreign: Option<u64>,
    /// Last tick of each stream that used a piece which this process has dropped or moved. While the tick is
    /// pending, the stream may access the mapping.
    uses: Vec<Tick>,
}

impl Slab {
    /// Allocates a slab that other processes can open, with memory of the driver.
    ///
    /// The driver is called before the object is created, because its calls may fail. If the process is
    /// killed meanwhile, a reclaim frees the object and the long-lived descriptor, and the driver frees the
    /// memory.
    pub(crate) fn make(device: &Device, bytes: u64, unit: u64) -> Result<Self> {
        let memory = DeviceMemory::create(device, bytes)?;
        let mapped = memory.map(device)?;
        let object = SlabObject::new(device.uuid(), bytes, unit)?;
        object.keep_descriptor(memory.export()?)?;
        let mapping =
            SlabMapping { mapped: Some(mapped), devices: vec![device.uuid()], ..SlabMapping::default() };
        Ok(Self { is_made_here: true, ..Self::of(object, mapping) })
    }

    /// Returns a slab of memory that another library of this process has allocated at the address `base`.
    pub(crate) fn foreign(object: SlabObject, base: u64) -> Self {
        Self::of(object, SlabMapping { foreign: Some(base), ..SlabMapping::default() })
    }

    /// Returns a slab that arrived in a message.
    pub(crate) fn received(object: SlabObject) -> Self {
        Self::of(object, SlabMapping::default())
    }

    fn of(object: SlabObject, mapping: SlabMapping) -> Self {
        let is_mapped = AtomicBool::new(mapping.mapped.is_some());
        Self { mapping: Mutex::new(mapping), is_mapped, object, is_made_here: false }
    }

    /// Returns `true` if this process made the slab, or is a forked copy of the process that made it.
    pub(crate) fn is_made_here(&self) -> bool {
        self.is_made_here
    }

    /// Returns `true` if the slab was opened by its legacy handle, so that closing it may take long.
    pub(crate) fn is_opened_legacy(&self) -> bool {
        !self.mapping.lock().opened.is_empty()
    }

    /// Returns the devices for which the slab was opened by its legacy handle.
    pub(crate) fn legacy_devices(&self) -> Vec<Device> {
        self.mapping.lock().opened.iter().map(|opened| opened.device().clone()).collect()
    }

    pub(crate) fn object(&self) -> &SlabObject {
        &self.object
    }

    /// Makes the slab accessible to a device. Returns its address for the device, and `true` if this call
    /// mapped or opened the slab.
    pub(crate) fn open(&self, by: &Device) -> Result<(u64, bool)> {
        let mut mapping = self.mapping.lock();
        if let Some(base) = mapping.foreign {
            let own = by.uuid() == self.object.uuid;
            return if own { Ok((base, false)) } else { Err(self.no_access(by)) };
        }
        if let Some(handle) = self.object.handle() {
            return self.open_legacy(&mut mapping, by, handle);
        }
        if let Some(mapped) = &mapping.mapped {
            let address = mapped.address();
            if !mapping.devices.contains(&by.uuid()) {
                self.reaches(by)?;
                mapped.allow(by).map_err(|error| self.refused(by, error))?;
                mapping.devices.push(by.uuid());
            }
            return Ok((address, false));
        }
        let mapped = self.import(by)?;
        let address = mapped.address();
        mapping.mapped = Some(mapped);
        self.is_mapped.store(true, Ordering::Relaxed);
        mapping.devices = vec![by.uuid()];
        Ok((address, true))
    }

    /// Opens the slab by its legacy handle, once for each device. Returns an error if the maker is dead,
    /// because memory of a dead maker is lost, even if this process opened it before.
    fn open_legacy(&self, mapping: &mut SlabMapping, by: &Device, handle: IpcHandle) -> Result<(u64, bool)> {
        let (maker, pid) = self.object.maker;
        let is_dead = || Arena::current().map(|arena| Members(arena).is_dead(maker));
        let died = Error::ProducerDied { pid: Some(pid).filter(|pid| *pid != 0) };
        if is_dead()? {
            return Err(died);
        }
        if let Some(opened) = mapping.opened.iter().find(|opened| opened.device() == by) {
            return Ok((opened.address(), false));
        }
        self.reaches(by)?;
        match LegacyMapping::new(by, handle) {
            Ok(opened) => {
                let address = opened.address();
                mapping.opened.push(opened);
                self.is_mapped.store(true, Ordering::Relaxed);
                Ok((address, true))
            }
            // The maker died after the check above.
            Err(_) if is_dead()? => Err(died),
            Err(error) => Err(self.refused(by, error)),
        }
    }

    fn import(&self, by: &Device) -> Result<MappedMemory> {
        self.reaches(by)?;
        let file = self.object.kept_descriptor()?.ok_or(Error::Gone)?;
        let memory = DeviceMemory::import(by, file.as_fd(), self.object.bytes)?;
        memory.map(by).map_err(|error| self.refused(by, error))
    }

    /// Converts the error of a driver that had reported two devices as peers, but does not let one access the
    /// other. That happens for parts of a GPU and for virtual GPUs.
    fn refused(&self, by: &Device, error: Error) -> Error {
        match error {
            Error::Driver { code: codes::PEER_ACCESS_UNSUPPORTED, .. } => self.no_access(by),
            error => error,
        }
    }

    fn no_access(&self, by: &Device) -> Error {
        Error::PeerAccess { from: by.uuid(), to: self.object.uuid }
    }

    /// Returns an error unless the device can access memory of the slab's device, and this process sees both
    /// devices.
    fn reaches(&self, by: &Device) -> Result<()> {
        if by.uuid() == self.object.uuid {
            return Ok(());
        }
        let owner = Device::by_uuid(self.object.uuid)?;
        let reaches = by.can_access(&owner)?;
        if reaches { Ok(()) } else { Err(self.no_access(by)) }
    }

    /// Returns `true` if the slab is mapped in this process. Does not wait for a thread that is opening the
    /// slab.
    pub(crate) fn is_mapped(&self) -> bool {
        self.is_mapped.load(Ordering::Relaxed)
    }

    /// Records the last ticks of streams that used a piece which this process has dropped or moved.
    #[inline]
    pub(crate) fn note_uses(&self, used: &[Tick]) {
        if !used.is_empty() {
            let mut mapping = self.mapping.lock();
            mapping.uses.extend(used);
            ticks::retain_pending(&mut mapping.uses);
        }
    }

    /// Returns `true` if no stream of this process can access the slab. The slab may be unmapped if this
    /// process also holds no piece of it.
    pub(crate) fn is_idle(&self) -> bool {
        let mut mapping = self.mapping.lock();
        ticks::retain_pending(&mut mapping.uses);
        mapping.uses.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use mp_core::clocks::Clock;

    use super::*;

    #[test]
    fn device_slab_is_idle_after_the_work_of_all_pieces() {
        let slab = Slab::received(SlabObject::new(Uuid([7; 16]), 1 << 20, 1 << 10).unwrap());
        let mut clocks = [(); 2].map(|()| Clock::claim(Arena::current().unwrap()).unwrap());
        let ticks = clocks.each_mut().map(|clock| {
            let tick = clock.next().unwrap();
            clock.submitted(tick).unwrap();
            tick
        });
        ticks.iter().for_each(|tick| slab.note_uses(&[*tick]));
        for last in [1, 0] {
            assert!(!slab.is_idle());
            clocks[last].complete(ticks[last]).unwrap();
        }
        assert!(slab.is_idle());
    }
}
