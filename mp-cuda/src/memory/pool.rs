//! The slabs that this process has made on a device, and cuts pieces out of.
//!
//! | there is no room | done, in this order |
//! |---|---|
//! | in the slabs that there are | what came back is looked for |
//! | still | a slab is made: an eighth of all that the process has, from 32 MiB to 2 GiB; a piece above half of that has one of its own |
//! | on the device | slabs of others of which nothing is used are unmapped, own ones without pieces given back; then again |
//! | still | a slab for this piece alone is made |
//! | still | an error with figures |

use std::ops::Range;
use std::sync::Arc;

use mp_core::clocks::Tick;
use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;

use super::cut::Ranges;
use super::given::Given;
use super::here::{self, Which};
use super::object::PieceObject;
use super::slab::Slab;
use crate::codes;
use crate::device::Device;
use crate::driver::virtual_memory::Memory;
use crate::error::{Error, Result};
use crate::uuid::Uuid;

/// Slabs out of which many pieces are cut: the smallest and the largest.
const SMALLEST: u64 = 32 << 20;
const LARGEST: u64 = 2 << 30;
/// The smallest unit, and the most units that a slab has.
const UNIT: u64 = 512;
const MOST_UNITS: u64 = 1 << 16;
/// How many pieces that are out are looked at for each that is cut, so that the list stays as long as what is alive.
const FEW: usize = 4;

/// A slab that this process cuts up.
#[derive(Debug)]
struct Own {
    slab: Arc<Slab>,
    ranges: Ranges,
    given: Given,
}

/// Those of a device.
#[derive(Debug)]
struct Pool {
    device: Device,
    slabs: Vec<Own>,
}

static POOLS: PerProcess<Mutex<Vec<Pool>>> = PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

/// What was cut, and the ticks for which its first stream has to wait.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) slab: Arc<Slab>,
    pub(crate) object: PieceObject,
    pub(crate) ticks: Vec<Tick>,
}

/// How much there is of a device in this process's slabs, in bytes but for the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) reserved: u64,
    pub(crate) given: u64,
    pub(crate) retired: u64,
    pub(crate) slabs: usize,
    pub(crate) pieces: usize,
}

/// Cuts a piece of this many bytes, at least one.
pub(crate) fn cut(device: &Device, bytes: u64) -> Result<Cut> {
    let bytes = bytes.max(1);
    let mut pools = POOLS.lock();
    let at = match pools.iter().position(|pool| pool.device == *device) {
        Some(at) => at,
        None => {
            pools.push(Pool { device: device.clone(), slabs: Vec::new() });
            pools.len() - 1
        }
    };
    let pool = &mut pools[at];
    for own in &mut pool.slabs {
        own.given.look(own.slab.object(), &mut own.ranges, FEW);
    }
    if let Some(cut) = pool.cut(bytes)? {
        return Ok(cut);
    }
    pool.look_at_all();
    if let Some(cut) = pool.cut(bytes)? {
        return Ok(cut);
    }
    pool.grow(bytes)?;
    pool.cut(bytes)?.ok_or_else(|| pool.out_of_memory(bytes))
}

impl Pool {
    /// Cuts a piece out of the first slab that has room; `None` if none has.
    fn cut(&mut self, bytes: u64) -> Result<Option<Cut>> {
        for own in &mut self.slabs {
            if let Some(cut) = own.cut(bytes)? {
                return Ok(Some(cut));
            }
        }
        Ok(None)
    }

    fn look_at_all(&mut self) {
        for own in &mut self.slabs {
            own.given.look_at_all(own.slab.object(), &mut own.ranges);
        }
        // The driver has no use for what nobody may be given.
        self.release(|own| own.given.is_retired());
    }

    /// Gives slabs back of which no process has a piece; how many bytes.
    fn release(&mut self, which: impl Fn(&Own) -> bool) -> u64 {
        let goes = |own: &mut Own| {
            own.given.is_idle() && which(own) && own.slab.is_idle() && here::remove(&own.slab)
        };
        self.slabs.extract_if(.., goes).map(|own| own.slab.object().bytes()).sum()
    }

    fn reserved(&self) -> u64 {
        self.slabs.iter().map(|own| own.slab.object().bytes()).sum()
    }

    /// Makes a slab with room for this many bytes.
    fn grow(&mut self, bytes: u64) -> Result<()> {
        let granularity = Memory::granularity(&self.device)?;
        let too_many = || Error::OutOfDeviceMemory { asked: bytes, free: 0, ours: 0, retired: 0 };
        let alone = bytes.checked_next_multiple_of(granularity).ok_or_else(too_many)?;
        let (size, unit) = match pooled(self.reserved(), granularity) {
            (size, unit) if bytes <= size / 2 => (size, unit),
            _ => (alone, alone),
        };
        let mut made = Slab::make(&self.device, size, unit);
        if made.as_ref().is_err_and(is_out_of_memory) {
            here::give_up(Which::All);
            self.release(|_| true);
            made = Slab::make(&self.device, size, unit);
        }
        if made.as_ref().is_err_and(is_out_of_memory) && size > alone {
            made = Slab::make(&self.device, alone, alone);
        }
        let slab = match made {
            Err(error) if is_out_of_memory(&error) => return Err(self.out_of_memory(bytes)),
            made => Arc::new(made?),
        };
        here::add(&slab);
        let ranges = Ranges::new(slab.object().units());
        self.slabs.push(Own { slab, ranges, given: Given::default() });
        Ok(())
    }

    fn out_of_memory(&self, asked: u64) -> Error {
        let Figures { reserved, retired, .. } = self.figures();
        Error::OutOfDeviceMemory {
            asked,
            free: self.device.free_memory().unwrap_or(0),
            ours: reserved,
            retired,
        }
    }

    fn figures(&self) -> Figures {
        let mut all = Figures::default();
        for own in &self.slabs {
            let (bytes, unit) = (own.slab.object().bytes(), own.slab.object().unit());
            all.reserved += bytes;
            all.slabs += 1;
            all.pieces += own.given.out();
            all.given += bytes - u64::from(own.ranges.free()) * unit;
            if own.given.is_retired() {
                all.retired += bytes;
            }
        }
        all
    }
}

impl Own {
    fn cut(&mut self, bytes: u64) -> Result<Option<Cut>> {
        let slab = self.slab.object();
        // A slab of one unit is for what needs more than half of it, others are for what doesn't.
        let is_large = bytes > slab.bytes() / 2;
        if self.given.is_retired() || bytes > slab.bytes() || is_large != (slab.units() == 1) {
            return Ok(None);
        }
        let Some(units) = self.ranges.take(slab.units_of(bytes)) else { return Ok(None) };
        let ticks = self.given.ticks_of(&units);
        if self.given.is_retired() {
            return Ok(None);
        }
        match self.give(units.clone(), bytes) {
            Ok(object) => Ok(Some(Cut { slab: Arc::clone(&self.slab), object, ticks })),
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
        self.given.give(object.mark(), units);
        Ok(object)
    }
}

/// The size of a slab for many pieces, and of its unit, of a process that has reserved this much.
fn pooled(reserved: u64, granularity: u64) -> (u64, u64) {
    let size = (reserved / 8).next_power_of_two().clamp(SMALLEST, LARGEST).next_multiple_of(granularity);
    // As many units as rows at most; a granularity is a power of two, or the slab has a shorter last unit too few.
    let unit = (size / MOST_UNITS).next_power_of_two().max(UNIT);
    (size, unit)
}

fn is_out_of_memory(error: &Error) -> bool {
    matches!(error, Error::Driver { code: codes::OUT_OF_MEMORY, .. })
}

/// Looks for what came back to all slabs of this process.
pub(crate) fn look() {
    POOLS.lock().iter_mut().for_each(Pool::look_at_all);
}

/// Gives own slabs back of which no process has a piece; how many bytes.
pub(crate) fn release() -> u64 {
    let mut pools = POOLS.lock();
    let bytes = pools
        .iter_mut()
        .map(|pool| {
            pool.look_at_all();
            pool.release(|_| true)
        })
        .sum();
    pools.retain(|pool| !pool.slabs.is_empty());
    bytes
}

/// Forgets own slabs of which this process has no piece, whichever process has: it ends.
pub(crate) fn leave() {
    let mut pools = POOLS.lock();
    for pool in pools.iter_mut() {
        pool.slabs.retain(|own| !(own.slab.is_idle() && here::remove(&own.slab)));
    }
}

/// How much there is of a device.
pub(crate) fn figures(device: Uuid) -> Figures {
    let pools = POOLS.lock();
    pools.iter().find(|pool| pool.device.uuid() == device).map_or_else(Figures::default, Pool::figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_grow_with_what_there_is() {
        let mib = 1 << 20;
        for (reserved, size, unit) in
            [(0, 32, 512), (300, 64, 1024), (4096, 512, 8192), (1 << 20, 2048, 32 << 10)]
        {
            assert_eq!(pooled(reserved * mib, 2 * mib), (size * mib, unit), "{reserved} MiB");
            assert!(size * mib / unit <= MOST_UNITS);
        }
    }
}
