//! Programs that cause each kind of finding.

use mp_cuda_sim::codes;
use mp_cuda_sim::session::Session;

use crate::support::{Client, UNIT, file, kinds, nothing_found, setup, stat};

fn lazy() -> Session {
    setup().set("LAZY_MS", 60_000).start().unwrap()
}

/// Returns two clients that share device memory and a registered word (clock). For each client, returns the
/// address of the memory, a stream, and the address of the clock.
fn pair(session: &Session) -> [(Client, u64, u64, u64); 2] {
    let (a, b) = (Client::new(session), Client::new(session));
    let shared = file(4096);
    let (handle, at) = a.memory(UNIT);
    let there = b.map(b.import(&a.export(handle)).number, UNIT);
    let (ours, theirs) = (a.register(&shared, 4096).1, b.register(&shared, 4096).1);
    let (one, two) = (a.stream(), b.stream());
    [(a, at, one, ours), (b, there, two, theirs)]
}

/// Runs `sum_f32` on the memory at `from`. The result is stored in separate bytes after that memory.
fn sum(client: &Client, stream: u64, from: u64) {
    let function = client.kernel("sum_f32");
    client.ok("cuLaunchKernel", &[function, stream, from + UNIT / 2, from, 1000]);
}

#[test]
fn read_after_a_wait_for_its_write_is_no_race() {
    for seed in 1..=5 {
        let session = setup().set("LAZY_MS", 60_000).set("SEED", seed).start().unwrap();
        let [(a, at, one, ours), (b, there, two, theirs)] = pair(&session);
        a.fill(one, at, 1000, 1.0);
        a.ok("cuStreamWriteValue64", &[one, ours, 1]);
        b.ok("cuStreamWaitValue64", &[two, theirs, 1, 0]);
        sum(&b, two, there);
        b.ok("cuStreamSynchronize", &[two]);
        assert_eq!(b.floats(there + UNIT / 2, 1), [1000.0]);
        nothing_found(&session);
    }
}

#[test]
fn simulator_finds_missing_wait_in_either_order() {
    for (first, second) in [(0, 1), (1, 0)] {
        let session = lazy();
        let pair = pair(&session);
        pair[0].0.call("cuMemcpyHtoD", &[pair[0].1], &[0; 4000]);
        pair[0].0.fill(pair[0].2, pair[0].1, 1000, 1.0);
        sum(&pair[1].0, pair[1].2, pair[1].1);
        for i in [first, second] {
            // The awaited stream runs first, because no other work has run.
            pair[i].0.ok("cuStreamSynchronize", &[pair[i].2]);
        }
        let found = session.findings().unwrap();
        assert_eq!(kinds(&session), ["race"], "{found:?}");
        let [a, b] = [pair[0].0.pid(), pair[1].0.pid()];
        assert!(
            found[0].text.contains(&a.to_string()) && found[0].text.contains(&b.to_string()),
            "{found:?}"
        );
    }
}

#[test]
fn simulator_finds_work_that_its_tick_does_not_cover() {
    let session = lazy();
    let [(a, at, one, ours), (b, there, two, theirs)] = pair(&session);
    // The tick does not cover later work.
    a.ok("cuStreamWriteValue64", &[one, ours, 1]);
    a.fill(one, at, 1000, 1.0);
    b.ok("cuStreamWaitValue64", &[two, theirs, 1, 0]);
    sum(&b, two, there);
    b.ok("cuStreamSynchronize", &[two]);
    a.ok("cuStreamSynchronize", &[one]);
    assert!(kinds(&session).contains(&"race".to_owned()), "{:?}", session.findings());
}

#[test]
fn store_of_a_host_orders_no_device_work() {
    let session = lazy();
    let [(a, at, one, _), (b, there, two, _)] = pair(&session);
    let shared = file(4096);
    let ((host, word), (_, theirs)) = (a.register(&shared, 4096), b.register(&shared, 4096));
    b.kernel("sum_f32");
    b.ok("cuStreamWaitValue64", &[two, theirs, 5, 0]);
    sum(&b, two, there);
    // The stream's value would not have ended the wait. The host's value ends the wait, as if the stream had
    // run that far.
    a.fill(one, at, 1000, 1.0);
    a.ok("cuStreamWriteValue64", &[one, word, 1]);
    a.ok("cuStreamSynchronize", &[one]);
    a.ok("store", &[host, 5]);
    b.ok("cuStreamSynchronize", &[two]);
    assert_eq!(kinds(&session), ["race"]);
}

#[test]
fn writes_of_neighboring_bytes_do_not_race() {
    let session = lazy();
    let [(a, at, one, _), (b, there, two, _)] = pair(&session);
    a.fill(one, at, 3, 1.0);
    b.fill(two, there + 12, 3, 2.0);
    a.ok("cuStreamSynchronize", &[one]);
    b.ok("cuStreamSynchronize", &[two]);
    nothing_found(&session);
    assert_eq!(a.floats(at, 6), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
}

#[test]
fn races_on_declared_shared_memory_are_ignored() {
    let session = lazy();
    let [(a, at, one, _), (b, there, two, _)] = pair(&session);
    a.ok("mp_sim_shared", &[at, UNIT]);
    b.ok("mp_sim_shared", &[there, UNIT]);
    a.fill(one, at, 100, 1.0);
    b.fill(two, there, 100, 2.0);
    a.ok("cuStreamSynchronize", &[one]);
    b.ok("cuStreamSynchronize", &[two]);
    nothing_found(&session);
}

#[test]
fn race_names_both_call_sites() {
    let session = lazy();
    let env = [("MP_CUDA_SIM_BACKTRACE", "1")];
    let (a, b) = (Client::with(&session, &env), Client::with(&session, &env));
    let (handle, at) = a.memory(UNIT);
    let there = b.map(b.import(&a.export(handle)).number, UNIT);
    let (one, two) = (a.stream(), b.stream());
    a.fill(one, at, 100, 1.0);
    b.fill(two, there, 100, 2.0);
    a.ok("cuStreamSynchronize", &[one]);
    b.ok("cuStreamSynchronize", &[two]);
    let found = session.findings().unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].line.matches("cuLaunchKernel").count() >= 2, "{}", found[0].line);
}

#[test]
fn access_to_unmapped_memory_ends_the_context() {
    let session = lazy();
    let a = Client::new(&session);
    let (_, at) = a.memory(UNIT);
    let stream = a.stream();
    a.fill(stream, at, 1000, 1.0);
    a.ok("cuMemUnmap", &[at, UNIT]);
    assert_eq!(a.code("cuStreamSynchronize", &[stream]), codes::ILLEGAL_ADDRESS);
    assert_eq!(a.code("cuStreamCreate", &[1]), codes::ILLEGAL_ADDRESS, "and so does each call from now on");
    assert_eq!(kinds(&session), ["fault"]);
    // Another process is not affected.
    let b = Client::new(&session);
    let (_, at) = b.memory(UNIT);
    b.fill(0, at, 10, 1.0);
    assert_eq!(b.floats(at, 10), [1.0; 10]);
}

#[test]
fn simulator_finds_kernel_outside_of_its_mapping() {
    for access in [0, 1] {
        let session = lazy();
        let a = Client::new(&session);
        let (_, at) = a.memory(UNIT);
        a.ok("cuMemSetAccess", &[at, UNIT, 0, access]);
        a.fill(0, at, 10, 1.0);
        assert_eq!(a.code("cuCtxSynchronize", &[]), codes::ILLEGAL_ADDRESS, "access {access}");
        assert_eq!(kinds(&session), ["fault"]);
    }
    let session = lazy();
    let a = Client::new(&session);
    let (_, at) = a.memory(UNIT);
    a.fill(0, at, UNIT / 4 + 1, 1.0);
    assert_eq!(a.code("cuCtxSynchronize", &[]), codes::ILLEGAL_ADDRESS);
    let found = session.findings().unwrap();
    assert!(found[0].text.contains("more than is mapped"), "{found:?}");
}

#[test]
fn simulator_finds_access_beyond_a_piece() {
    let session = lazy();
    let a = Client::new(&session);
    let (_, at) = a.memory(UNIT);
    a.ok("mp_sim_piece", &[at, 512]);
    a.ok("mp_sim_piece", &[at + 512, 512]);
    a.fill(0, at + 512, 128, 1.0);
    a.ok("cuCtxSynchronize", &[]);
    nothing_found(&session);
    a.fill(0, at, 129, 1.0);
    a.ok("cuCtxSynchronize", &[]);
    assert_eq!(kinds(&session), ["out-of-bounds"]);
    // The driver has a list of the pieces of legacy memory.
    let session = lazy();
    let a = Client::new(&session);
    let at = a.ok("cuMemAlloc", &[100]);
    a.fill(0, at, 26, 1.0);
    a.ok("cuCtxSynchronize", &[]);
    assert_eq!(kinds(&session), ["out-of-bounds"]);
}

#[test]
fn simulator_finds_read_of_unwritten_bytes() {
    let session = lazy();
    let a = Client::new(&session);
    let at = a.ok("cuMemAlloc", &[UNIT]);
    a.fill(0, at, 999, 1.0);
    sum(&a, 0, at);
    a.ok("cuCtxSynchronize", &[]);
    let found = session.findings().unwrap();
    assert_eq!(kinds(&session), ["unwritten"]);
    assert!(found[0].text.contains("4 bytes"), "{found:?}");
}

#[test]
fn simulator_finds_and_runs_work_of_destroyed_stream() {
    let session = lazy();
    let a = Client::new(&session);
    let at = a.ok("cuMemAlloc", &[400]);
    let stream = a.stream();
    a.fill(stream, at, 100, 4.0);
    a.ok("cuStreamDestroy", &[stream]);
    assert_eq!((kinds(&session), stat(&session, "queued")), (vec!["destroyed-with-work".to_owned()], 1));
    a.ok("cuCtxSynchronize", &[]);
    assert_eq!(a.floats(at, 100), [4.0; 100]);
}

#[test]
fn simulator_finds_wait_for_an_unwritten_value() {
    let session = setup().set("STUCK_MS", 50).start().unwrap();
    let a = Client::new(&session);
    let (_, device) = a.register(&file(4096), 4096);
    let stream = a.stream();
    a.ok("cuStreamWaitValue64", &[stream, device, 77, 0]);
    mp_harness::eventually("it is told", || kinds(&session) == ["stuck"]);
    assert!(session.findings().unwrap()[0].text.contains("0x4d"));
}

#[test]
fn unknown_kernel_is_refused() {
    let session = setup().start().unwrap();
    let a = Client::new(&session);
    let module = a.call("cuModuleLoadData", &[], b".visible .entry mystery(.param .u64 a) { ret; }").number;
    assert_eq!(a.call("cuModuleGetFunction", &[module], b"other").code, codes::NOT_FOUND);
    let function = a.call("cuModuleGetFunction", &[module], b"mystery").number;
    assert_eq!(a.code("cuLaunchKernel", &[function, 0, 1]), codes::LAUNCH_FAILED);
    assert_eq!(kinds(&session), ["unknown-kernel"]);
    assert_eq!(a.call("cuModuleLoadData", &[], b"no image").code, codes::INVALID_IMAGE);
}

/// Checks that each of these calls returns an error and one finding. Returns the findings.
#[track_caller]
fn is_refused(session: &Session, client: &Client, calls: &[(&str, &[u64])]) {
    for (count, (call, numbers)) in (1..).zip(calls) {
        assert_ne!(client.code(call, numbers), 0, "{call}");
        let found = session.findings().unwrap();
        assert!(found.len() == count && found.iter().all(|one| one.kind == "refused"), "{call}: {found:?}");
        assert!(found[count - 1].text.starts_with(call), "{call}: {found:?}");
    }
}

#[test]
fn simulator_finds_a_double_release() {
    let session = lazy();
    let a = Client::new(&session);
    let (handle, at) = a.memory(UNIT);
    a.ok("cuMemRelease", &[handle]);
    a.ok("cuMemUnmap", &[at, UNIT]);
    a.ok("cuMemAddressFree", &[at, UNIT]);
    let (stream, event, piece) = (a.stream(), a.ok("cuEventCreate", &[2]), a.ok("cuMemAlloc", &[100]));
    a.ok("cuStreamDestroy", &[stream]);
    a.ok("cuEventDestroy", &[event]);
    a.ok("cuMemFree", &[piece]);
    nothing_found(&session);
    let calls: [(&str, &[u64]); 6] = [
        ("cuMemRelease", &[handle]),
        ("cuMemUnmap", &[at, UNIT]),
        ("cuMemAddressFree", &[at, UNIT]),
        ("cuStreamDestroy", &[stream]),
        ("cuEventDestroy", &[event]),
        ("cuMemFree", &[piece]),
    ];
    is_refused(&session, &a, &calls);
}

#[test]
fn simulator_finds_address_freed_while_mapped() {
    let session = lazy();
    let a = Client::new(&session);
    let (_, at) = a.memory(UNIT);
    is_refused(&session, &a, &[("cuMemAddressFree", &[at, UNIT])]);
    a.ok("cuMemUnmap", &[at, UNIT]);
    a.ok("cuMemAddressFree", &[at, UNIT]);
}

/// Releasing a handle twice releases another object that has reused the handle. The release of that object is
/// then refused.
#[test]
fn stale_driver_handle_reaches_the_next_object() {
    let session = lazy();
    let a = Client::new(&session);
    let (stream, event) = (a.stream(), a.ok("cuEventCreate", &[2]));
    let (handle, at) = a.memory(UNIT);
    for (call, numbers) in [
        ("cuStreamDestroy", &[stream][..]),
        ("cuEventDestroy", &[event]),
        ("cuMemUnmap", &[at, UNIT]),
        ("cuMemAddressFree", &[at, UNIT]),
        ("cuMemRelease", &[handle]),
    ] {
        a.ok(call, numbers);
    }
    assert_eq!((a.stream(), a.ok("cuEventCreate", &[2]), a.memory(UNIT)), (stream, event, (handle, at)));
    a.ok("cuMemRelease", &[handle]);
    a.ok("cuStreamDestroy", &[stream]);
    a.ok("cuEventDestroy", &[event]);
    let calls: [(&str, &[u64]); 3] =
        [("cuMemRelease", &[handle]), ("cuStreamDestroy", &[stream]), ("cuEventDestroy", &[event])];
    is_refused(&session, &a, &calls);
}

/// After a fault, calls return the error of the context without checking their arguments.
#[test]
fn release_after_a_fault_is_no_finding() {
    let session = lazy();
    let a = Client::new(&session);
    let stream = a.stream();
    a.fill(stream, 64, 1, 1.0);
    assert_eq!(a.code("cuStreamSynchronize", &[stream]), codes::ILLEGAL_ADDRESS);
    assert_eq!(a.code("cuStreamDestroy", &[stream]), codes::ILLEGAL_ADDRESS);
    assert_eq!(kinds(&session), ["fault"]);
}
