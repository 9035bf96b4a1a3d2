//! Shared memory that Python objects are views of.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use mp_core::sync::shared::{AtomicUsize, Ordering};
use mp_core::{Arena, CopyOnWrite};
use mp_tensor::{AnyTensor, Element, Mode, Shared, Tensor};

/// Regions that objects of this process use, by the address of their first byte.
static REGIONS: PerProcess<Mutex<BTreeMap<usize, Weak<Memory>>>> =
    mp_core::per_process!(Mutex::new(BTreeMap::new()));

/// Lowest and highest address of all past and present regions. For an address outside of them, no search in
/// `REGIONS` is necessary.
// fork: a copy has no memory in the range that it needs to find.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
// fork: a copy has no memory in the range that it needs to find.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Bytes in shared memory, which this value keeps alive. Python code reads and writes them by address, and
/// other processes may do so at the same time.
#[derive(Debug)]
pub struct Memory {
    bytes: Bytes,
    address: usize,
    len: usize,
}

#[derive(Debug)]
enum Bytes {
    Shared(AnyTensor<Shared>),
    /// Private copy-on-write mapping. It is not registered by address, so it is copied when it is sent.
    Private {
        _view: CopyOnWrite,
    },
}

impl Memory {
    /// Allocates `len` bytes. Their contents are unspecified.
    ///
    /// # Errors
    /// Returns an error if there is not enough shared memory.
    pub fn alloc(len: usize) -> mp_core::Result<Arc<Self>> {
        Ok(Self::adopt(Tensor::<u8>::empty([len])?.share()))
    }

    /// Wraps a tensor that was received or allocated. If this process already has a region of the same
    /// memory, returns that region.
    pub fn adopt(tensor: impl Into<AnyTensor<Shared>>) -> Arc<Self> {
        let tensor = tensor.into();
        let offset = tensor.offset() * tensor.dtype().size();
        let (address, len) = (tensor.storage().as_ptr() as usize + offset, tensor.nbytes());
        if len == 0 {
            return Arc::new(Self { bytes: Bytes::Shared(tensor), address, len });
        }
        // Declared before the lock, so that it is dropped after it: the drop of a region takes the lock.
        let known;
        let mut regions = REGIONS.lock();
        known = regions.get(&address).and_then(Weak::upgrade);
        if let Some(known) = &known
            && known.len >= len
        {
            return known.clone();
        }
        let memory = Arc::new(Self { bytes: Bytes::Shared(tensor), address, len });
        regions.insert(address, Arc::downgrade(&memory));
        LOWEST.fetch_min(address, Ordering::Relaxed);
        HIGHEST.fetch_max(address + len, Ordering::Relaxed);
        memory
    }

    /// Returns a copy-on-write mapping of a contiguous tensor that no process writes. Writes to the mapping
    /// are private to this process and don't change the tensor. Sending the mapping copies its bytes.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory for a copy where one is necessary.
    pub fn copy_on_write(tensor: &AnyTensor<impl Mode>) -> mp_core::Result<Arc<Self>> {
        let (offset, len) = (tensor.offset() * tensor.dtype().size(), tensor.nbytes());
        let mut view = tensor.storage().copy_on_write(offset, len)?;
        let address = view.as_mut_ptr() as usize;
        Ok(Arc::new(Self { bytes: Bytes::Private { _view: view }, address, len }))
    }

    /// Wraps a tensor that only this process has. Returns the whole storage, even if the tensor is a view of
    /// a part.
    pub fn adopt_exclusive<T: Element>(tensor: Tensor<T>) -> Arc<Self> {
        Self::adopt(tensor.share().typed_storage().into_tensor())
    }

    /// Returns the region of this process that contains these addresses, if any.
    pub fn containing(address: usize, len: usize) -> Option<Arc<Self>> {
        if address < LOWEST.load(Ordering::Relaxed) || address >= HIGHEST.load(Ordering::Relaxed) {
            return None;
        }
        // In a forked process the memory isn't shared, and another thread may have held the lock.
        Arena::get()?;
        let found = REGIONS.lock().range(..=address).next_back()?.1.upgrade();
        found.filter(|memory| address.checked_add(len).is_some_and(|end| end <= memory.address + memory.len))
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a handle to send.
    ///
    /// # Panics
    /// If the memory was made by [`copy_on_write`](Self::copy_on_write).
    pub fn tensor(&self) -> AnyTensor<Shared> {
        match &self.bytes {
            Bytes::Shared(tensor) => tensor.clone(),
            Bytes::Private { .. } => unreachable!("memory that no search finds is not sent"),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.len == 0 || matches!(self.bytes, Bytes::Private { .. }) || Arena::get().is_none() {
            return;
        }
        let mut regions = REGIONS.lock();
        // Another region of the same memory may have replaced this region in the map.
        if regions.get(&self.address).is_some_and(|entry| std::ptr::eq(entry.as_ptr(), self)) {
            regions.remove(&self.address);
        }
    }
}
