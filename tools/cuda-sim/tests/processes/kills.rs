//! Kills a process before and after each driver call that it makes while it sends or receives tensors. In the
//! other processes, each tensor is complete or reported as lost. The other processes continue, and no
//! resource leaks.

use std::collections::HashSet;

use mp_cuda::{CudaEvent, CudaTensor, Error, FrozenCudaTensor};
use mp_cuda_sim::session::{Finding, Session};
use mp_harness::{DEADLINE, eventually};
use mp_queue::Queue;
use mp_spawn::{ExitStatus, Process};

use crate::support::{
    Outcome, join, kernels, run, setup, stat, stream, taken, under, under_each_order, with_gpu,
};

const LEN: usize = 1 << 14;

/// Driver calls, except queries, that processes of these tests make with any [`Order`] of streams.
const CALLS: [&str; 27] = [
    "cuDevicePrimaryCtxRetain",
    "cuMemHostRegister_v2",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostUnregister",
    "cuStreamCreate",
    "cuStreamIsCapturing",
    "cuStreamWriteValue64_v2",
    "cuStreamWaitValue64_v2",
    "cuStreamSynchronize",
    "cuStreamDestroy_v2",
    "cuMemsetD8Async",
    "cuLaunchKernel",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemcpyDtoHAsync_v2",
    "cuEventCreate",
    "cuIpcGetEventHandle",
    "cuEventRecord",
    "cuLaunchHostFunc",
    "cuIpcOpenEventHandle",
    "cuStreamWaitEvent",
    "cuEventDestroy_v2",
];

/// Calls `killed` with a kill rule for each driver call, before and after the call. `NUMBER` in the rule
/// stands for the number of the call.
fn each_call(mut killed: impl FnMut(&str)) {
    for call in CALLS {
        for when in ["before", "after"] {
            killed(&format!("kill={call}:NUMBER:{when}"));
        }
    }
}

/// Returns `true` if a process was killed by its rule, and `false` if it ended normally. Fails otherwise.
fn was_killed(process: &Process, rule: &str) -> bool {
    assert!(process.wait_timeout(DEADLINE), "{rule}: still running");
    match process.exit() {
        Some(ExitStatus::Signal { .. }) => true,
        Some(ExitStatus::Code(0)) => false,
        other => panic!("{rule}: {other:?}"),
    }
}

/// Returns `true` if the tensor's values are all equal, or the tensor is reported as lost.
fn is_whole_or_lost(t: mp_cuda::Result<Vec<f32>>) -> bool {
    match t {
        Ok(values) => {
            assert!(values.iter().all(|x| *x == values[0]), "{:?}", &values[..8]);
            true
        }
        Err(Error::ProducerDied { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

type Sent = (FrozenCudaTensor<f32>, Option<CudaEvent>);

fn sends(out: Queue<Sent>) -> Outcome {
    let (stream, other) = (stream(), stream());
    let made = |value: f32| -> Outcome<_> {
        let mut t = CudaTensor::<f32>::zeros([LEN], &stream)?;
        let on = t.on_mut(&other)?;
        kernels().fill(&other, on.ptr(), on.len(), value);
        drop(on);
        Ok(t.freeze())
    };
    out.put((made(1.0)?, None)).unwrap();
    let (t, done) = (made(2.0)?, CudaEvent::new()?);
    done.record(&other)?;
    done.wait(&stream)?;
    out.put((t, Some(done))).unwrap();
    Ok(())
}

fn reads(all: Vec<Sent>) -> Outcome {
    let stream = stream();
    let mut whole = 0;
    for (t, event) in &all {
        if let Some(event) = event
            && let Err(error) = event.wait(&stream)
        {
            assert!(matches!(error, Error::ProducerDied { .. }), "{error}");
        }
        whole += usize::from(is_whole_or_lost(t.to_vec(&stream)));
    }
    assert!(whole <= all.len());
    Ok(())
}

under_each_order! {
fn sender_killed_at_each_driver_call_loses_nothing(order: Order) {
    sender_is_killed(&under(order));
}
}

/// The device continues to execute work of the killed process for 20 ms, and then discards remaining work.
#[test]
fn sender_killed_with_late_work_leaks_nothing() {
    sender_is_killed(&setup().set("LATE_MS", 20).set("SEED", 11).start().unwrap());
}

/// Returns the findings, except races between two streams of one killed process. After the death of a
/// process, waits for its streams end, so the device may run pending work of another stream of this process
/// too early. No process depends on the results of that work.
fn findings_of_others(session: &Session, gone: &HashSet<u32>) -> Vec<Finding> {
    let its_own = |finding: &Finding| {
        let line: serde_json::Value = serde_json::from_str(&finding.line).unwrap();
        let of = |which: &str| line[which]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        let (earlier, later) = (of("earlier"), of("later"));
        finding.kind == "race" && earlier == later && later.is_some_and(|pid| gone.contains(&pid))
    };
    session.findings().unwrap().into_iter().filter(|finding| !its_own(finding)).collect()
}

fn sender_is_killed(session: &Session) {
    let (mut kills, mut gone) = (0, HashSet::new());
    each_call(|rule| {
        for number in 1.. {
            let rule = rule.replace("NUMBER", &number.to_string());
            let queue = Queue::unbounded().unwrap();
            let sender =
                with_gpu(session).env("MP_CUDA_SIM_INJECT", &rule).spawn(sends, queue.clone()).unwrap();
            let killed = was_killed(&sender, &rule);
            let mut all = Vec::new();
            while let Ok(Some(one)) = queue.try_get() {
                all.push(one);
            }
            assert!(killed || all.len() == 2, "{rule}");
            if !all.is_empty() {
                run(session, reads, all);
            }
            eventually("all memory is free", || stat(session, "bytes") == 0);
            gone.extend(killed.then_some(sender.pid()));
            assert_eq!(findings_of_others(session, &gone), [], "{rule}");
            kills += usize::from(killed);
            if !killed {
                break;
            }
        }
    });
    assert!(kills > 35, "{kills}");
}

type Tensors = (Queue<CudaTensor<f32>>, Queue<FrozenCudaTensor<f32>>);

fn receives(((moved, frozen), back): (Tensors, Queue<CudaTensor<f32>>)) -> Outcome {
    let stream = stream();
    let (mut x, weights) = (taken(&moved), taken(&frozen));
    let on = x.on_mut(&stream)?;
    let weights = weights.on(&stream)?;
    kernels().multiply(&stream, on.ptr(), weights.ptr(), on.len(), 3.0);
    drop((on, weights));
    back.put(x).unwrap();
    Ok(())
}

fn makes(((moved, frozen), back, gone): (Tensors, Queue<CudaTensor<f32>>, Queue<()>)) -> Outcome {
    let stream = stream();
    let mut x = CudaTensor::<f32>::zeros([LEN], &stream)?;
    let on = x.on_mut(&stream)?;
    kernels().fill(&stream, on.ptr(), on.len(), 1.0);
    drop(on);
    moved.put(x).unwrap();
    let weights = CudaTensor::<f32>::full([LEN], 2.0, &stream)?.freeze();
    frozen.put(weights.clone()).unwrap();
    taken(&gone);
    if let Ok(Some(x)) = back.try_get() {
        is_whole_or_lost(x.to_vec(&stream));
    }
    // These messages were not taken by the other process.
    drop((moved.try_get(), frozen.try_get()));
    assert_eq!(weights.to_vec(&stream)?, [2.0; LEN]);
    drop(weights);
    for i in 0..4_u8 {
        let t = CudaTensor::<f32>::full([LEN], f32::from(i), &stream)?;
        assert_eq!(t.to_vec(&stream)?, [f32::from(i); LEN]);
    }
    Ok(())
}

under_each_order! {
fn receiver_killed_at_each_driver_call_loses_nothing(order: Order) {
    receiver_is_killed(&under(order));
}
}

#[test]
fn receiver_killed_with_late_work_leaks_nothing() {
    receiver_is_killed(&setup().set("LATE_MS", 20).set("SEED", 12).start().unwrap());
}

fn receiver_is_killed(session: &Session) {
    let (mut kills, mut killed_ones) = (0, HashSet::new());
    each_call(|rule| {
        for number in 1.. {
            let rule = rule.replace("NUMBER", &number.to_string());
            let tensors: Tensors = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
            let (back, gone) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
            let maker =
                with_gpu(session).spawn(makes, (tensors.clone(), back.clone(), gone.clone())).unwrap();
            let receiver = with_gpu(session)
                .env("MP_CUDA_SIM_INJECT", &rule)
                .spawn(receives, (tensors.clone(), back.clone()))
                .unwrap();
            let killed = was_killed(&receiver, &rule);
            gone.put(()).unwrap();
            join(maker);
            drop((tensors, back));
            eventually("all memory is free", || stat(session, "bytes") == 0);
            killed_ones.extend(killed.then_some(receiver.pid()));
            assert_eq!(findings_of_others(session, &killed_ones), [], "{rule}");
            kills += usize::from(killed);
            if !killed {
                break;
            }
        }
    });
    assert!(kills > 25, "{kills}");
}
