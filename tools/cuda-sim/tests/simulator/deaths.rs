//! Resources of a process that is killed, stopped, or ends by itself.

use rustix::process::Signal;

use crate::support::{Client, UNIT, file, kinds, nothing_found, setup, stat, until};

#[test]
fn a_killed_process_leaves_nothing() {
    let session = setup().set("LAZY_MS", 60_000).start().unwrap();
    let a = Client::new(&session);
    let (_, at) = a.memory(UNIT);
    a.ok("cuMemAlloc", &[1000]);
    a.register(&file(4096), 4096);
    let stream = a.stream();
    a.fill(stream, at, 1000, 1.0);
    assert!(stat(&session, "bytes") == 2 * UNIT && stat(&session, "queued") == 1);
    a.kill();
    for what in ["processes", "bytes", "queued", "streams", "leaving"] {
        until(&session, what, 0);
    }
    nothing_found(&session);
}

#[test]
fn work_of_a_killed_process_runs_late_and_vanishes() {
    for (late, expected) in [(0, 0.0), (60_000, 7.0)] {
        let session = setup().set("LATE_MS", late).set("LAZY_MS", 200).start().unwrap();
        let (a, b) = (Client::new(&session), Client::new(&session));
        let (handle, at) = a.memory(UNIT);
        let there = b.map(b.import(&a.export(handle)).number, UNIT);
        b.call("cuMemcpyHtoD", &[there], &[0; 4000]);
        let stream = a.stream();
        a.fill(stream, at, 1000, 7.0);
        a.kill();
        until(&session, "processes", 1);
        until(&session, "queued", 0);
        assert_eq!(stat(&session, "leaving"), u64::from(late > 0));
        assert_eq!(b.floats(there, 1000), vec![expected; 1000], "late_ms={late}");
    }
}

#[test]
fn work_of_a_stopped_process_goes_on() {
    let session = setup().set("LAZY_MS", 1).start().unwrap();
    let (a, b) = (Client::new(&session), Client::new(&session));
    let shared = file(4096);
    let ((_, clock), (_, theirs)) = (a.register(&shared, 4096), b.register(&shared, 4096));
    let (stream, waiting) = (a.stream(), b.stream());
    let spin = a.kernel("spin_ns");
    a.ok("cuLaunchKernel", &[spin, stream, 20_000_000]);
    a.ok("cuStreamWriteValue64", &[stream, clock, 1]);
    mp_harness::signal(a.pid(), Signal::STOP);
    b.ok("cuStreamWaitValue64", &[waiting, theirs, 1, 0]);
    b.ok("cuStreamSynchronize", &[waiting]);
    mp_harness::signal(a.pid(), Signal::CONT);
    nothing_found(&session);
}

#[test]
fn host_store_releases_waiters_of_killed_process() {
    let session = setup().start().unwrap();
    let (a, b) = (Client::new(&session), Client::new(&session));
    let shared = file(4096);
    let (host, theirs) = b.register(&shared, 4096);
    a.register(&shared, 4096);
    let stream = b.stream();
    b.ok("cuStreamWaitValue64", &[stream, theirs, 3, 0]);
    a.kill();
    // The sweep's value: the end of all ticks, written by any process.
    b.ok("store", &[host, i64::MAX.cast_unsigned()]);
    b.ok("cuStreamSynchronize", &[stream]);
    nothing_found(&session);
}

#[test]
fn what_a_process_leaves_at_its_clean_end_is_told() {
    let session = setup().start().unwrap();
    let tidy = Client::new(&session);
    let (handle, at) = tidy.memory(UNIT);
    tidy.ok("cuMemUnmap", &[at, UNIT]);
    tidy.ok("cuMemAddressFree", &[at, UNIT]);
    tidy.ok("cuMemRelease", &[handle]);
    tidy.leave();
    until(&session, "processes", 0);
    nothing_found(&session);
    let untidy = Client::new(&session);
    untidy.memory(UNIT);
    untidy.register(&file(4096), 4096);
    untidy.leave();
    until(&session, "processes", 0);
    let found = session.findings().unwrap();
    assert_eq!(kinds(&session), ["left"]);
    // Unregistering memory waits for all work, which an exit should not do.
    assert!(found[0].text.contains("1 mappings") && !found[0].text.contains("regist"), "{}", found[0].text);
    until(&session, "bytes", 0);
}

#[test]
fn an_engine_that_ends_is_an_error_and_no_hang() {
    let session = setup().start().unwrap();
    let a = Client::new(&session);
    let (_, device) = a.register(&file(4096), 4096);
    let stream = a.stream();
    a.ok("cuStreamWaitValue64", &[stream, device, 1, 0]);
    a.begin("cuStreamSynchronize", &[stream]);
    drop(session);
    assert_eq!(a.end().0.code, mp_cuda_sim::codes::UNKNOWN);
}
