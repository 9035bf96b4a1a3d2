//! Conversions of CUDA tensors between `multiproc` and candle. candle's storage owns its memory, so a
//! conversion copies the elements on the device.

use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, Device, Storage};
use mp::AnyResult;
use mp::cuda::{CudaTensor, CudarcStream};

/// Returns the stream on which candle works on a device. `Device::new_cuda_with_stream` must have created the
/// device. Store the returned stream instead of creating it again, because each has a clock of its own.
pub fn stream_of(device: &Device) -> AnyResult<CudarcStream> {
    Ok(CudarcStream::new(&device.as_cuda_device()?.cuda_stream())?)
}

/// Converts a tensor of `multiproc` to a tensor of candle.
pub fn to_candle(
    x: &CudaTensor<f32>,
    device: &Device,
    stream: &CudarcStream,
) -> AnyResult<candle_core::Tensor> {
    let storage = CudaStorage::wrap_cuda_slice(x.to_cudarc(stream)?, device.as_cuda_device()?.clone());
    Ok(candle_core::Tensor::from_storage(Storage::Cuda(storage), x.shape(), BackpropOp::none(), false))
}

/// Converts a tensor of candle to a tensor of `multiproc`.
pub fn from_candle(x: &candle_core::Tensor, stream: &CudarcStream) -> AnyResult<CudaTensor<f32>> {
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else { return Err("it is not on a CUDA device".into()) };
    let (from, to) = layout.contiguous_offsets().ok_or("it is not contiguous")?;
    let slice = storage.as_cuda_slice::<f32>()?.slice(from..to);
    Ok(CudaTensor::from_cudarc(&slice, x.dims(), stream)?)
}
