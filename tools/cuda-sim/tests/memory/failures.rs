//! Tests with a failing driver, and with a full device.

use crate::agent::{Agent, Do, agents, alone, end, moves, nothing_found, setup, stat};

const MIB: u64 = 1 << 20;

/// Runs all operations on own pieces, and on pieces of another process. Returns the errors.
fn all(agent: &Agent, maker: &Agent) -> Vec<String> {
    let mut errors = Vec::new();
    maker.frozen(1, 1000, 5);
    agent.ok(Do::Keep(1, maker.give(1, true)));
    let mut attempt = |what| match agent.attempt(what).expect("it lives").number {
        Ok(number) => Some(number),
        Err(error) => {
            errors.push(error);
            None
        }
    };
    for _ in 0..2 {
        if let Some(byte) = attempt(Do::Read(1)) {
            assert_eq!(byte, 5);
        }
        if attempt(Do::Allocate(2, 1000)).is_some() && attempt(Do::Fill(2, 6)).is_some() {
            assert_eq!(attempt(Do::Read(2)), Some(6));
        }
    }
    errors
}

const CALLS: [&str; 7] = [
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
];

/// A failed call returns an error that names the call, the operation is undone, and the next attempt
/// succeeds.
#[test]
fn operations_of_failed_driver_calls_are_undone() {
    let _alone = alone();
    let session = setup().start().unwrap();
    let moves = moves();
    let maker = Agent::new(&session, &moves);
    for (code, name) in [("2", "OUT_OF_MEMORY"), ("304", "OPERATING_SYSTEM"), ("4321", "4321")] {
        for call in CALLS {
            let mut number = 1;
            loop {
                let rule = format!("fail={call}:{number}:{code}");
                let agent = Agent::with(&session, &moves, &[("MP_CUDA_SIM_INJECT", &rule)]);
                let errors = all(&agent, &maker);
                // A single failure to allocate device memory is hidden: unused memory is freed, and the call
                // repeated.
                let retried = code == "2" && call != "cuMemGetAllocationGranularity";
                assert!(errors.len() <= 1, "{rule}: {errors:?}");
                if let Some(error) = errors.first() {
                    assert!(error.contains(call), "{rule}: {error}");
                    assert!(error.contains(name), "{rule}: {error}");
                }
                let failed = !errors.is_empty();
                agent.ok(Do::Drop(1));
                agent.attempt(Do::Drop(2)).unwrap();
                agent.ok(Do::Empty);
                assert_eq!(agent.stats(), [0; 6], "{rule}");
                agent.leave();
                maker.ok(Do::Drop(1));
                maker.ok(Do::Empty);
                assert_eq!(stat(&session, "bytes"), 0, "{rule}");
                nothing_found(&session);
                if !failed && (!retried || number > 1) {
                    assert!(number > 1, "{rule}: no such call was made");
                    break;
                }
                number += 1;
            }
        }
    }
}

/// The error contains the sizes. Memory is free again after its drop in any process.
#[test]
fn full_device_error_names_the_sizes() {
    let _alone = alone();
    let session = setup().set("MEMORY", 80 * MIB).start().unwrap();
    let moves = moves();
    let (maker, other) = (Agent::new(&session, &moves), Agent::new(&session, &moves));
    maker.ok(Do::Allocate(1, 30 * MIB));
    other.ok(Do::Allocate(1, 30 * MIB));
    let refused = maker.fails(Do::Allocate(2, 40 * MIB));
    let figures = format!("{} bytes left, and {} were asked for", 20 * MIB, 40 * MIB);
    assert!(
        refused.contains(&figures) && refused.contains(&format!("has {} bytes of it", 30 * MIB)),
        "{refused}"
    );
    // The device has no room for a slab of 32 MiB, but has room for this piece alone.
    maker.ok(Do::Allocate(2, 1000));
    assert_eq!(maker.stats()[0], 32 * MIB);
    maker.ok(Do::Drop(2));
    assert!(maker.fails(Do::Allocate(2, 40 * MIB)).contains("bytes left, and"));
    assert_eq!(maker.stats()[0], 30 * MIB, "the other slab was returned");
    // The maker's own slabs without pieces are freed for the new one.
    maker.ok(Do::Drop(1));
    maker.ok(Do::Allocate(2, 40 * MIB));
    assert_eq!(maker.stats()[0], 40 * MIB);
    // The maker's mappings of other processes' slabs are freed as well.
    other.ok(Do::Freeze(1));
    maker.ok(Do::Keep(3, other.give(1, true)));
    maker.ok(Do::Open(3, 0));
    maker.ok(Do::Drop(3));
    other.ok(Do::Drop(1));
    other.ok(Do::Empty);
    assert_eq!(stat(&session, "bytes"), 70 * MIB, "the other process has the slab mapped");
    maker.ok(Do::Drop(2));
    maker.ok(Do::Allocate(4, 75 * MIB));
    assert_eq!(stat(&session, "bytes"), 76 * MIB);
    end(&session, [maker, other]);
}

/// On a device without virtual memory, an allocation fails with an error that names the missing feature.
#[test]
fn device_without_sharing_is_an_error() {
    let _alone = alone();
    let session = setup().set("PROFILE", "no-vmm").start().unwrap();
    let moves = moves();
    let agent = Agent::new(&session, &moves);
    let refused = agent.fails(Do::Allocate(1, 1000));
    assert!(
        refused.contains("can't be shared between processes") && refused.contains("virtual memory"),
        "{refused}"
    );
    agent.leave();
    nothing_found(&session);
}

/// Allocates more bytes than the range of addresses has.
#[test]
fn impossible_device_memory_size_is_an_error() {
    let _alone = alone();
    let session = setup().start().unwrap();
    let moves = moves();
    let agent = Agent::new(&session, &moves);
    for bytes in [u64::MAX, u64::MAX / 2, 1 << 50] {
        let refused = agent.fails(Do::Allocate(1, bytes));
        assert!(refused.contains("bytes left, and"), "{refused}");
    }
    agent.ok(Do::Allocate(1, 0));
    agent.leave();
    nothing_found(&session);
}

/// In the forked child, calls return errors or 0, and drops release no memory of the parent.
#[test]
fn forked_copy_is_refused_device_memory() {
    let (_alone, session, [agent]) = agents();
    agent.ok(Do::Allocate(1, 1000));
    agent.ok(Do::Fill(1, 4));
    let said = agent.fails(Do::Copied(1));
    assert_eq!(said.matches("Err(this process was forked").count(), 2, "{said}");
    assert!(said.contains(") 0 DeviceMemoryStats { reserved: 0"), "{said}");
    assert_eq!(agent.ok(Do::Read(0)), 4);
    assert_eq!(agent.stats(), [32 * MIB, 1024, 0, 1, 1, 0]);
    end(&session, [agent]);
}

/// After descriptors are available again, the piece can be opened.
#[test]
fn opening_a_piece_without_descriptors_is_an_error() {
    let (_alone, session, [maker, other]) = agents();
    maker.frozen(1, 1000, 5);
    other.ok(Do::Keep(1, maker.give(1, true)));
    other.ok(Do::Stats);
    for more in 0..2 {
        other.ok(Do::Limit(Some(more)));
        let refused = other.fails(Do::Open(1, 0));
        assert!(refused.contains("RLIMIT_NOFILE, `ulimit -n`"), "{more}: {refused}");
        other.ok(Do::Limit(None));
    }
    assert_eq!(other.ok(Do::Read(1)), 5);
    end(&session, [maker, other]);
}
