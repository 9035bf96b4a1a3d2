//! A slab in this process: its object, and where it is mapped, if it is. It is held by its pieces, and by itself from when it is opened.
//!
//! | made by | is mapped |
//! |---|---|
//! | this process | when it is made; it is never imported here |
//! | another one | when a piece of it is first opened: its descriptor is looked up, imported, and closed |
//! | this process, of another library | by that library, which keeps it |
//! | another one, of another library | likewise, or opened by its legacy handle; until its last piece here is gone |
//!
//! A slab is mapped whole: all processes of a program trust each other with the bytes beside a piece.

use std::os::fd::AsFd;

use mp_core::clocks::Tick;
use mp_core::mutex::Mutex;
use mp_core::words::Member;
use mp_core::{Arena, mutant};

use super::foreign::legacy::Opened;
use super::object::SlabObject;
use super::ticks;
use super::virtual_memory::{Mapped, Memory};
use crate::codes;
use crate::device::Device;
use crate::driver::api::IpcHandle;
use crate::error::{Error, Result};
use crate::sync::{AtomicBool, Ordering};
use crate::uuid::Uuid;

/// A slab of which this process has something: a piece, or its mapping. Dropped, it is unmapped.
#[derive(Debug)]
pub(crate) struct Slab {
    /// Before the object, and so dropped before it: its maker knows by the object's holders who has it mapped.
    here: Mutex<Here>,
    /// Whether it is mapped, or opened: set for good, under that lock, which a thread that opens it has while it is in the driver.
    is_mapped: AtomicBool,
    object: SlabObject,
    /// This process made it, and has it mapped as long as it has it.
    is_made_here: bool,
}

#[derive(Debug, Default)]
struct Here {
    mapped: Option<Mapped>,
    /// The devices that may reach it there.
    devices: Vec<Uuid>,
    /// Where it begins, for each device that has opened it by its handle.
    opened: Vec<Opened>,
    /// Where it begins, if a library of this process has it.
    lent: Option<u64>,
    /// What streams of this process did last with pieces that it has no more: while one of these ticks is on its way, a stream may
    /// reach the mapping.
    uses: Vec<Tick>,
}

impl Slab {
    /// Makes one, which other processes can open from now on.
    ///
    /// A process that is killed in the middle leaves an object, which is swept, and with it what is kept of the descriptor; and memory,
    /// which is the driver's again. The driver is asked first: it is what refuses.
    pub(crate) fn make(device: &Device, bytes: u64, unit: u64) -> Result<Self> {
        let memory = Memory::create(device, bytes)?;
        let mapped = memory.map(device)?;
        let object = SlabObject::new(device.uuid(), bytes, unit)?;
        object.keep(memory.export()?)?;
        let here = Here { mapped: Some(mapped), devices: vec![device.uuid()], ..Here::default() };
        Ok(Self { is_made_here: true, ..Self::of(object, here) })
    }

    /// Of memory that another library of this process has at this address.
    pub(crate) fn lent(object: SlabObject, base: u64) -> Self {
        Self::of(object, Here { lent: Some(base), ..Here::default() })
    }

    /// One that arrived.
    pub(crate) fn arrived(object: SlabObject) -> Self {
        Self::of(object, Here::default())
    }

    fn of(object: SlabObject, here: Here) -> Self {
        let is_mapped = AtomicBool::new(here.mapped.is_some());
        Self { here: Mutex::new(here), is_mapped, object, is_made_here: false }
    }

    /// Whether this process made it, or the one that it is a copy of.
    pub(crate) fn is_made_here(&self) -> bool {
        self.is_made_here
    }

    /// Whether it was opened by a legacy handle, which takes long to close.
    pub(crate) fn is_opened(&self) -> bool {
        !self.here.lock().opened.is_empty()
    }

    /// The devices for which it was opened so.
    pub(crate) fn opened_for(&self) -> Vec<Device> {
        self.here.lock().opened.iter().map(|opened| opened.device().clone()).collect()
    }

    pub(crate) fn object(&self) -> &SlabObject {
        &self.object
    }

    /// Where it begins, for a device that may reach it then; it is mapped, if it was not. Whether it was not.
    pub(crate) fn open(&self, by: &Device) -> Result<(u64, bool)> {
        let mut here = self.here.lock();
        if let Some(base) = here.lent
            && !mutant!("cuda.slab.own-handle-opened")
        {
            let own = by.uuid() == self.object.uuid();
            let own = own || mutant!("cuda.slab.own-lent-to-any-device");
            return if own { Ok((base, false)) } else { Err(self.no_access(by)) };
        }
        if let Some(handle) = self.object.handle() {
            return self.open_legacy(&mut here, by, handle);
        }
        if let Some(mapped) = &here.mapped {
            let address = mapped.address();
            if !here.devices.contains(&by.uuid()) {
                self.reaches(by)?;
                mapped.allow(by).map_err(|error| self.refused(by, error))?;
                here.devices.push(by.uuid());
            }
            return Ok((address, false));
        }
        let mapped = self.import(by)?;
        let address = mapped.address();
        here.mapped = Some(mapped);
        self.is_mapped.store(true, Ordering::Relaxed);
        here.devices = vec![by.uuid()];
        Ok((address, true))
    }

    /// Opens it by its handle, once for each device. It is gone with its maker, whether it is open or not.
    fn open_legacy(&self, here: &mut Here, by: &Device, handle: IpcHandle) -> Result<(u64, bool)> {
        let (maker, pid) = self.object.maker();
        let is_dead = || Arena::current().map(|arena| arena.is_dead(maker));
        let died = Error::ProducerDied { pid: Some(pid).filter(|pid| *pid != 0) };
        if is_dead()? && !mutant!("cuda.slab.dead-maker-opened") {
            return Err(died);
        }
        if let Some(opened) = here.opened.iter().find(|opened| opened.device() == by) {
            return Ok((opened.address(), false));
        }
        self.reaches(by)?;
        match Opened::new(by, handle) {
            Ok(opened) => {
                let address = opened.address();
                here.opened.push(opened);
                self.is_mapped.store(true, Ordering::Relaxed);
                Ok((address, true))
            }
            // It died meanwhile.
            Err(_) if is_dead()? => Err(died),
            Err(error) => Err(self.refused(by, error)),
        }
    }

    fn import(&self, by: &Device) -> Result<Mapped> {
        self.reaches(by)?;
        let file = self.object.kept()?.ok_or(Error::Gone)?;
        let memory = Memory::import(by, file.as_fd(), self.object.bytes())?;
        if mutant!("cuda.slab.descriptor-kept") {
            std::mem::forget(file);
        }
        memory.map(by).map_err(|error| self.refused(by, error))
    }

    /// What a driver says that took the devices for neighbours before (another part of a GPU, a virtual one).
    fn refused(&self, by: &Device, error: Error) -> Error {
        match error {
            Error::Driver { code: codes::PEER_ACCESS_UNSUPPORTED, .. }
                if !mutant!("cuda.slab.refusal-not-read") =>
            {
                self.no_access(by)
            }
            error => error,
        }
    }

    fn no_access(&self, by: &Device) -> Error {
        Error::PeerAccess { from: by.uuid(), to: self.object.uuid() }
    }

    /// Whether a device can reach the memory of the one that this is on, and this process sees both.
    fn reaches(&self, by: &Device) -> Result<()> {
        if by.uuid() == self.object.uuid() {
            return Ok(());
        }
        let owner = Device::by_uuid(self.object.uuid())?;
        let reaches = by.can_access(&owner)? || mutant!("cuda.slab.peers-not-asked");
        if reaches { Ok(()) } else { Err(self.no_access(by)) }
    }

    /// Whether it is mapped in this process. It waits for no thread that is in the driver.
    pub(crate) fn is_mapped(&self) -> bool {
        if mutant!("cuda.slab.asked-behind-the-driver") {
            drop(self.here.lock());
        }
        self.is_mapped.load(Ordering::Relaxed)
    }

    /// Notes what streams of this process did last with a piece that it has no more.
    #[inline]
    pub(crate) fn note_uses(&self, used: &[Tick]) {
        if !used.is_empty() {
            let mut here = self.here.lock();
            here.uses.extend(used);
            ticks::keep_pending(&mut here.uses);
        }
    }

    /// Whether no stream of this process can reach it, if it has no piece of it: then it may be unmapped.
    pub(crate) fn is_idle(&self) -> bool {
        let mut here = self.here.lock();
        ticks::keep_pending(&mut here.uses);
        here.uses.is_empty() || mutant!("cuda.slab.unmapped-under-work")
    }

    /// The process that made it.
    pub(crate) fn maker(&self) -> (Member, u32) {
        self.object.maker()
    }
}

#[cfg(test)]
mod tests {
    use mp_core::clocks::Clock;

    use super::*;

    #[test]
    fn slab_is_idle_after_the_work_of_all_pieces() {
        let slab = Slab::arrived(SlabObject::new(Uuid([7; 16]), 1 << 20, 1 << 10).unwrap());
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
