//! Shared parts of the examples with a GPU: a stream of cudarc, and a few kernels.
//!
//! # Safety
//! The code is unsafe because it launches kernels. It is sound because each launch passes the arguments that
//! the kernel expects, and the tensors among them have enough elements.
#![allow(unsafe_code, dead_code)]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaModule, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use mp::AnyResult;
use mp::cuda::{CudarcGuard, CudarcGuardMut, CudarcStream};

/// Launch configuration for tensors of any size: the kernels loop over all elements.
const GRID: LaunchConfig = LaunchConfig { grid_dim: (64, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };

/// Stream of the first GPU, and its kernels.
pub(crate) struct Gpu {
    pub(crate) stream: CudarcStream,
    kernels: Arc<CudaModule>,
}

impl Gpu {
    pub(crate) fn new() -> AnyResult<Self> {
        let context = CudaContext::new(0)?;
        let kernels =
            context.load_module(Ptx::from_src(include_str!("../../tools/cuda-sim/src/kernels.ptx")))?;
        Ok(Self { stream: CudarcStream::new(&context.new_stream()?)?, kernels })
    }

    /// Computes `to[i] = from[i] * factor` when the stream reaches it.
    pub(crate) fn multiply(
        &self,
        to: &mut CudarcGuardMut<'_, f32>,
        from: &CudarcGuard<'_, f32>,
        factor: f32,
    ) -> AnyResult<()> {
        let (kernel, n) = (self.kernels.load_function("mul_f32")?, to.len().min(from.len()) as u64);
        let mut launch = self.stream.cudarc().launch_builder(&kernel);
        launch.arg(to).arg(from).arg(&n).arg(&factor);
        // SAFETY: these are its parameters, and both tensors have `n` elements.
        unsafe { launch.launch(GRID) }?;
        Ok(())
    }
}

/// Returns the first GPU's name. Without a GPU, prints the reason.
pub(crate) fn gpu_or_skipped() -> Option<String> {
    match mp::cuda::Device::new(0).and_then(|device| device.name()) {
        Ok(name) => Some(name),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}
