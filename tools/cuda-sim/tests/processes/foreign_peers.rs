//! Memory of another library on one device, used by a second device that can or can't access the memory.
#![allow(unsafe_code)]

use mp_core::Error as CoreError;
use mp_cuda::{CudaStream, Device, Error, ForeignMemory, FrozenCudaTensor, ipc_collect};
use mp_harness::eventually;
use mp_queue::Queue;

use crate::allocations::{Allocated, By, freed};
use crate::foreign::{LEN, shared};
use crate::support::{Outcome, join, nothing_is_left, run, setup, stream, taken, with_gpu};

type Frozen = Queue<FrozenCudaTensor<f32>>;

fn on_the_other((by, from): (By, Frozen)) -> Outcome {
    let other = CudaStream::new(&Device::new(1)?)?;
    let error = taken(&from).on(&other).map(drop).unwrap_err();
    assert!(matches!(error, Error::PeerAccess { .. }), "{by:?}: {error}");
    // Memory of a device belongs to its own streams.
    let memory = Allocated::new(by, 4 * LEN);
    let foreign = ForeignMemory::new(memory.address, [LEN]);
    // SAFETY: the memory has this many floats.
    let refused = unsafe { foreign.share::<f32, _>(memory, &other) }.unwrap_err();
    assert!(matches!(refused.error, Error::Core(CoreError::InvalidArgument(_))), "{by:?}: {refused}");
    Ok(())
}

fn hands_one_out((by, out): (By, Frozen)) -> Outcome {
    let (stream, other) = (stream(), CudaStream::new(&Device::new(1)?)?);
    let t = shared(by, 5.0, &stream).0.freeze();
    assert!(matches!(t.on(&other), Err(Error::PeerAccess { .. })));
    out.put(t).unwrap();
    eventually("the owner is dropped", || {
        ipc_collect();
        freed() == 1
    });
    Ok(())
}

/// The error comes from the driver's information about the devices, before the memory is opened, or from the
/// driver call that opens the memory.
#[test]
fn memory_of_an_unreachable_peer_is_an_error() {
    let opens = "kill=cuIpcOpenMemHandle_v2:1:before;kill=cuMemImportFromShareableHandle:1:before";
    let refuses =
        "fail=cuIpcOpenMemHandle_v2:1:PEER_ACCESS_UNSUPPORTED;fail=cuMemSetAccess:1:PEER_ACCESS_UNSUPPORTED";
    for (by, profile, rule) in [
        (By::Legacy, "apart", opens),
        (By::Shareable, "apart", opens),
        (By::Legacy, "two-gpus", refuses),
        (By::Shareable, "two-gpus", refuses),
    ] {
        let session = setup().set("PROFILE", profile).start().unwrap();
        let out = Queue::unbounded().unwrap();
        let other = with_gpu(&session).env("MP_CUDA_SIM_INJECT", rule);
        let other = other.spawn(on_the_other, (by, out.clone())).unwrap();
        run(&session, hands_one_out, (by, out));
        join(other);
        nothing_is_left(&session);
    }
}

fn reads_on_both(from: Frozen) -> Outcome {
    let (stream, other) = (stream(), CudaStream::new(&Device::new(1)?)?);
    let t = taken(&from);
    assert_eq!(t.to_vec(&other)?, [5.0; LEN]);
    assert_eq!(t.to_vec(&stream)?, [5.0; LEN]);
    assert_eq!(t.to_device(&other)?.to_vec(&other)?, [5.0; LEN]);
    Ok(())
}

#[test]
fn reachable_peer_devices_read_foreign_memory() {
    for by in [By::Legacy, By::Shareable] {
        let session = setup().set("PROFILE", "two-gpus").start().unwrap();
        let out = Queue::unbounded().unwrap();
        let other = with_gpu(&session).spawn(reads_on_both, out.clone()).unwrap();
        run(&session, hands_one_out, (by, out));
        join(other);
        nothing_is_left(&session);
    }
}
