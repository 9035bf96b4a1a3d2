//! Device memory that tests allocate by driver calls, like other libraries do.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mp_cuda::driver::api::{AccessDesc, AllocationProp, Api, DriverHandle, Location};

/// Driver function by which memory is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum By {
    /// `cuMemAlloc`.
    Legacy,
    /// `cuMemMap`, exportable as a descriptor.
    Shareable,
    /// `cuMemMap`, without a handle type.
    Private,
    /// `cuMemAllocAsync` on the default stream.
    Pool,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemHostAlloc`.
    Host,
}

struct Functions {
    api: Api,
    context: DriverHandle,
}

fn functions() -> &'static Functions {
    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
    let functions = FUNCTIONS.get_or_init(|| {
        // SAFETY: mp-cuda has loaded this library.
        let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) }.unwrap();
        let library: libloading::Library = library.into();
        // SAFETY: the library's functions have the types of the driver's functions.
        let api = unsafe { Api::load(&library) }.unwrap();
        std::mem::forget(library);
        let mut context = DriverHandle::NULL;
        // SAFETY: the call retains a context for the life of the process.
        assert_eq!(unsafe { (api.cuDevicePrimaryCtxRetain)(&raw mut context, 0) }, 0);
        Functions { api, context }
    });
    // A new thread has no current context.
    // SAFETY: the context is retained for the life of the process.
    assert_eq!(unsafe { (functions.api.cuCtxSetCurrent)(functions.context) }, 0);
    functions
}

/// Calls a function of the driver, which must succeed.
macro_rules! call {
    ($function:expr, $($argument:expr),*) => {{
        // SAFETY: the call writes only to variables of the caller, which have the types that the call writes.
        // Freed memory is no longer used.
        assert_eq!(unsafe { ($function)($($argument),*) }, 0, stringify!($function))
    }};
}

/// Number of allocations freed in this process.
pub(crate) static FREED: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn freed() -> usize {
    FREED.load(Ordering::SeqCst)
}

/// Allocated device memory. Dropping the value frees it.
#[derive(Debug)]
pub(crate) struct Allocated {
    pub(crate) address: u64,
    bytes: usize,
    by: By,
}

/// Rounds a size up to the mapping granularity.
fn granular(bytes: usize) -> usize {
    bytes.next_multiple_of(2 << 20)
}

impl Allocated {
    /// Allocates memory. The driver must be initialised.
    pub(crate) fn new(by: By, bytes: usize) -> Self {
        let (f, mut address) = (functions(), 0_u64);
        let to = &raw mut address;
        match by {
            By::Legacy => call!(f.api.cuMemAlloc_v2, to, bytes),
            By::Shareable => address = map(&f.api, granular(bytes), 1),
            By::Private => address = map(&f.api, granular(bytes), 0),
            By::Pool => call!(f.api.cuMemAllocAsync.unwrap(), to, bytes, DriverHandle::NULL),
            By::Managed => call!(f.api.cuMemAllocManaged.unwrap(), to, bytes, 1),
            By::Host => call!(f.api.cuMemHostAlloc, to.cast(), bytes, 3),
        }
        Self { address, bytes, by }
    }

    /// Copies floats to the memory in the default stream, and waits for the copy.
    pub(crate) fn filled(self, values: &[f32]) -> Self {
        let (f, bytes) = (functions(), size_of_val(values));
        if self.by == By::Host {
            let to: *mut f32 = std::ptr::with_exposed_provenance_mut(usize::try_from(self.address).unwrap());
            // SAFETY: the memory has this many bytes.
            unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()) };
            return self;
        }
        call!(f.api.cuMemcpyHtoD_v2, self.address, values.as_ptr().cast(), bytes);
        self
    }
}

/// Allocates and maps memory. Returns its address.
fn map(api: &Api, bytes: usize, handle_types: c_int) -> u64 {
    let prop = AllocationProp { handle_types, ..AllocationProp::shareable(0) };
    let access = AccessDesc { location: Location { kind: 1, id: 0 }, flags: 3 };
    let (mut at, mut handle) = (0, 0);
    call!(api.cuMemCreate.unwrap(), &raw mut handle, bytes, &raw const prop, 0);
    call!(api.cuMemAddressReserve.unwrap(), &raw mut at, bytes, 0, 0, 0);
    call!(api.cuMemMap.unwrap(), at, bytes, 0, handle, 0);
    call!(api.cuMemSetAccess.unwrap(), at, bytes, &raw const access, 1);
    call!(api.cuMemRelease.unwrap(), handle);
    at
}

impl Drop for Allocated {
    fn drop(&mut self) {
        let (f, at, bytes) = (functions(), self.address, granular(self.bytes));
        match self.by {
            By::Legacy | By::Managed => call!(f.api.cuMemFree_v2, at),
            By::Shareable | By::Private => {
                call!(f.api.cuMemUnmap.unwrap(), at, bytes);
                call!(f.api.cuMemAddressFree.unwrap(), at, bytes);
            }
            By::Pool => call!(f.api.cuMemFreeAsync.unwrap(), at, DriverHandle::NULL),
            By::Host => {
                let at = std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap());
                call!(f.api.cuMemFreeHost, at);
            }
        }
        FREED.fetch_add(1, Ordering::SeqCst);
    }
}
