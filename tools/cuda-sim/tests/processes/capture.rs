//! Streams that are captured into a graph. During a capture, operations that order processes are
//! refused. They succeed after the capture.
#![allow(unsafe_code)]

use std::error::Error as _;
use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mp_cuda::{
    CudaEvent, CudaStream, CudaTensor, Error, Order, empty_cache, ipc_collect, memory_stats, order,
};
use mp_queue::Queue;

use crate::support::{
    Outcome, join, kernels, nothing_is_left, run, session, stream, taken, under, under_each_order, with_gpu,
};

const LEN: usize = 1 << 12;
/// `CUstreamCaptureMode`.
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;
const ILLEGAL_STATE: u32 = 401;
const CAPTURE_UNSUPPORTED: u32 = 900;
const CAPTURE_INVALIDATED: u32 = 901;

/// Driver functions of graphs, which `mp-cuda` doesn't call.
struct Graphs(Library);

type Object = *mut c_void;

impl Graphs {
    fn load() -> Self {
        // SAFETY: mp-cuda has loaded this library.
        Self(unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) }.unwrap())
    }

    fn begin(&self, stream: &CudaStream) -> u32 {
        self.begin_as(RELAXED, stream)
    }

    fn begin_as(&self, mode: u32, stream: &CudaStream) -> u32 {
        type Function = unsafe extern "C" fn(Object, u32) -> u32;
        // SAFETY: the function has this type.
        let function = unsafe { self.0.get::<Function>(b"cuStreamBeginCapture_v2") }.unwrap();
        // SAFETY: the stream is alive.
        unsafe { function(stream.as_raw(), mode) }
    }

    /// Ends a capture, and discards the graph.
    fn end(&self, stream: &CudaStream) -> u32 {
        type End = unsafe extern "C" fn(Object, *mut Object) -> u32;
        type Destroy = unsafe extern "C" fn(Object) -> u32;
        // SAFETY: the functions have these types.
        let end = unsafe { self.0.get::<End>(b"cuStreamEndCapture") }.unwrap();
        // SAFETY: the functions have these types.
        let destroy = unsafe { self.0.get::<Destroy>(b"cuGraphDestroy") }.unwrap();
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is alive; the graph is written to a variable of this function.
        let code = unsafe { end(stream.as_raw(), &raw mut graph) };
        if code == 0 {
            // SAFETY: the previous call made the graph.
            assert_eq!(unsafe { destroy(graph) }, 0);
        } else {
            assert!(graph.is_null());
        }
        code
    }
}

fn captured((): ()) -> Outcome {
    let (stream, graphs) = (stream(), Graphs::load());
    // Makes the context current on this thread.
    kernels();
    let x = CudaTensor::<f32>::full([LEN], 1.0, &stream)?.share();
    assert_eq!(x.to_vec(&stream)?, [1.0; LEN]);
    assert_eq!(graphs.end(&stream), ILLEGAL_STATE, "no capture has begun");
    assert!(!stream.is_capturing()?);
    assert_eq!(graphs.begin(&stream), 0);
    assert!(stream.is_capturing()?);
    assert_eq!(graphs.begin(&stream), ILLEGAL_STATE);
    let on = x.on_mut(&stream)?;
    kernels().fill(&stream, on.ptr(), on.len(), 9.0);
    drop(on);
    assert_eq!(graphs.end(&stream), 0);
    assert!(!stream.is_capturing()?);
    assert_eq!(x.to_vec(&stream)?, [1.0; LEN], "captured work hasn't run");
    // A wait for a captured stream invalidates the capture, which the error reports.
    assert_eq!(graphs.begin(&stream), 0);
    let error = stream.synchronize().unwrap_err();
    assert!(matches!(error, Error::Driver { code: CAPTURE_UNSUPPORTED, .. }), "{error}");
    assert!(stream.is_capturing()?, "until the capture is ended");
    assert_eq!(graphs.end(&stream), CAPTURE_INVALIDATED);
    stream.synchronize()?;
    Ok(())
}

#[test]
fn work_captured_into_a_graph_does_not_run() {
    let session = session();
    run(&session, captured, ());
    nothing_is_left(&session);
}

#[track_caller]
fn is_refused<T>(result: mp_cuda::Result<T>) {
    let error = result.map(drop).unwrap_err();
    assert!(matches!(error, Error::Capturing), "{error}");
}

type Tensors = Queue<CudaTensor<f32>>;

fn is_refused_and_sends((tensors, done): (Tensors, Queue<()>)) -> Outcome {
    let (stream, other, graphs) = (stream(), stream(), Graphs::load());
    let event = CudaEvent::new()?;
    event.record(&stream)?;
    event.synchronize()?;
    let mut x = CudaTensor::<f32>::empty([LEN], &stream)?;
    let on = x.on_mut(&stream)?;
    kernels().fill(&stream, on.ptr(), on.len(), 1.0);
    drop(on);
    // Another stream writes the tensor, by a kernel that takes a while.
    let mut y = CudaTensor::<f32>::empty([LEN], &other)?;
    let on = y.on_mut(&other)?;
    kernels().spin(&other, Duration::from_millis(300));
    kernels().fill(&other, on.ptr(), on.len(), 2.0);
    drop(on);
    let pending = CudaEvent::new()?;
    pending.record(&other)?;

    assert_eq!(graphs.begin(&stream), 0);
    is_refused(event.record(&stream));
    assert!(event.query()?, "the earlier recording is still valid");
    if order(stream.device())? != Order::Host {
        is_refused(pending.wait(&stream));
        is_refused(y.on_mut(&stream));
        is_refused(y.on(&stream));
    } else {
        // Hosts have waited, so nothing is left to order.
        pending.wait(&stream)?;
    }
    let error = tensors.put(x).unwrap_err();
    assert!(error.to_string().contains("captured into a graph"), "{error}");
    let source = error.source().map(ToString::to_string);
    assert!(source.is_none_or(|source| source.contains("captured")), "{error:?}");
    let x = error.into_value();
    assert_eq!(x.shape(), [LEN]);
    assert_eq!(graphs.end(&stream), 0, "no call has invalidated the user's capture");

    // All objects are unchanged, and the operations succeed now.
    event.record(&stream)?;
    event.synchronize()?;
    pending.wait(&stream)?;
    tensors.put(x).unwrap();
    let on = y.on_mut(&stream)?;
    kernels().multiply(&stream, on.ptr(), on.ptr(), on.len(), 2.0);
    drop(on);
    tensors.put(y).unwrap();
    taken(&done);
    Ok(())
}

fn receives((tensors, done): (Tensors, Queue<()>)) -> Outcome {
    let stream = stream();
    assert_eq!(taken(&tensors).to_vec(&stream)?, [1.0; LEN]);
    assert_eq!(taken(&tensors).to_vec(&stream)?, [4.0; LEN]);
    done.put(()).unwrap();
    Ok(())
}

under_each_order! {
    /// A captured stream makes no marks of progress (ticks), for any [`Order`].
    fn captured_stream_orders_nothing_and_loses_nothing(order: Order) {
        let session = under(order);
        let (tensors, done) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
        let one = with_gpu(&session).spawn(is_refused_and_sends, (tensors.clone(), done.clone())).unwrap();
        let other = with_gpu(&session).spawn(receives, (tensors, done)).unwrap();
        join(one);
        join(other);
        nothing_is_left(&session);
    }
}

/// Calls all functions of `mp-cuda` on other streams, some of them for the first time.
fn everything_else() -> Outcome {
    let streams: Vec<CudaStream> = (0..6).map(|_| stream()).collect();
    let device = streams[0].device().clone();
    let x = CudaTensor::<f32>::full([LEN], 1.0, &streams[0])?.freeze();
    // With more than a few streams, each stream is queried.
    for stream in &streams {
        let on = x.on(stream)?;
        kernels().spin(stream, Duration::from_millis(1));
        drop(on);
    }
    let queue = Queue::unbounded()?;
    queue.put(x.clone())?;
    assert_eq!(taken(&queue).to_vec(&streams[1])?, [1.0; LEN]);
    let event = CudaEvent::new()?;
    event.record(&streams[2])?;
    event.wait(&streams[3])?;
    event.synchronize()?;
    assert!(event.query()?);
    streams[3].synchronize()?;
    assert!(streams[3].is_complete()?);
    drop(x);
    drop(streams);
    _ = memory_stats(&device);
    ipc_collect();
    empty_cache();
    Ok(())
}

/// Captures a stream in this mode during other calls, made in the capturing thread and then in another
/// thread.
fn captures_during_other_calls(mode: u32) -> Outcome {
    let (captured, graphs) = (stream(), Graphs::load());
    for elsewhere in [false, true] {
        assert_eq!(graphs.begin_as(mode, &captured), 0);
        let done = if elsewhere {
            let all = || everything_else().map_err(|error| error.to_string());
            std::thread::spawn(all).join().unwrap()
        } else {
            everything_else().map_err(|error| error.to_string())
        };
        done?;
        assert_eq!(graphs.end(&captured), 0, "mode {mode}, in another thread: {elsewhere}");
    }
    Ok(())
}

under_each_order! {
    fn internal_driver_calls_invalidate_no_capture(order: Order) {
        for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
            let session = under(order);
            run(&session, captures_during_other_calls, mode);
            nothing_is_left(&session);
        }
    }
}
