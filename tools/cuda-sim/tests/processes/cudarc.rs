//! Streams, copies and kernels of cudarc with tensors that processes share.
//!
//! # Safety
//! Unsafe, because launching a kernel is unsafe. Sound, because each kernel gets the arguments that its
//! parameters need.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use mp_cuda::{CudaTensor, CudarcStream, Error};
use mp_queue::Queue;
use mp_spawn::Process;

use crate::support::{Outcome, join, nothing_is_left, run, session, taken, with_gpu};

const LAUNCH: LaunchConfig = LaunchConfig { grid_dim: (4, 1, 1), block_dim: (64, 1, 1), shared_mem_bytes: 0 };

fn kernel(context: &Arc<CudaContext>, name: &str) -> Outcome<CudaFunction> {
    let image = mp_cuda_sim::KERNELS.trim_end_matches('\0').to_owned();
    Ok(context.load_module(Ptx::from_src(image))?.load_function(name)?)
}

fn a_stream() -> Outcome<(Arc<CudaContext>, CudarcStream)> {
    let context = CudaContext::new(0)?;
    let stream = CudarcStream::new(&context.new_stream()?)?;
    Ok((context, stream))
}

fn copies((): ()) -> Outcome {
    let (context, stream) = a_stream()?;
    let s = stream.cudarc();
    let mut x = CudaTensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], [2, 2], &stream)?;
    {
        let on = x.on_cudarc(&stream)?;
        assert_eq!((on.shape(), on.ptr() != 0), ([2, 2].as_slice(), true));
        assert_eq!(s.clone_dtoh(&on)?, [1.0, 2.0, 3.0, 4.0]);
        let own = s.clone_dtod(&on)?;
        assert_eq!(s.clone_dtoh(&own)?, [1.0, 2.0, 3.0, 4.0]);
    }
    let mut on = x.on_cudarc_mut(&stream)?;
    s.memcpy_htod(&[5.0_f32, 6.0, 7.0, 8.0], &mut on)?;
    // The other stream is not the tensor's stream, so this thread waits for both.
    let other = context.new_stream()?;
    assert_eq!(other.clone_dtoh(&on)?, [5.0, 6.0, 7.0, 8.0]);
    other.memset_zeros(&mut on)?;
    drop(on);
    assert_eq!(x.to_vec(&stream)?, [0.0; 4]);
    // cudarc does not support strides.
    let x = x.freeze();
    let column = x.select(1, 0)?;
    assert!(matches!(column.on_cudarc(&stream), Err(Error::NotContiguous { shape }) if shape == [2]));
    assert_eq!(column.to_device(&stream)?.on_cudarc(&stream)?.len(), 2);
    // A tensor without elements, and the context's default stream.
    let stream = CudarcStream::new(&context.default_stream())?;
    let none = CudaTensor::<f32>::zeros([0], &stream)?;
    assert_eq!(none.on_cudarc(&stream)?.ptr(), 0);
    context.check_err()?;
    Ok(())
}

#[test]
fn cudarc_copies_accept_tensors() {
    let session = session();
    run(&session, copies, ());
    nothing_is_left(&session);
}

fn slices((): ()) -> Outcome {
    let (context, stream) = a_stream()?;
    let other = context.new_stream()?;
    let slice = other.clone_htod(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    let x = CudaTensor::from_cudarc(&slice, [2, 3], &stream)?;
    drop(slice);
    assert_eq!((x.shape(), x.to_vec(&stream)?.len()), ([2, 3].as_slice(), 6));
    let x = x.freeze();
    let back = x.t()?.to_cudarc(&stream)?;
    assert_eq!(stream.cudarc().clone_dtoh(&back)?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(stream.cudarc().clone_dtoh(&x.to_cudarc(&stream)?)?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let part = CudaTensor::from_cudarc(&back.slice(2..4), [2], &stream)?;
    assert_eq!(part.to_vec(&stream)?, [2.0, 5.0]);
    let refused = CudaTensor::from_cudarc(&back, [7], &stream).unwrap_err();
    assert!(refused.to_string().contains("6 elements for a tensor of shape [7]"), "{refused}");
    drop((x, part, back));
    context.synchronize()?;
    context.check_err()?;
    Ok(())
}

#[test]
fn cudarc_slices_convert_in_both_directions() {
    let session = session();
    run(&session, slices, ());
    nothing_is_left(&session);
}

fn copies_on_another_stream((): ()) -> Outcome<String> {
    let (context, stream) = a_stream()?;
    let other = context.new_stream()?;
    let x = CudaTensor::from_slice(&[1.0_f32; 4], [4], &stream)?;
    let on = x.on_cudarc(&stream)?;
    let copied = other.clone_dtoh(&on);
    assert!(copied.is_err() && context.check_err().is_err());
    // The next use succeeds on a working stream.
    assert_eq!(other.clone_dtoh(&on)?, [1.0; 4]);
    Ok(format!("{:?}", copied.unwrap_err()))
}

/// If the copy's stream can't be made to wait, the guard returns an invalid address, which the driver
/// refuses. So no copy runs out of order.
#[test]
fn unorderable_copy_is_refused() {
    let session = session();
    let rule = "fail=cuStreamSynchronize:2:304";
    let process = with_gpu(&session).env("MP_CUDA_SIM_INJECT", rule).spawn(copies_on_another_stream, ());
    let said = join(process.unwrap());
    assert!(said.contains("INVALID_VALUE"), "{said}");
    nothing_is_left(&session);
}

fn doubles((queue, back): (Queue<CudaTensor<f32>>, Queue<CudaTensor<f32>>)) -> Outcome {
    let (context, stream) = a_stream()?;
    let mul = kernel(&context, "mul_f32")?;
    let x = taken(&queue);
    let mut y = CudaTensor::<f32>::empty(x.shape(), &stream)?;
    let (n, factor) = (x.len() as u64, 2.0_f32);
    {
        let from = x.on_cudarc(&stream)?;
        let mut to = y.on_cudarc_mut(&stream)?;
        let mut launch = stream.cudarc().launch_builder(&mul);
        launch.arg(&mut to).arg(&from).arg(&n).arg(&factor);
        // SAFETY: the kernel has these parameters.
        unsafe { launch.launch(LAUNCH) }?;
    }
    back.put(y).map_err(|error| error.to_string())?;
    Ok(())
}

/// Sends data to another process, and returns the result, which arrives while the kernel of that process is
/// still running.
fn asks((queue, back): (Queue<CudaTensor<f32>>, Queue<CudaTensor<f32>>)) -> Outcome<Vec<f32>> {
    let (context, stream) = a_stream()?;
    let spin = kernel(&context, "spin_ns")?;
    let mut x = CudaTensor::<f32>::zeros([1000], &stream)?;
    {
        let nanos = Duration::from_millis(30).as_nanos() as u64;
        let mut on = x.on_cudarc_mut(&stream)?;
        let mut launch = stream.cudarc().launch_builder(&spin);
        launch.arg(&nanos);
        // SAFETY: the kernel has this parameter.
        unsafe { launch.launch(LAUNCH) }?;
        stream.cudarc().memcpy_htod(&[3.0_f32; 1000], &mut on)?;
    }
    queue.put(x).map_err(|error| error.to_string())?;
    let y = taken(&back);
    let values = stream.cudarc().clone_dtoh(&y.on_cudarc(&stream)?)?;
    Ok(values)
}

#[test]
fn cudarc_kernels_run_after_those_of_the_sender() {
    let session = session();
    let (queue, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let worker: Process<()> = with_gpu(&session).spawn(doubles, (queue.clone(), back.clone())).unwrap();
    assert_eq!(run(&session, asks, (queue, back)), [6.0; 1000]);
    join(worker);
    nothing_is_left(&session);
}
