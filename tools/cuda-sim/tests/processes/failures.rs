//! Tests with a failing driver. Each failure returns an error with the name of the driver call. If a tensor
//! can't be sent, it is returned, and a retry succeeds.

use std::time::Duration;

use mp_cuda::{CudaEvent, CudaTensor, Error, Order, SharedCudaTensor};
use mp_harness::{DEADLINE, eventually};
use mp_queue::Queue;

use crate::support::{
    Outcome, join, kernels, nothing_found, nothing_is_left, run, session, setup, stat, stays, stream, taken,
    under, under_each_order, with_gpu,
};

const LEN: usize = 1 << 12;

/// Retries an operation until it succeeds. Adds the errors of failed attempts to `errors`.
fn attempts<T>(errors: &mut Vec<String>, mut what: impl FnMut() -> mp_cuda::Result<T>) -> T {
    loop {
        match what() {
            Ok(value) => return value,
            Err(error) => errors.push(error.to_string()),
        }
        assert!(errors.len() < 10, "{errors:?}");
    }
}

fn sends_and_receives((): ()) -> Outcome<Vec<String>> {
    let (stream, other) = (stream(), stream());
    let (mut errors, queue) = (Vec::new(), Queue::unbounded()?);
    let mut x = attempts(&mut errors, || CudaTensor::<f32>::zeros([LEN], &stream));
    let on = attempts(&mut errors, || x.on_mut(&stream).map(|on| on.ptr()));
    kernels().fill(&stream, on, LEN, 1.0);
    let mut leaving = Some(x);
    while let Some(x) = leaving.take() {
        if let Err(error) = queue.put(x) {
            errors.push(error.to_string());
            let back = error.into_value();
            assert_eq!(back.shape(), [LEN]);
            leaving = Some(back);
        }
    }
    let x = taken(&queue);
    assert_eq!(attempts(&mut errors, || x.to_vec(&other)), [1.0; LEN]);
    let event = CudaEvent::new()?;
    attempts(&mut errors, || event.record(&other));
    attempts(&mut errors, || event.wait(&stream));
    let copy = attempts(&mut errors, || x.to_device(&stream));
    drop(x);
    let copy = copy.share();
    attempts(&mut errors, || copy.fill(2.0, &other));
    assert_eq!(attempts(&mut errors, || copy.to_vec(&other)), [2.0; LEN]);
    Ok(errors)
}

/// Driver calls that are made with any [`Order`] of streams.
const CALLS: [&str; 5] = [
    "cuStreamIsCapturing",
    "cuMemsetD8Async",
    "cuMemsetD32Async",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
];

fn calls_of(order: Order) -> &'static [&'static str] {
    match order {
        Order::Clocks => &[
            "cuMemHostRegister_v2",
            "cuMemHostGetDevicePointer_v2",
            "cuStreamWriteValue64_v2",
            "cuStreamWaitValue64_v2",
        ],
        Order::IpcEvents => &[
            "cuEventCreate",
            "cuIpcGetEventHandle",
            "cuEventRecord",
            "cuLaunchHostFunc",
            "cuStreamWaitEvent",
        ],
        _ => &["cuStreamSynchronize"],
    }
}

under_each_order! {
fn each_failing_driver_call_is_reported_and_retried(order: Order) {
    let session = under(order);
    let (mut reported, calls) = (0, [&CALLS, calls_of(order)].concat());
    for call in &calls {
        for number in 1.. {
            let rule = format!("fail={call}:{number}:4321");
            let process = with_gpu(&session).env("MP_CUDA_SIM_INJECT", &rule).spawn(sends_and_receives, ());
            let errors = join(process.unwrap());
            assert!(errors.len() <= 1, "{rule}: {errors:?}");
            assert!(
                errors.iter().all(|error| error.contains(call) && error.contains("4321")),
                "{rule}: {errors:?}"
            );
            reported += errors.len();
            // A failure during a drop is not returned to a caller. The memory is no longer used, and is freed
            // with the process.
            if errors.is_empty() {
                break;
            }
        }
    }
    assert!(reported >= calls.len(), "{reported}");
    nothing_is_left(&session);
}
}

type Sent = (SharedCudaTensor<f32>, SharedCudaTensor<f32>);

fn loses_its_device((out, lost): (Queue<Sent>, Queue<()>)) -> Outcome {
    let (stream, other) = (stream(), stream());
    let t = CudaTensor::<f32>::zeros([LEN], &stream)?.share();
    // The stream's work never ends without a signal.
    let mut never = CudaTensor::<f32>::zeros([LEN], &other)?;
    let on = never.on_mut(&other)?;
    kernels().spin(&other, Duration::from_secs(3600));
    kernels().fill(&other, on.ptr(), on.len(), 1.0);
    drop(on);
    out.put((t.clone(), never.share())).unwrap();
    // A kernel that writes to unmapped memory.
    kernels().fill(&stream, 64, LEN, 1.0);
    let error = stream.synchronize().unwrap_err();
    assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    let error = t.to_vec(&stream).unwrap_err();
    assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    drop(t);
    lost.put(()).unwrap();
    stays();
    Ok(())
}

fn goes_on((t, never): Sent) -> Outcome {
    let stream = stream();
    // The process that should write the tensor is alive, but can't write it.
    let error = never.on(&stream).unwrap_err();
    assert!(matches!(error, Error::ProducerDied { .. }), "{error}");
    match t.to_vec(&stream) {
        Ok(values) => assert_eq!(values, [0.0; LEN]),
        Err(error) => {
            assert!(matches!(error, Error::ProducerDied { .. }), "{error}");
            // The error is returned once.
            t.fill(3.0, &stream)?;
            assert_eq!(t.to_vec(&stream)?, [3.0; LEN]);
        }
    }
    Ok(())
}

#[test]
fn lost_device_blocks_no_other_process() {
    let session = session();
    let (queue, reported) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let lost = with_gpu(&session).spawn(loses_its_device, (queue.clone(), reported.clone())).unwrap();
    taken(&reported);
    run(&session, goes_on, taken(&queue));
    lost.kill().unwrap();
    assert!(lost.wait_timeout(DEADLINE));
    let kinds: Vec<String> = session.findings().unwrap().into_iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, ["fault"]);
}

fn cannot_tell(out: Queue<CudaTensor<f32>>) -> Outcome<Option<String>> {
    let stream = stream();
    let mut t = CudaTensor::<f32>::empty([LEN], &stream)?;
    let on = t.on_mut(&stream)?;
    kernels().fill(&stream, on.ptr(), on.len(), 1.0);
    drop(on);
    let refused = out.put(t).err();
    let error = refused.as_ref().map(ToString::to_string);
    // The returned value can be sent now.
    refused.map_or(Ok(()), |error| out.put(error.into_value())).unwrap();
    Ok(error)
}

fn reads_it(t: CudaTensor<f32>) -> Outcome {
    assert_eq!(t.to_vec(&stream())?, [1.0; LEN]);
    Ok(())
}

/// A tick that the driver refused must not reach other processes: their streams would wait for it forever.
#[test]
fn refused_tick_is_not_published() {
    let session = setup().set("STUCK_MS", 6_000).start().unwrap();
    let queue = Queue::unbounded().unwrap();
    // The registration of the table makes the first write.
    let rule = "fail=cuStreamWriteValue64_v2:2:4321";
    let sender =
        with_gpu(&session).env("MP_CUDA_SIM_INJECT", rule).spawn(cannot_tell, queue.clone()).unwrap();
    let reader = with_gpu(&session).spawn(reads_it, taken(&queue)).unwrap();
    eventually("the reader ends, or is stuck", || !reader.is_alive() || stat(&session, "findings") > 0);
    nothing_found(&session);
    join(reader);
    let error = join(sender).expect("the driver refused a tick");
    assert!(error.contains("cuStreamWriteValue64_v2") && error.contains("4321"), "{error}");
    nothing_is_left(&session);
}
