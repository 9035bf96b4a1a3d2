//! Kills a process before and after each driver call by which it shares memory of another library, or opens
//! memory of another process. Also makes each of these calls fail.
#![allow(unsafe_code)]

use mp_core::Recovery;
use mp_cuda::{CudaTensor, Error, ForeignMemory, StreamGuardMut, ipc_collect};
use mp_cuda_sim::session::Session;
use mp_harness::{DEADLINE, eventually};
use mp_queue::Queue;
use mp_spawn::{ExitStatus, Process};

use crate::allocations::{Allocated, By, freed};
use crate::support::{Outcome, join, kernels, nothing_found, run, session, stat, stream, taken, with_gpu};

const LEN: usize = 1 << 10;

type Moved = Queue<CudaTensor<f32>>;

/// Shares a tensor, and checks that the owner of its memory is dropped when the tensor is returned or its
/// receiver is dead. If a dead receiver may have written, the owner is never dropped.
fn exports((by, out, back, gone): (By, Moved, Moved, Queue<()>)) -> Outcome {
    let stream = stream();
    let memory = Allocated::new(by, 4 * LEN).filled(&[1.0; LEN]);
    let foreign = ForeignMemory::new(memory.address, [LEN]).never_copied();
    // SAFETY: the memory has this many floats until it is dropped, and no other code uses them.
    let (t, _) = unsafe { foreign.share::<f32, _>(memory, &stream) }?;
    out.put(t).unwrap();
    taken(&gone);
    if let Ok(Some(t)) = back.try_get() {
        let read = t.to_vec(&stream);
        assert!(matches!(&read, Ok(_) | Err(Error::ProducerDied { .. })), "{read:?}");
    }
    drop(out.try_get());
    let stats = || mp_cuda::memory_stats(stream.device());
    eventually("the memory is free, or is never released", || {
        _ = Recovery(mp_core::Arena::current().unwrap()).reclaim_if_due();
        ipc_collect();
        let stats = stats();
        stats.foreign_owners == 0 || stats.foreign_retired == 4 * LEN as u64
    });
    assert_eq!(freed() + stats().foreign_owners, 1);
    // The process can still share another tensor.
    let memory = Allocated::new(by, 4 * LEN).filled(&[2.0; LEN]);
    let foreign = ForeignMemory::new(memory.address, [LEN]).never_copied();
    // SAFETY: the memory has this many floats until it is dropped, and no other code uses them.
    let (t, _) = unsafe { foreign.share::<f32, _>(memory, &stream) }?;
    assert_eq!(t.to_vec(&stream)?, [2.0; LEN]);
    Ok(())
}

/// Reads the tensor, writes to it, and sends it back.
fn opens((by, from, back): (By, Moved, Moved)) -> Outcome {
    let stream = stream();
    let Ok(Some(mut t)) = from.try_get() else { return Ok(()) };
    let died = |error: &Error| matches!(error, Error::ProducerDied { .. });
    let multiply = |on: StreamGuardMut<'_, f32>| kernels().multiply(&stream, on.ptr(), on.ptr(), LEN, 3.0);
    let written = t.on_mut(&stream).map(multiply);
    match written {
        Ok(()) => {
            // From here on, the injected rule may kill the tensor's maker.
            let read = t.to_vec(&stream);
            assert!(
                read.as_ref().is_ok_and(|all| *all == [3.0; LEN]) || read.as_ref().is_err_and(died),
                "{read:?}"
            );
        }
        Err(error) => assert!(died(&error) && by == By::Legacy, "{error}"),
    }
    back.put(t).unwrap();
    ipc_collect();
    Ok(())
}

fn was_killed(process: &Process, rule: &str) -> bool {
    assert!(process.wait_timeout(DEADLINE), "{rule}: still running");
    match process.exit() {
        Some(ExitStatus::Signal { .. }) => true,
        Some(ExitStatus::Code(0)) => false,
        other => panic!("{rule}: {other:?}"),
    }
}

/// Driver calls that share memory.
const EXPORTS: [&str; 6] = [
    "cuPointerGetAttribute",
    "cuMemGetAddressRange_v2",
    "cuIpcGetMemHandle",
    "cuMemRetainAllocationHandle",
    "cuMemExportToShareableHandle",
    "cuMemFree_v2",
];
const OPENS: [&str; 9] = [
    "cuIpcOpenMemHandle_v2",
    "cuIpcCloseMemHandle",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemRelease",
    "cuMemUnmap",
    "cuMemAddressFree",
];

/// Calls `killed` with a kill rule for each driver call, before and after the call. For each, increases the
/// number of the call from 1 until `killed` returns `false`. Returns the number of kills.
fn each_kill(calls: &[&str], mut killed: impl FnMut(&str) -> bool) -> usize {
    let mut kills = 0;
    for call in calls {
        for when in ["before", "after"] {
            let all = (1..).take_while(|number| killed(&format!("kill={call}:{number}:{when}"))).count();
            kills += all;
        }
    }
    kills
}

/// Checks that all memory is freed, and that all findings have an expected kind. Some findings are
/// unavoidable: a killed process frees memory that other processes have opened, and memory to which a dead
/// process may write is never released.
fn only(session: &Session, expected: &[&str]) {
    eventually("all memory is free", || stat(session, "bytes") == 0);
    let kinds: Vec<_> = session.findings().unwrap().into_iter().map(|one| one.kind).collect();
    assert!(kinds.iter().all(|kind| expected.contains(&kind.as_str())), "{kinds:?}");
}

#[test]
fn exporter_killed_at_any_driver_call_leaks_nothing() {
    for by in [By::Legacy, By::Shareable] {
        let session = session();
        let kills = each_kill(&EXPORTS, |rule| {
            let (out, back, gone): (Moved, Moved, _) =
                (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
            let args = (by, out.clone(), back.clone(), gone.clone());
            let exporter = with_gpu(&session).env("MP_CUDA_SIM_INJECT", rule).spawn(exports, args).unwrap();
            // The exporter is killed before it has sent the tensor, or when it finds that the tensor was
            // returned.
            eventually("it sends or is killed", || !out.is_empty() || !exporter.is_alive());
            run(&session, opens, (by, out.clone(), back.clone()));
            gone.put(()).unwrap();
            let killed = was_killed(&exporter, rule);
            drop((out, back));
            eventually("all memory is free", || stat(&session, "bytes") == 0);
            killed
        });
        assert!(kills >= 12, "{kills}");
        only(&session, if by == By::Legacy { &["freed-while-open"] } else { &[] });
    }
}

#[test]
fn foreign_opener_killed_at_any_call_leaks_nothing() {
    for by in [By::Legacy, By::Shareable] {
        let session = session();
        let kills = each_kill(&OPENS, |rule| {
            let (out, back, gone): (Moved, Moved, _) =
                (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
            let args = (by, out.clone(), back.clone(), gone.clone());
            let exporter = with_gpu(&session).spawn(exports, args).unwrap();
            eventually("it sends", || !out.is_empty());
            let args = (by, out.clone(), back.clone());
            let opener = with_gpu(&session).env("MP_CUDA_SIM_INJECT", rule).spawn(opens, args).unwrap();
            let killed = was_killed(&opener, rule);
            gone.put(()).unwrap();
            join(exporter);
            drop((out, back));
            eventually("all memory is free", || stat(&session, "bytes") == 0);
            killed
        });
        assert!(kills >= 4, "{kills}");
        only(&session, &["left"]);
    }
}

/// Shares memory and reads it in another process. Returns the errors of failed calls.
fn attempts((by, out, there): (By, Moved, Queue<()>)) -> Outcome<Vec<String>> {
    let (stream, mut errors) = (stream(), Vec::new());
    let mut memory = Some(Allocated::new(by, 4 * LEN).filled(&[1.0; LEN]));
    while let Some(owner) = memory.take() {
        let foreign = ForeignMemory::new(owner.address, [LEN]).never_copied();
        // SAFETY: the memory has this many floats until it is dropped, and no other code uses them.
        match unsafe { foreign.share::<f32, _>(owner, &stream) } {
            Ok((t, _)) => out.put(t).unwrap(),
            Err(refused) => {
                errors.push(refused.error.to_string());
                memory = Some(refused.value);
            }
        }
        assert!(errors.len() < 3, "{errors:?}");
    }
    taken(&there);
    eventually("it is free", || {
        ipc_collect();
        freed() == 1
    });
    Ok(errors)
}

fn reads((from, there): (Moved, Queue<()>)) -> Outcome<Vec<String>> {
    let (stream, t, mut errors) = (stream(), taken(&from), Vec::new());
    loop {
        match t.to_vec(&stream) {
            Ok(all) => break assert_eq!(all, [1.0; LEN]),
            Err(error) => errors.push(error.to_string()),
        }
        assert!(errors.len() < 3, "{errors:?}");
    }
    drop(t);
    there.put(()).unwrap();
    Ok(errors)
}

#[test]
fn each_failing_driver_call_is_reported() {
    let session = session();
    for (by, call, code) in [
        (By::Legacy, "cuPointerGetAttribute", 4321),
        (By::Legacy, "cuMemGetAddressRange_v2", 4321),
        (By::Legacy, "cuIpcGetMemHandle", 4321),
        (By::Legacy, "cuIpcOpenMemHandle_v2", 4321),
        (By::Legacy, "cuIpcOpenMemHandle_v2", 304),
        (By::Shareable, "cuPointerGetAttribute", 4321),
        (By::Shareable, "cuMemRetainAllocationHandle", 4321),
        (By::Shareable, "cuMemExportToShareableHandle", 4321),
        (By::Shareable, "cuMemImportFromShareableHandle", 4321),
    ] {
        let mut reported = 0;
        for number in 1.. {
            let rule = format!("fail={call}:{number}:{code}");
            let (out, there) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
            let start = || with_gpu(&session).env("MP_CUDA_SIM_INJECT", &rule);
            let reader = start().spawn(reads, (out.clone(), there.clone())).unwrap();
            let sender = start().spawn(attempts, (by, out, there)).unwrap();
            let errors = [join(sender), join(reader)].concat();
            assert!(errors.len() <= 1, "{rule}: {errors:?}");
            assert!(errors.iter().all(|error| error.contains(call)), "{rule}: {errors:?}");
            reported += errors.len();
            if errors.is_empty() {
                break;
            }
        }
        assert!(reported > 0, "{by:?} {call}: no such call was made");
    }
    nothing_found(&session);
    eventually("all memory is free", || stat(&session, "bytes") == 0);
}
