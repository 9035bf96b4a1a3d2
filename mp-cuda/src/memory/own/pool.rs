//! Slabs that this process has made on a device, and from which it cuts pieces.
//!
//! A piece is cut out of an existing slab with enough room. If that fails, these actions follow one after
//! the other:
//!
//! | failure | next action |
//! |---|---|
//! | no slab has room | check all slabs for returned pieces |
//! | no slab has room after the check | make a slab of an eighth of the process's bytes on the device, from 32 MiB to 2 GiB; a piece of more than half of that size gets a slab of its own |
//! | the device has too little memory for the new slab | unmap unused slabs of other processes, give back own slabs without pieces, and try again |
//! | the device still has too little memory | make a slab of twice the piece's size, or a slab for this piece alone |
//! | the device has too little memory for any of these slabs | return an error with memory statistics |

use std::ops::Range;
use std::sync::Arc;

use mp_core::clocks::Tick;
use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

use super::ranges::Ranges;
use super::reuse::PieceLedger;
use crate::codes;
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::memory::object::PieceObject;
use crate::memory::registry::{self, UnusedSlabs};
use crate::memory::slab::Slab;
use crate::memory::stats::DeviceMemoryStats;
use crate::memory::virtual_memory::DeviceMemory;
use crate::uuid::Uuid;

/// Sizes, in bytes, of the smallest and the largest slab that is made for several pieces.
const SMALLEST: u64 = 32 << 20;
const LARGEST: u64 = 2 << 30;
/// Smallest unit of a slab in bytes, and largest number of units of a slab.
const UNIT: u64 = 512;
const MOST_UNITS: u64 = 1 << 16;
/// Number of outstanding pieces that are inspected whenever a piece is cut. The inspections take turns over
/// the slabs, and keep the lists of dropped pieces short.
const FEW: usize = 4;

/// Slab from which this process cuts pieces.
#[derive(Debug)]
struct OwnSlab {
    slab: Arc<Slab>,
    ranges: Ranges,
    ledger: PieceLedger,
}

/// Slabs of a device.
#[derive(Debug)]
struct DevicePool {
    device: Device,
    slabs: Vec<OwnSlab>,
    /// Index of the slab whose pieces are inspected next.
    next: usize,
}

static POOLS: PerProcess<Mutex<Vec<DevicePool>>> = mp_core::per_process!(Mutex::new(Vec::new()));

/// Piece that was cut, and the ticks for which its first stream has to wait.
#[derive(Debug)]
pub(crate) struct CutPiece {
    pub(crate) slab: Arc<Slab>,
    pub(crate) object: PieceObject,
    pub(crate) ticks: Vec<Tick>,
}

/// Cuts a piece of this many bytes, at least one.
pub(crate) fn cut(device: &Device, bytes: u64) -> Result<CutPiece> {
    // Fails in a forked copy of this process, where the lock may be held by a thread that does not exist.
    Driver::get()?;
    let bytes = bytes.max(1);
    let mut pools = POOLS.lock();
    let at = match pools.iter().position(|pool| pool.device == *device) {
        Some(at) => at,
        None => {
            can_share(device)?;
            pools.push(DevicePool { device: device.clone(), slabs: Vec::new(), next: 0 });
            pools.len() - 1
        }
    };
    let pool = &mut pools[at];
    pool.scan_few();
    if let Some(cut) = pool.cut(bytes)? {
        return Ok(cut);
    }
    pool.scan_all();
    if let Some(cut) = pool.cut(bytes)? {
        return Ok(cut);
    }
    pool.grow(bytes)?;
    pool.cut(bytes)?.ok_or_else(|| out_of_memory(device, bytes, pool.figures()))
}

impl DevicePool {
    /// Cuts a piece out of the first slab with enough room. Returns `None` if no slab has enough room.
    fn cut(&mut self, bytes: u64) -> Result<Option<CutPiece>> {
        for own in &mut self.slabs {
            if let Some(cut) = own.cut(bytes)? {
                return Ok(Some(cut));
            }
        }
        Ok(None)
    }

    fn scan_few(&mut self) {
        self.next = if self.next + 1 < self.slabs.len() { self.next + 1 } else { 0 };
        if let Some(own) = self.slabs.get_mut(self.next) {
            own.ledger.scan(own.slab.object(), &mut own.ranges, FEW);
        }
    }

    fn scan_all(&mut self) {
        for own in &mut self.slabs {
            own.ledger.scan_all(own.slab.object(), &mut own.ranges);
        }
        // Retired slabs can't provide the piece.
        self.release(|own| own.ledger.is_retired());
    }

    /// Frees the slabs that `which` selects, unless a process holds a piece of them. Returns the number of
    /// freed bytes.
    fn release(&mut self, which: impl Fn(&OwnSlab) -> bool) -> u64 {
        let goes = |own: &mut OwnSlab| {
            own.ledger.is_empty() && which(own) && own.slab.is_idle() && registry::remove(&own.slab)
        };
        self.slabs.extract_if(.., goes).map(|own| own.slab.object().bytes).sum()
    }

    fn reserved(&self) -> u64 {
        self.slabs.iter().map(|own| own.slab.object().bytes).sum()
    }

    /// Makes a slab with room for this many bytes.
    fn grow(&mut self, bytes: u64) -> Result<()> {
        let granularity = DeviceMemory::granularity(&self.device)?;
        let too_many = || out_of_memory(&self.device, bytes, self.figures());
        let alone = bytes.checked_next_multiple_of(granularity).ok_or_else(too_many)?;
        let wanted = sizes(bytes, alone, self.reserved(), granularity);
        let device = self.device.clone();
        let make = |size: &u64| match Slab::make(&device, *size, unit_of(*size, bytes)) {
            Err(error) if is_out_of_memory(&error) => None,
            made => Some(made),
        };
        let mut made = wanted.first().and_then(make);
        if made.is_none() {
            registry::release_unused(UnusedSlabs::ForAllocation);
            self.release(|_| true);
            made = wanted.iter().find_map(make);
        }
        let slab = Arc::new(made.unwrap_or_else(|| Err(out_of_memory(&self.device, bytes, self.figures())))?);
        registry::add(&slab);
        let ranges = Ranges::new(slab.object().units());
        self.slabs.push(OwnSlab { slab, ranges, ledger: PieceLedger::default() });
        Ok(())
    }

    fn figures(&self) -> DeviceMemoryStats {
        let mut all = DeviceMemoryStats::default();
        for own in &self.slabs {
            let (bytes, unit) = (own.slab.object().bytes, own.slab.object().unit);
            all.reserved += bytes;
            all.slabs += 1;
            all.pieces += own.ledger.outstanding();
            all.allocated += bytes - u64::from(own.ranges.free()) * unit;
            if own.ledger.is_retired() {
                all.retired += bytes;
            }
        }
        all
    }
}

impl OwnSlab {
    fn cut(&mut self, bytes: u64) -> Result<Option<CutPiece>> {
        let slab = self.slab.object();
        // A slab of one unit is for pieces of more than half its size, other slabs are for smaller pieces.
        let is_large = bytes > slab.bytes / 2;
        if self.ledger.is_retired() || bytes > slab.bytes || is_large != (slab.units() == 1) {
            return Ok(None);
        }
        let Some(units) = self.ranges.take(slab.units_of(bytes)) else { return Ok(None) };
        let ticks = self.ledger.pending_ticks(&units);
        if self.ledger.is_retired() {
            return Ok(None);
        }
        match self.give(units.clone(), bytes) {
            Ok(object) => Ok(Some(CutPiece { slab: Arc::clone(&self.slab), object, ticks })),
            Err(error) => {
                self.ranges.give(units);
                Err(error)
            }
        }
    }

    fn give(&mut self, units: Range<u32>, bytes: u64) -> Result<PieceObject> {
        let slab = self.slab.object();
        slab.row(units.start).begin();
        let object = PieceObject::new(slab, units.start, bytes)?;
        self.ledger.give(object.info.mark, units);
        Ok(object)
    }
}

/// Returns an error if memory of the device can't be shared by descriptors.
fn can_share(device: &Device) -> Result<()> {
    let attributes = device.attributes()?;
    let what = match (attributes.virtual_memory, attributes.memory_by_descriptor) {
        (true, true) => return Ok(()),
        (false, _) => "it, or its driver, has no virtual memory management (attribute 102)",
        (true, false) => "it, or its driver, exports no memory as a descriptor (attribute 103)",
    };
    Err(Error::Unsupported { what, device: device.uuid() })
}

/// Returns the slab sizes to try for a piece of `bytes` bytes, the best first: a size for many pieces, a
/// smaller size, and `alone`, the size for this piece alone. `reserved` is the number of bytes that the
/// process already has.
fn sizes(bytes: u64, alone: u64, reserved: u64, granularity: u64) -> Vec<u64> {
    let many = (reserved / 8).next_power_of_two().clamp(SMALLEST, LARGEST).next_multiple_of(granularity);
    if bytes > many / 2 {
        return vec![alone];
    }
    let mut sizes = vec![many, (2 * bytes).next_multiple_of(granularity)];
    // Both are the same if the piece is small compared with the driver's unit.
    if bytes > alone / 2 {
        sizes.push(alone);
    }
    sizes
}

/// Returns the unit of a slab of `size` bytes, made for a piece of `bytes` bytes. The unit is the whole slab
/// if the piece needs more than half of it. Otherwise the unit is so large that the slab has at most
/// [`MOST_UNITS`] units.
fn unit_of(size: u64, bytes: u64) -> u64 {
    if bytes > size / 2 { size } else { (size / MOST_UNITS).next_power_of_two().max(UNIT) }
}

pub(crate) fn is_out_of_memory(error: &Error) -> bool {
    matches!(error, Error::Driver { code: codes::OUT_OF_MEMORY, .. })
}

fn out_of_memory(device: &Device, asked: u64, figures: DeviceMemoryStats) -> Error {
    let DeviceMemoryStats { reserved, retired, .. } = figures;
    Error::OutOfDeviceMemory { asked, free: device.free_memory().unwrap_or(0), ours: reserved, retired }
}

/// Adds memory statistics to an out-of-memory error of a device. Returns other errors unchanged.
pub(crate) fn with_figures(error: Error, device: &Device, asked: u64) -> Error {
    if is_out_of_memory(&error) { out_of_memory(device, asked, figures(device.uuid())) } else { error }
}

/// Checks for returned pieces in all slabs of this process.
pub(crate) fn scan() {
    POOLS.lock().iter_mut().for_each(DevicePool::scan_all);
}

/// Frees own slabs of which no process holds a piece. Returns the number of freed bytes.
pub(crate) fn release() -> u64 {
    let mut pools = POOLS.lock();
    let bytes = pools
        .iter_mut()
        .map(|pool| {
            pool.scan_all();
            pool.release(|_| true)
        })
        .sum();
    pools.retain(|pool| !pool.slabs.is_empty());
    bytes
}

/// Removes own slabs of which this process holds no piece, before the process ends. Other processes may still
/// hold pieces.
pub(crate) fn leave() {
    let mut pools = POOLS.lock();
    for pool in pools.iter_mut() {
        pool.slabs.retain(|own| !(own.slab.is_idle() && registry::remove(&own.slab)));
    }
}

/// Returns the statistics of this process's slabs on a device.
pub(crate) fn figures(device: Uuid) -> DeviceMemoryStats {
    let pools = POOLS.lock();
    pools
        .iter()
        .find(|pool| pool.device.uuid() == device)
        .map_or_else(DeviceMemoryStats::default, DevicePool::figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn device_slab_size_grows_with_reserved_memory() {
        for (reserved, size, unit) in
            [(0, 32, 512), (300, 64, 1024), (4096, 512, 8192), (1 << 20, 2048, 32 << 10)]
        {
            assert_eq!(sizes(1000, 2 * MIB, reserved * MIB, 2 * MIB)[0], size * MIB, "{reserved} MiB");
            assert_eq!(unit_of(size * MIB, 1000), unit);
            assert!(size * MIB / unit <= MOST_UNITS);
        }
    }

    /// A slab of one unit is for pieces of more than half of its size. Other slabs are for smaller pieces. A
    /// new slab must be of the kind that its piece needs.
    #[test]
    fn new_device_slab_has_room_for_its_piece() {
        let of = |mib: u64| sizes(mib * MIB, (mib * MIB).next_multiple_of(2 * MIB), 0, 2 * MIB);
        assert_eq!(sizes(1000, 2 * MIB, 0, 2 * MIB), [32 * MIB, 2 * MIB]);
        assert_eq!(of(1), [32 * MIB, 2 * MIB]);
        assert_eq!(of(10), [32 * MIB, 20 * MIB, 10 * MIB]);
        assert_eq!(of(16), [32 * MIB, 32 * MIB, 16 * MIB]);
        assert_eq!(of(17), [18 * MIB]);
        assert_eq!((unit_of(18 * MIB, 17 * MIB), unit_of(2 * MIB, 1000)), (18 * MIB, 512));
    }
}
