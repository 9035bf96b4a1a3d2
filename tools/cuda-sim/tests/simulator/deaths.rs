//! Resources of a process that is killed, is stopped, or exits.

use rustix::process::Signal;

use crate::support::{Client, UNIT, file, kinds, nothing_found, setup, stat, until};

#[test]
fn killed_process_leaves_no_driver_resources() {
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
fn work_of_a_stopped_process_continues() {
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
    // A recovery writes this value, the end of all ticks. Any process may write it.
    b.ok("store", &[host, i64::MAX.cast_unsigned()]);
    b.ok("cuStreamSynchronize", &[stream]);
    nothing_found(&session);
}

/// A stream that waits for a killed writer is released, and accesses the writer's memory. The findings name
/// the death, because only results of this stream are affected.
#[test]
fn finding_names_the_death_that_released_a_stream() {
    let session = setup().set("LATE_MS", 60_000).set("LAZY_MS", 60_000).start().unwrap();
    let (a, b) = (Client::new(&session), Client::new(&session));
    let shared = file(4096);
    let ((_, clock), (host, theirs)) = (a.register(&shared, 4096), b.register(&shared, 4096));
    let (handle, at) = a.memory(UNIT);
    let there = b.map(b.import(&a.export(handle)).number, UNIT);
    let (writer, waiting, other) = (a.stream(), b.stream(), b.stream());
    // Loading a function waits for all work.
    let spin = a.kernel("spin_ns");
    b.kernel("fill_f32");
    a.fill(writer, at, 100, 1.0);
    a.ok("cuStreamWriteValue64", &[writer, clock + 8, 1]);
    a.ok("cuLaunchKernel", &[spin, writer, 600_000_000_000]);
    a.ok("cuStreamWriteValue64", &[writer, clock, 1]);
    b.ok("cuStreamWaitValue64", &[waiting, theirs, 1, 0]);
    b.fill(waiting, there, 100, 2.0);
    b.ok("cuMemcpyDtoDAsync", &[there + 4096, there + 1024, 64, waiting]);
    // The first fill runs. The work above was submitted before, so it is not ordered after the fill.
    b.ok("cuStreamWaitValue64", &[other, theirs + 8, 1, 0]);
    b.ok("cuStreamSynchronize", &[other]);
    let pid = a.pid();
    a.kill();
    until(&session, "processes", 1);
    b.ok("store", &[host, i64::MAX.cast_unsigned()]);
    b.ok("cuStreamSynchronize", &[waiting]);
    let found = session.findings().unwrap();
    assert_eq!(kinds(&session), ["race", "unwritten"], "{found:?}");
    let [race, unwritten] =
        [&found[0], &found[1]].map(|one| -> serde_json::Value { serde_json::from_str(&one.line).unwrap() });
    assert!(found[0].text.ends_with("ended because a process was killed"), "{}", found[0].text);
    assert_eq!((&race["released"], &race["earlier"]["pid"]), (&true.into(), &pid.into()));
    for waited in [&race["later"], &unwritten] {
        assert_eq!(waited["released_from"], serde_json::json!([pid]));
    }
}

#[test]
fn resources_left_at_exit_are_reported() {
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
fn ended_engine_is_an_error_of_pending_calls() {
    let session = setup().start().unwrap();
    let a = Client::new(&session);
    let (_, device) = a.register(&file(4096), 4096);
    let stream = a.stream();
    a.ok("cuStreamWaitValue64", &[stream, device, 1, 0]);
    a.begin("cuStreamSynchronize", &[stream]);
    drop(session);
    assert_eq!(a.end().0.code, mp_cuda_sim::codes::UNKNOWN);
}
