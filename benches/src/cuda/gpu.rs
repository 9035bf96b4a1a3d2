//! GPU state of each process: a stream of the library, and kernels that are launched by functions of the
//! driver.
//!
//! # Safety
//! The code is unsafe because it calls the driver. It is sound because
//! - the functions have the types of the library's table, and handles come from the driver itself;
//! - kernels get as many arguments as they have, and addresses that their callers have borrowed from tensors
//!   on the same stream.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mp::AnyResult;
use mp::cuda::driver::api::{Api, DriverHandle};
use mp::cuda::{CudaStream, CudaTensor, Device};
use rustix::time::{ClockId, clock_gettime};

const KERNELS: &str = concat!(include_str!("../../../tools/cuda-sim/src/kernels.ptx"), "\0");
/// Number of elements of the memory for results.
pub(crate) const SCRATCH: usize = 1024;

/// Returns nanoseconds of the clock that all processes share, CLOCK_MONOTONIC.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn ok(call: &str, code: u32) -> AnyResult<()> {
    if code == 0 { Ok(()) } else { Err(format!("{call}: {code}").into()) }
}

/// A process's stream of the first device, the kernels, and a little memory for their results.
pub(crate) struct Gpu {
    pub(crate) device: Device,
    pub(crate) stream: CudaStream,
    api: Api,
    fill: DriverHandle,
    add: DriverHandle,
    mul: DriverHandle,
    sum: DriverHandle,
    /// Memory for results, outside of the library's memory, so that it needs no slab.
    scratch: u64,
}

impl Gpu {
    /// Creates the context of this process, and runs a kernel in it. Allocates only a few KiB of the device's
    /// memory.
    pub(crate) fn new() -> AnyResult<Self> {
        let device = Device::new(0)?;
        // SAFETY: the library that mp-cuda has loaded.
        let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) }?;
        let library: libloading::Library = library.into();
        // SAFETY: the table's functions have the types of the driver's functions.
        let api = unsafe { Api::load(&library) }?;
        std::mem::forget(library);
        let mut context = DriverHandle::NULL;
        // SAFETY: the call writes a handle to a variable of this function; the context is kept for the life
        // of the process.
        ok("cuDevicePrimaryCtxRetain", unsafe { (api.cuDevicePrimaryCtxRetain)(&raw mut context, 0) })?;
        // SAFETY: the context was retained above.
        ok("cuCtxSetCurrent", unsafe { (api.cuCtxSetCurrent)(context) })?;
        let mut module = DriverHandle::NULL;
        let image = KERNELS.as_ptr().cast();
        // SAFETY: the image ends with 0.
        ok("cuModuleLoadData", unsafe { (api.cuModuleLoadData)(&raw mut module, image) })?;
        let kernel = |name: &std::ffi::CStr| -> AnyResult<DriverHandle> {
            let mut function = DriverHandle::NULL;
            // SAFETY: the module is loaded, and the name ends with 0.
            let code = unsafe { (api.cuModuleGetFunction)(&raw mut function, module, name.as_ptr()) };
            ok("cuModuleGetFunction", code)?;
            Ok(function)
        };
        let (fill, add) = (kernel(c"fill_f32")?, kernel(c"add_f32")?);
        let (mul, sum) = (kernel(c"mul_f32")?, kernel(c"sum_f32")?);
        let mut scratch = 0;
        // SAFETY: the call writes an address to a variable of this function.
        ok("cuMemAlloc", unsafe { (api.cuMemAlloc_v2)(&raw mut scratch, SCRATCH * 4) })?;
        let stream = CudaStream::new(&device)?;
        let gpu = Self { device, stream, api, fill, add, mul, sum, scratch };
        // Runs each kernel once, since the driver may load a kernel at its first launch.
        gpu.fill(gpu.scratch, SCRATCH, 1.0)?;
        gpu.add(gpu.scratch, gpu.scratch, gpu.scratch, 64)?;
        gpu.mul(gpu.scratch, gpu.scratch, 64, 1.0)?;
        gpu.stream.synchronize()?;
        Ok(gpu)
    }

    fn launch(
        &self,
        stream: &CudaStream,
        kernel: DriverHandle,
        n: usize,
        arguments: &mut [u64],
    ) -> AnyResult<()> {
        let mut all = [ptr::null_mut::<c_void>(); 4];
        for (to, argument) in all.iter_mut().zip(arguments) {
            *to = ptr::from_mut(argument).cast();
        }
        let grid = n.div_ceil(256).clamp(1, 1056) as u32;
        let (launch, stream, all) =
            (self.api.cuLaunchKernel, DriverHandle(stream.as_raw()), all.as_mut_ptr());
        // SAFETY: there are as many arguments as the kernel has, and the caller has borrowed the addresses in
        // them.
        let code = unsafe { launch(kernel, grid, 1, 1, 256, 1, 1, 0, stream, all, ptr::null_mut()) };
        ok("cuLaunchKernel", code)
    }

    /// Sets `n` floats: `to = value`.
    fn fill(&self, to: u64, n: usize, value: f32) -> AnyResult<()> {
        self.launch(&self.stream, self.fill, n, &mut [to, n as u64, u64::from(value.to_bits())])
    }

    /// Computes `to = a + b`.
    pub(crate) fn add(&self, to: u64, a: u64, b: u64, n: usize) -> AnyResult<()> {
        self.launch(&self.stream, self.add, n, &mut [to, a, b, n as u64])
    }

    /// Computes `to = a * factor`.
    fn mul(&self, to: u64, a: u64, n: usize, factor: f32) -> AnyResult<()> {
        self.launch(&self.stream, self.mul, n, &mut [to, a, n as u64, u64::from(factor.to_bits())])
    }

    /// Returns a new tensor of the library, filled by a kernel that may not have run yet.
    pub(crate) fn filled(&self, n: usize, value: f32) -> AnyResult<CudaTensor<f32>> {
        let mut x = CudaTensor::empty([n], &self.stream)?;
        let on = x.on_mut(&self.stream)?;
        self.fill(on.ptr(), n, value)?;
        drop(on);
        Ok(x)
    }

    /// Fills a tensor again.
    pub(crate) fn refill(&self, x: &mut CudaTensor<f32>, value: f32) -> AnyResult<()> {
        let n = x.shape().iter().product();
        let on = x.on_mut(&self.stream)?;
        self.fill(on.ptr(), n, value)
    }

    /// Runs the kernel of most rows: reads 1024 floats, and writes their doubles to this process's own
    /// memory.
    pub(crate) fn doubled(&self, from: u64) -> AnyResult<()> {
        self.mul(self.scratch, from, SCRATCH, 2.0)
    }

    /// Runs the kernel of [`doubled`](Self::doubled) on another stream.
    pub(crate) fn doubled_on(&self, stream: &CudaStream, from: u64) -> AnyResult<()> {
        let arguments = &mut [self.scratch, from, SCRATCH as u64, u64::from(2.0_f32.to_bits())];
        self.launch(stream, self.mul, SCRATCH, arguments)
    }

    /// Returns the address of the memory for results, for reads.
    pub(crate) fn scratch(&self) -> u64 {
        self.scratch
    }

    /// Sums up 64 floats by a kernel, and waits for the result.
    pub(crate) fn sum(&self, from: u64) -> AnyResult<f32> {
        self.launch(&self.stream, self.sum, 1, &mut [self.scratch, from, 64])?;
        self.result()
    }

    /// Returns the first float of the kernels' results, after the stream has run them.
    pub(crate) fn result(&self) -> AnyResult<f32> {
        self.stream.synchronize()?;
        let mut value = 0.0_f32;
        // SAFETY: 4 bytes of memory of this process, to a variable of this function.
        let code = unsafe { (self.api.cuMemcpyDtoH_v2)((&raw mut value).cast(), self.scratch, 4) };
        ok("cuMemcpyDtoH", code)?;
        Ok(value)
    }

    /// Allocates memory from the driver's own pool, and frees it, both in the order of the stream. Returns an
    /// error if there is no pool.
    pub(crate) fn alloc_free_async(&self, bytes: usize) -> AnyResult<()> {
        let (Some(alloc), Some(free)) = (self.api.cuMemAllocAsync, self.api.cuMemFreeAsync) else {
            return Err("the driver has no cuMemAllocAsync".into());
        };
        let (mut address, stream) = (0, DriverHandle(self.stream.as_raw()));
        // SAFETY: the call writes an address to a variable of this function.
        ok("cuMemAllocAsync", unsafe { alloc(&raw mut address, bytes, stream) })?;
        // SAFETY: the address was allocated above, and is freed once.
        ok("cuMemFreeAsync", unsafe { free(address, stream) })
    }

    /// Creates an event of the driver, for `two_streams`.
    pub(crate) fn driver_event(&self) -> AnyResult<DriverHandle> {
        let mut event = DriverHandle::NULL;
        // SAFETY: the call writes a handle to a variable of this function. 2: without a time.
        ok("cuEventCreate", unsafe { (self.api.cuEventCreate)(&raw mut event, 2) })?;
        Ok(event)
    }

    /// Records the event on one stream, and makes the other stream wait for it.
    pub(crate) fn driver_order(
        &self,
        event: DriverHandle,
        first: &CudaStream,
        second: &CudaStream,
    ) -> AnyResult<()> {
        // SAFETY: both are alive.
        let code = unsafe { (self.api.cuEventRecord)(event, DriverHandle(first.as_raw())) };
        ok("cuEventRecord", code)?;
        // SAFETY: both are alive.
        let code = unsafe { (self.api.cuStreamWaitEvent)(DriverHandle(second.as_raw()), event, 0) };
        ok("cuStreamWaitEvent", code)
    }

    /// Destroys the event.
    pub(crate) fn driver_event_done(&self, event: DriverHandle) -> AnyResult<()> {
        // SAFETY: the event was created by `driver_event`, and is not used afterwards.
        ok("cuEventDestroy", unsafe { (self.api.cuEventDestroy_v2)(event) })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        _ = self.stream.synchronize();
        // SAFETY: the memory was allocated by `new`, and no work is left that writes to it.
        _ = unsafe { (self.api.cuMemFree_v2)(self.scratch) };
    }
}
