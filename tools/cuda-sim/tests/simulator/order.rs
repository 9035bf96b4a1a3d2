//! Tests of streams, events and words. Work must not run before a host waits for it.

use mp_cuda_sim::codes;
use mp_cuda_sim::session::Session;

use crate::support::{Client, UNIT, file, kinds, nothing_found, setup, until};

/// Starts a session in which work runs only if a host waits for it.
fn lazy() -> Session {
    setup().set("LAZY_MS", 60_000).start().unwrap()
}

#[test]
fn driver_calls_require_a_context_and_its_objects() {
    let session = setup().start().unwrap();
    let a = Client::bare(Some(&session), &[]);
    assert_eq!(a.code("cuDeviceGetCount", &[]), codes::NOT_INITIALIZED);
    assert_eq!(a.code("cuInit", &[1]), codes::INVALID_VALUE);
    a.ok("cuInit", &[0]);
    assert_eq!(a.code("cuStreamCreate", &[1]), codes::INVALID_CONTEXT);
    assert_eq!(a.code("cuDevicePrimaryCtxRetain", &[3]), codes::INVALID_DEVICE);
    let context = a.ok("cuDevicePrimaryCtxRetain", &[0]);
    assert_eq!(a.ok("cuDevicePrimaryCtxRetain", &[0]), context);
    a.ok("cuCtxSetCurrent", &[context]);
    let stream = a.stream();
    assert_eq!([stream, 0].map(|stream| a.ok("cuStreamGetCtx", &[stream])), [context; 2]);
    a.ok("cuStreamDestroy", &[stream]);
    assert_eq!(a.code("cuStreamSynchronize", &[stream]), codes::INVALID_HANDLE);
    assert_eq!(a.code("cuEventRecord", &[stream, 0]), codes::INVALID_HANDLE);
    // The last release ends the context with everything in it.
    let memory = a.ok("cuMemAlloc", &[100]);
    a.ok("cuDevicePrimaryCtxRelease", &[0]);
    assert_eq!(a.code("cuMemFree", &[memory]), 0, "retained twice, released once");
    a.ok("cuMemAlloc", &[100]);
    a.ok("cuDevicePrimaryCtxRelease", &[0]);
    assert_eq!(a.code("cuStreamCreate", &[1]), codes::INVALID_CONTEXT);
    until(&session, "bytes", 0);
}

#[test]
fn forked_copy_of_a_client_is_refused() {
    let session = setup().start().unwrap();
    let a = Client::new(&session);
    assert_eq!(a.ok("fork", &[]), u64::from(codes::NOT_INITIALIZED));
    // The parent continues, and its end is detected, even if a child with its descriptors is alive.
    a.stream();
    let copy = a.copy();
    a.kill();
    until(&session, "processes", 0);
    drop(copy);
}

#[test]
fn simulated_work_runs_only_when_awaited() {
    let session = lazy();
    let a = Client::new(&session);
    let (host, device) = a.register(&file(4096), 4096);
    let (one, two) = (a.stream(), a.stream());
    a.ok("cuStreamWriteValue64", &[one, device, 1]);
    a.ok("cuStreamWriteValue64", &[two, device + 8, 1]);
    assert_eq!((a.code("cuStreamQuery", &[one]), a.ok("load", &[host])), (codes::NOT_READY, 0));
    // Only the awaited work runs.
    a.ok("cuStreamSynchronize", &[one]);
    assert_eq!((a.ok("load", &[host]), a.ok("load", &[host + 8])), (1, 0));
    a.ok("cuCtxSynchronize", &[]);
    assert_eq!(a.ok("load", &[host + 8]), 1);
    // Work runs after a delay, without a wait.
    let session = setup().set("LAZY_MS", 1).start().unwrap();
    let b = Client::new(&session);
    let stream = b.stream();
    let at = b.ok("cuMemAlloc", &[4000]);
    b.fill(stream, at, 1000, 1.0);
    until(&session, "queued", 0);
}

#[test]
fn event_is_bound_when_awaited() {
    let session = lazy();
    let a = Client::new(&session);
    let (host, device) = a.register(&file(4096), 4096);
    let [one, two, event] = [a.stream(), a.stream(), a.ok("cuEventCreate", &[2])];
    assert_eq!(a.code("cuEventQuery", &[event]), 0, "never recorded");
    a.ok("cuStreamWaitEvent", &[two, event]);
    a.ok("cuStreamWriteValue64", &[one, device, 1]);
    a.ok("cuEventRecord", &[event, one]);
    a.ok("cuStreamWaitEvent", &[two, event]);
    a.ok("cuStreamWriteValue64", &[two, device + 8, 1]);
    // A later recording has no effect on the wait.
    a.ok("cuStreamWaitValue64", &[one, device + 16, 1, 0]);
    a.ok("cuEventRecord", &[event, one]);
    assert_eq!(a.code("cuEventQuery", &[event]), codes::NOT_READY);
    a.ok("cuStreamSynchronize", &[two]);
    assert_eq!(
        (a.ok("load", &[host]), a.ok("load", &[host + 8])),
        (1, 1),
        "the work before the recording ran first"
    );
    a.begin("cuEventSynchronize", &[event]);
    assert!(!a.is_over_within(20), "the last record counts");
    let b = Client::new(&session);
    drop(b);
    drop(a);
    nothing_found(&session);
}

#[test]
fn host_function_runs_in_stream_order() {
    let session = lazy();
    let a = Client::new(&session);
    let (host, device) = a.register(&file(4096), 4096);
    let (one, two) = (a.stream(), a.stream());
    a.ok("cuStreamWaitValue64", &[one, device, 1, 0]);
    a.ok("cuLaunchHostFunc", &[one, host + 8]);
    a.ok("cuStreamWriteValue64", &[one, device + 16, 1]);
    a.ok("cuStreamSynchronize", &[two]);
    assert_eq!((a.code("cuStreamQuery", &[one]), a.ok("load", &[host + 8])), (codes::NOT_READY, 0));
    a.ok("store", &[host, 1]);
    // The operation is done when the function has returned.
    a.ok("cuStreamSynchronize", &[one]);
    assert_eq!((a.ok("load", &[host + 8]), a.ok("load", &[host + 16])), (7, 1));
    nothing_found(&session);
}

#[test]
fn default_stream_waits_for_blocking_streams() {
    let session = lazy();
    let a = Client::new(&session);
    let (host, device) = a.register(&file(4096), 4096);
    let [blocking, free] = [a.ok("cuStreamCreate", &[0]), a.stream()];
    a.ok("cuStreamWriteValue64", &[blocking, device, 1]);
    a.ok("cuStreamWriteValue64", &[free, device + 8, 1]);
    a.ok("cuStreamWriteValue64", &[0, device + 16, 1]);
    a.ok("cuStreamSynchronize", &[0]);
    let words = [0, 8, 16].map(|offset| a.ok("load", &[host + offset]));
    assert_eq!(words, [1, 0, 1]);
    a.ok("cuStreamWriteValue64", &[0, device + 24, 1]);
    a.ok("cuStreamWriteValue64", &[blocking, device + 32, 1]);
    a.ok("cuStreamSynchronize", &[blocking]);
    assert_eq!(a.ok("load", &[host + 24]), 1, "and they wait for it");
}

#[test]
fn interprocess_events_follow_the_manual() {
    let session = setup().set("LAZY_MS", 60_000).set("EVENTS", 3).start().unwrap();
    let (a, b) = (Client::new(&session), Client::new(&session));
    assert_eq!(a.code("cuEventCreate", &[4]), codes::INVALID_VALUE, "with timing");
    let event = a.ok("cuEventCreate", &[6]);
    let handle = a.call("cuIpcGetEventHandle", &[event], &[]).bytes;
    let plain = a.ok("cuEventCreate", &[2]);
    assert_eq!(a.code("cuIpcGetEventHandle", &[plain]), codes::INVALID_HANDLE);
    assert_ne!(a.call("cuIpcOpenEventHandle", &[], &handle).code, 0, "its own event");
    let there = b.call("cuIpcOpenEventHandle", &[], &handle).number;
    // One process records the event, and the other waits for it.
    let (ours, theirs) = (a.stream(), b.stream());
    let (host, device) = a.register(&file(4096), 4096);
    a.ok("cuStreamWriteValue64", &[ours, device, 1]);
    a.ok("cuEventRecord", &[event, ours]);
    b.ok("cuStreamWaitEvent", &[theirs, there]);
    b.ok("cuStreamSynchronize", &[theirs]);
    assert_eq!(a.ok("load", &[host]), 1);
    a.ok("cuEventCreate", &[6]);
    let last = a.ok("cuEventCreate", &[6]);
    assert_eq!(a.code("cuEventCreate", &[6]), codes::OUT_OF_MEMORY, "the number of such events is limited");
    a.ok("cuEventDestroy", &[last]);
    a.ok("cuEventCreate", &[6]);
    nothing_found(&session);
    // The maker is dead, so the event's behaviour is undefined. In the simulator, the event never completes.
    a.kill();
    until(&session, "processes", 1);
    b.ok("cuStreamWaitEvent", &[theirs, there]);
    assert_eq!(kinds(&session), ["event-over"]);
    b.begin("cuStreamSynchronize", &[theirs]);
    assert!(!b.is_over_within(30));
}

/// A driver may reuse names of events, for example if the names contain process ids.
#[test]
fn ipc_event_name_is_reused_after_its_maker() {
    let session = lazy();
    let [a, b, c] = [(); 3].map(|()| Client::new(&session));
    let name = |client: &Client| {
        let event = client.ok("cuEventCreate", &[6]);
        client.call("cuIpcGetEventHandle", &[event], &[]).bytes
    };
    let (first, second) = (name(&a), name(&a));
    let opened = b.call("cuIpcOpenEventHandle", &[], &first).number;
    assert!(![&first, &second].contains(&&name(&c)), "their maker is alive");
    a.kill();
    until(&session, "processes", 2);
    until(&session, "leaving", 0);
    assert_eq!([name(&c), name(&c)], [first.clone(), second]);
    b.ok("cuEventDestroy", &[opened]);
    let again = b.call("cuIpcOpenEventHandle", &[], &first).number;
    nothing_found(&session);
    b.ok("cuEventDestroy", &[again]);
}

#[test]
fn event_of_another_context_is_refused() {
    let session = setup().set("PROFILE", "two-gpus").start().unwrap();
    let a = Client::new(&session);
    let event = a.ok("cuEventCreate", &[2]);
    let second = a.ok("cuDevicePrimaryCtxRetain", &[1]);
    a.ok("cuCtxSetCurrent", &[second]);
    let stream = a.stream();
    assert_eq!(a.code("cuEventRecord", &[event, stream]), codes::INVALID_HANDLE);
    assert_eq!(a.code("cuStreamWaitEvent", &[stream, event]), 0, "a wait is independent of contexts");
}

/// On a GPU, a function's code is loaded when the function is first requested, which delays later work of
/// streams.
#[test]
fn lazy_function_load_delays_later_device_work() {
    let session = lazy();
    let (a, b) = (Client::new(&session), Client::new(&session));
    let shared = file(4096);
    let ((_, device), (theirs, _)) = (a.register(&shared, 4096), b.register(&shared, 4096));
    let (one, two) = (a.stream(), a.stream());
    let image = mp_cuda_sim::KERNELS.trim_end_matches('\0');
    let module = a.call("cuModuleLoadData", &[], image.as_bytes()).number;
    let look_up = || assert_eq!(a.call("cuModuleGetFunction", &[module], b"fill_f32").code, 0);
    for (turn, looks_up, is_late) in [(1, false, false), (2, true, true), (3, true, false)] {
        a.ok("cuStreamWaitValue64", &[one, device, turn, 0]);
        if looks_up {
            look_up();
        }
        a.ok("cuStreamWriteValue64", &[two, device + 8, turn]);
        a.begin("cuStreamSynchronize", &[two]);
        assert_eq!(a.is_over_within(if is_late { 20 } else { 10_000 }), !is_late, "{turn}");
        b.ok("store", &[theirs, turn]);
        a.end();
    }
}

/// On an H200, these calls wait for all work of the context, independent of their arguments.
#[test]
fn context_wide_driver_calls_wait_for_all_work() {
    let session = lazy();
    let (a, b) = (Client::new(&session), Client::new(&session));
    let shared = file(4096);
    let ((_, device), (theirs, _)) = (a.register(&shared, 4096), b.register(&shared, 4096));
    let (registered, _) = a.register(&file(4096), 4096);
    let stream = a.stream();
    let piece = a.ok("cuMemAlloc", &[4000]);
    let handle = b.call("cuIpcGetMemHandle", &[b.ok("cuMemAlloc", &[4000])], &[]).bytes;
    let opened = a.call("cuIpcOpenMemHandle", &[], &handle).number;
    let image = mp_cuda_sim::KERNELS.trim_end_matches('\0').as_bytes();
    let module = a.call("cuModuleLoadData", &[], image).number;
    let calls: [(&str, &[u64], &[u8]); 5] = [
        ("cuModuleLoadData", &[], image),
        ("cuModuleUnload", &[module], &[]),
        ("cuMemFree", &[piece], &[]),
        ("cuIpcCloseMemHandle", &[opened], &[]),
        ("cuMemHostUnregister", &[registered], &[]),
    ];
    for (turn, (call, numbers, bytes)) in (1..).zip(calls) {
        a.ok("cuStreamWaitValue64", &[stream, device, turn, 0]);
        a.begin_with(call, numbers, bytes, None);
        assert!(!a.is_over_within(20), "{call}");
        b.ok("store", &[theirs, turn]);
        assert_eq!(a.end().0.code, 0, "{call}");
    }
    // These calls do not wait.
    let (memory, at) = a.memory(UNIT);
    a.ok("cuStreamWaitValue64", &[stream, device, 6, 0]);
    let opened = a.call("cuIpcOpenMemHandle", &[], &handle).number;
    a.ok("cuMemUnmap", &[at, UNIT]);
    a.ok("cuMemRelease", &[memory]);
    b.ok("store", &[theirs, 6]);
    a.ok("cuIpcCloseMemHandle", &[opened]);
    nothing_found(&session);
}

#[test]
fn stream_waits_for_values_compare_cyclically() {
    let session = lazy();
    let a = Client::new(&session);
    let (host, device) = a.register(&file(4096), 4096);
    let stream = a.stream();
    let last = i64::MAX.cast_unsigned();
    // This value is the end of all ticks: a wait for any tick has ended.
    a.ok("store", &[host, last]);
    a.ok("cuStreamWaitValue64", &[stream, device, 1 << 40, 0]);
    a.ok("cuStreamSynchronize", &[stream]);
    // The largest number is before the first tick.
    a.ok("store", &[host, u64::MAX]);
    a.ok("cuStreamWaitValue64", &[stream, device, 1, 0]);
    a.begin("cuStreamSynchronize", &[stream]);
    assert!(!a.is_over_within(20));
    drop(a);
    let b = Client::new(&session);
    let (_, device) = b.register(&file(4096), 4096);
    let stream = b.stream();
    assert_eq!(
        b.code("cuStreamWaitValue64", &[stream, device + 4, 1, 0]),
        codes::INVALID_VALUE,
        "not aligned"
    );
    assert_eq!(b.code("cuStreamWaitValue64", &[stream, device, 1, 9]), codes::INVALID_VALUE);
    assert_eq!(b.code("cuStreamWriteValue64", &[stream, 4096, 1]), codes::INVALID_VALUE, "nothing is mapped");
}

#[test]
fn work_chain_of_three_processes_runs_on_demand() {
    let session = lazy();
    let clients = [(); 3].map(|()| Client::new(&session));
    let shared = file(4096);
    let (handle, at) = clients[0].memory(UNIT);
    let export = clients[0].export(handle);
    let mut last = 0;
    for (i, client) in clients.iter().enumerate() {
        let i = i as u64;
        let at = if i == 0 { at } else { client.map(client.import(&export).number, UNIT) };
        let (_, clock) = client.register(&shared, 4096);
        let stream = client.stream();
        if i == 0 {
            client.fill(stream, at, 1 << 18, 1.0);
        } else {
            client.ok("cuStreamWaitValue64", &[stream, clock, i, 0]);
            let function = client.kernel("mul_f32");
            client.ok("cuLaunchKernel", &[function, stream, at, at, 1 << 18, u64::from(3_f32.to_bits())]);
        }
        client.ok("cuStreamWriteValue64", &[stream, clock, i + 1]);
        last = stream;
        if i == 2 {
            client.ok("cuStreamSynchronize", &[last]);
            let ends = [at, at + (1 << 20) - 4000].map(|from| client.floats(from, 1000));
            assert!(ends.iter().flatten().all(|value| *value == 9.0));
        }
    }
    assert_ne!(last, 0);
    nothing_found(&session);
}
