//! Failures, kills and losses that a test injects, and devices that lack features.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use mp_cuda_sim::codes;

use crate::support::{Client, UNIT, file, nothing_found, setup, stat, until};

#[test]
fn injected_driver_failure_changes_no_state() {
    let session = setup().start().unwrap();
    let rules = "fail=cuMemCreate:2:OUT_OF_MEMORY;fail=cuMemRelease:1:4321";
    let a = Client::with(&session, &[("MP_CUDA_SIM_INJECT", rules)]);
    let first = a.ok("cuMemCreate", &[UNIT, 0]);
    assert_eq!(a.code("cuMemCreate", &[UNIT, 0]), codes::OUT_OF_MEMORY);
    assert_eq!(stat(&session, "bytes"), UNIT);
    a.ok("cuMemCreate", &[UNIT, 0]);
    assert_eq!(a.code("cuMemRelease", &[first]), 4321, "a code that no header has");
    assert_eq!(stat(&session, "bytes"), 2 * UNIT);
    a.ok("cuMemRelease", &[first]);
    nothing_found(&session);
}

#[test]
fn injected_kill_happens_before_or_after_its_call() {
    for (when, exports) in [("before", 0), ("after", 1)] {
        let session = setup().start().unwrap();
        let rule = format!("kill=cuMemExportToShareableHandle:1:{when}");
        let a = Client::with(&session, &[("MP_CUDA_SIM_INJECT", &rule)]);
        let handle = a.ok("cuMemCreate", &[UNIT, 0]);
        let calls = stat(&session, "calls");
        let status = a.dies_in("cuMemExportToShareableHandle", &[handle]);
        assert_eq!(status.signal(), Some(9), "{when}");
        // Reading statistics counts as a call, too.
        assert_eq!(stat(&session, "calls"), calls + 1 + exports, "{when}");
        // The process's received descriptors were closed at its end, and the memory was freed.
        until(&session, "processes", 0);
        until(&session, "bytes", 0);
        nothing_found(&session);
    }
}

#[test]
fn injected_delay_applies_to_its_driver_call() {
    let session = setup().start().unwrap();
    let a = Client::with(&session, &[("MP_CUDA_SIM_INJECT", "delay=cuStreamCreate:1:50")]);
    let begin = Instant::now();
    a.stream();
    assert!(begin.elapsed() >= Duration::from_millis(50));
}

#[test]
fn lost_device_is_lost_for_all_processes() {
    let session = setup().start().unwrap();
    let (a, b) = (Client::new(&session), Client::new(&session));
    let (_, device) = a.register(&file(4096), 4096);
    let stream = a.stream();
    a.ok("cuStreamWaitValue64", &[stream, device, 1, 0]);
    a.begin("cuStreamSynchronize", &[stream]);
    session.lose(0).unwrap();
    assert_eq!(a.end().0.code, codes::LAUNCH_FAILED, "a wait ends");
    assert_eq!(b.code("cuMemAlloc", &[1000]), codes::LAUNCH_FAILED);
    let c = Client::bare(Some(&session), &[]);
    c.ok("cuInit", &[0]);
    assert_eq!(c.code("cuDevicePrimaryCtxRetain", &[0]), codes::DEVICE_UNAVAILABLE);
    // The device is lost after a number of calls, without a request.
    let session = setup().set("LOST_AFTER", 10).start().unwrap();
    let a = Client::new(&session);
    let codes: Vec<u32> = (0..12).map(|_| a.code("cuStreamCreate", &[1])).collect();
    assert_eq!((codes[0], codes[11]), (0, mp_cuda_sim::codes::LAUNCH_FAILED));
}

#[test]
fn profiles_of_the_simulator_lack_device_features() {
    let session = setup().set("PROFILE", "no-memops").start().unwrap();
    let a = Client::new(&session);
    let (_, device) = a.register(&file(4096), 4096);
    assert_eq!(a.ok("cuDeviceGetAttribute", &[122, 0]), 0);
    assert_eq!(a.code("cuStreamWriteValue64", &[0, device, 1]), codes::NOT_SUPPORTED);
    let session = setup().set("PROFILE", "no-vmm").start().unwrap();
    let a = Client::new(&session);
    assert_eq!(a.ok("cuDeviceGetAttribute", &[102, 0]), 0);
    assert_eq!(a.code("cuMemCreate", &[UNIT, 0]), codes::NOT_SUPPORTED);
    a.ok("cuMemAlloc", &[1000]);
    assert!(setup().set("PROFILE", "voodoo").start().is_err());
}

#[test]
fn seed_determines_the_simulators_schedule() {
    // Two streams write the same word. The seed determines the last writer.
    let last = |seed: u64| {
        let session = setup().set("LAZY_MS", 60_000).set("SEED", seed).start().unwrap();
        let a = Client::new(&session);
        let (host, device) = a.register(&file(4096), 4096);
        for stream in 1..=4 {
            let on = a.stream();
            a.ok("cuStreamWriteValue64", &[on, device, stream]);
        }
        a.ok("cuCtxSynchronize", &[]);
        a.ok("load", &[host])
    };
    let first: Vec<u64> = (1..=6).map(last).collect();
    assert_eq!(first, (1..=6).map(last).collect::<Vec<_>>());
    assert!(first.iter().any(|one| *one != first[0]), "{first:?}");
}
