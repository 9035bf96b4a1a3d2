//! Drops of the last handle to memory: which threads do the work, and drops in a forked child.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mp_core::Arena;
use mp_cuda::{CudaEvent, CudaTensor, Device, FrozenCudaTensor, SharedCudaTensor, memory_stats};
use mp_harness::{DEADLINE, eventually};
use mp_queue::Queue;
use mp_spawn::{Process, StartMethod};

use crate::support::{
    Outcome, allow_copies, join, kernels, nothing_found, nothing_is_left, run, session, setup, stat, stays,
    stream, taken, with_gpu, without_gpu,
};

const LEN: usize = 1 << 16;
const SLAB: u64 = 32 << 20;
const SLOW: Duration = Duration::from_millis(50);

fn makes_and_stays(tensors: Queue<FrozenCudaTensor<f32>>) -> Outcome {
    let t = CudaTensor::<f32>::full([LEN], 3.0, &stream())?.freeze();
    tensors.put(t).unwrap();
    stays();
    Ok(())
}

fn learns_of_a_death((tensors, answers): (Queue<FrozenCudaTensor<f32>>, Queue<bool>)) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    assert_eq!(t.to_vec(&stream)?, [3.0; LEN]);
    drop(t);
    answers.put(memory_stats(stream.device()).mapped_slabs == 1).unwrap();
    eventually("the slab is unmapped", || {
        // The call detects the death, like each wait.
        Arena::current().unwrap().reclaim().unwrap();
        memory_stats(stream.device()).mapped_slabs == 0
    });
    answers.put(true).unwrap();
    Ok(())
}

/// The thread that detects a death must not unmap memory itself. Unmapping may wait for work that waits for
/// the dead process, and perhaps no other thread releases that work.
#[test]
fn death_is_handled_without_waiting_for_a_device() {
    let session = session();
    let (tensors, answers) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(makes_and_stays, tensors.clone()).unwrap();
    let other = with_gpu(&session)
        .env("MP_CUDA_SIM_INJECT", "delay=cuMemUnmap:1:3000")
        .spawn(learns_of_a_death, (tensors, answers.clone()))
        .unwrap();
    assert!(taken(&answers), "the slab stays mapped, for later pieces");
    maker.kill().unwrap();
    assert!(maker.wait_timeout(DEADLINE));
    assert!(taken(&answers));
    assert!(stat(&session, "bytes") > 0, "the process continued during the unmapping");
    // The exit of the other process waits for the unmapping.
    join(other);
    nothing_is_left(&session);
}

fn looks_while_a_thread_opens(tensors: Queue<FrozenCudaTensor<f32>>) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    let (device, opened) = (stream.device().clone(), AtomicBool::new(false));
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(t.to_vec(&stream).unwrap(), [3.0; LEN]);
            opened.store(true, Ordering::Relaxed);
        });
        while !opened.load(Ordering::Relaxed) {
            let begin = Instant::now();
            _ = memory_stats(&device);
            longest = longest.max(begin.elapsed());
        }
    });
    assert!(longest < OPENS / 2, "reading the statistics took {longest:?}");
    assert_eq!(memory_stats(&device).mapped_slabs, 1);
    Ok(())
}

/// Injected delay of the driver call that opens memory.
const OPENS: Duration = Duration::from_secs(3);

/// Reading statistics takes the same locks as dropping, sending and receiving tensors. A thread that opens
/// memory must not hold these locks.
#[test]
fn statistics_wait_for_no_opening_thread() {
    let session = session();
    let tensors = Queue::unbounded().unwrap();
    let maker = with_gpu(&session).spawn(makes_and_stays, tensors.clone()).unwrap();
    let delay = format!("delay=cuMemImportFromShareableHandle:1:{}", OPENS.as_millis());
    let other = with_gpu(&session).env("MP_CUDA_SIM_INJECT", delay);
    join(other.spawn(looks_while_a_thread_opens, tensors).unwrap());
    maker.kill().unwrap();
    assert!(maker.wait_timeout(DEADLINE));
    nothing_is_left(&session);
}

/// Value that is kept by a stream. Its drop sets the flag, so the flag shows when the stream has ended.
struct Kept(Arc<AtomicBool>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn reads_on_many_streams((): ()) -> Outcome {
    let kept = Arc::new(());
    let t = CudaTensor::<f32>::full([LEN], 1.0, &stream())?.freeze();
    for _ in 0..30 {
        let users = kernels().stream_of_another(Arc::clone(&kept));
        let on = t.on(&users)?;
        kernels().spin(&users, Duration::from_micros(1));
        drop(on);
        users.synchronize()?;
    }
    // Streams whose end was not detected yet may exist.
    let count = Arc::strong_count(&kept) - 1;
    assert!(count <= 8, "{count} streams are kept");
    Ok(())
}

/// Reads of a frozen tensor are covered by ticks only at its last drop. Until then, no tick shows that a
/// stream has run its reads.
#[test]
fn idle_readers_of_frozen_tensor_are_released() {
    let session = session();
    run(&session, reads_on_many_streams, ());
    nothing_is_left(&session);
}

fn drops_a_tensor_of_two_streams((): ()) -> Outcome {
    let (one, other, dropped) = (stream(), stream(), Arc::new(AtomicBool::new(false)));
    let users = kernels().stream_of_another(Kept(Arc::clone(&dropped)));
    kernels().spin(&users, SLOW);
    let done = CudaEvent::new()?;
    done.record(&users)?;
    drop(users);
    assert!(!dropped.load(Ordering::Relaxed), "the stream still has work");
    done.synchronize()?;
    let t = CudaTensor::<f32>::full([LEN], 1.0, &one)?.freeze();
    for stream in [&one, &other] {
        let on = t.on(stream)?;
        kernels().spin(stream, SLOW);
        drop(on);
    }
    // Another stream, the first stream of its kind in this process, waits for both.
    drop(t);
    assert!(!dropped.load(Ordering::Relaxed), "a user's value is dropped under a tensor's lock");
    drop(stream());
    assert!(dropped.load(Ordering::Relaxed));
    one.synchronize()?;
    other.synchronize()?;
    Ok(())
}

#[test]
fn user_code_runs_outside_of_tensor_locks() {
    let session = session();
    run(&session, drops_a_tensor_of_two_streams, ());
    nothing_is_left(&session);
}

static INHERITED: OnceLock<SharedCudaTensor<f32>> = OnceLock::new();

fn has_a_copy((): ()) -> Outcome<bool> {
    let t = INHERITED.get().ok_or("it is inherited")?;
    let refused = Queue::unbounded()?.put(t.clone()).is_err();
    Ok(refused && t.downgrade().upgrade().is_none() && format!("{t:?}").contains("f32"))
}

fn copies_itself(tensors: Queue<SharedCudaTensor<f32>>) -> Outcome {
    let t = INHERITED.get_or_init(|| taken(&tensors));
    let (done, weak) = (AtomicBool::new(false), t.downgrade());
    allow_copies();
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                // Each call holds a lock of the tensor for a moment, so some thread holds the lock nearly
                // always.
                while !done.load(Ordering::Relaxed) {
                    assert!(weak.upgrade().is_some());
                }
            });
        }
        let copy = || Process::builder().start_method(StartMethod::Fork).spawn(has_a_copy, ()).ok();
        let ends_well = |copy: Process<bool>| {
            copy.wait_timeout(Duration::from_secs(10)) && copy.join().is_ok_and(|well| well)
        };
        let copies = (0..20).all(|_| copy().is_some_and(ends_well));
        done.store(true, Ordering::Relaxed);
        assert!(copies, "a forked copy waits for a missing thread");
    });
    Ok(())
}

fn makes_shared((): ()) -> Outcome<SharedCudaTensor<f32>> {
    Ok(CudaTensor::<f32>::full([LEN], 3.0, &stream())?.share())
}

/// In a process that has not called the driver, a thread may hold the lock of a tensor while another thread
/// forks.
#[test]
fn forked_copy_takes_no_tensor_lock() {
    let session = session();
    let tensors = Queue::unbounded().unwrap();
    tensors.put(run(&session, makes_shared, ())).unwrap();
    join(without_gpu().spawn(copies_itself, tensors).unwrap());
    nothing_is_left(&session);
}

fn makes_while_it_is_read((tensors, dropped): (Queue<FrozenCudaTensor<f32>>, Queue<()>)) -> Outcome {
    let (stream, device) = (stream(), Device::new(0)?);
    tensors.put(CudaTensor::<f32>::full([LEN], 1.0, &stream)?.freeze()).unwrap();
    taken(&dropped);
    eventually("the piece has no holder", || memory_stats(&device).pieces == 0);
    assert_eq!(memory_stats(&device).retired, 0, "the slab was returned with its last tensor");
    let next = CudaTensor::<f32>::full([LEN], 2.0, &stream)?;
    let stats = memory_stats(&device);
    assert_eq!((stats.slabs, stats.reserved), (1, SLAB), "the piece is cut from a new slab");
    assert_eq!(next.to_vec(&stream)?, [2.0; LEN]);
    Ok(())
}

/// No tick follows the reader's work, so no stream can wait for that work, and the memory is not reused.
#[test]
fn memory_of_unrecorded_reader_is_not_reused() {
    let session = setup().set("LAZY_MS", 0).start().unwrap();
    let (tensors, dropped) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(makes_while_it_is_read, (tensors.clone(), dropped.clone())).unwrap();
    // The registration of the table makes the first write.
    let reader = with_gpu(&session)
        .env("MP_CUDA_SIM_INJECT", "fail=cuStreamWriteValue64_v2:2:4321")
        .spawn(reads_slowly, (tensors, dropped))
        .unwrap();
    join(maker);
    let read = reader.wait_timeout(DEADLINE);
    nothing_found(&session);
    assert!(read);
    join(reader);
    nothing_is_left(&session);
}

type Signals = Queue<()>;

fn reads_slowly((tensors, dropped): (Queue<FrozenCudaTensor<f32>>, Signals)) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    let mut sink = CudaTensor::<f32>::empty([LEN], &stream)?;
    let (on, to) = (t.on(&stream)?, sink.on_mut(&stream)?);
    kernels().spin(&stream, Duration::from_secs(2));
    kernels().multiply(&stream, to.ptr(), on.ptr(), on.len(), 1.0);
    drop((on, to));
    drop(t);
    dropped.put(()).unwrap();
    assert_eq!(sink.to_vec(&stream)?, [1.0; LEN], "the work was submitted before the drop");
    Ok(())
}

fn reads_and_stays((tensors, dropped): (Queue<FrozenCudaTensor<f32>>, Signals)) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    let on = t.on(&stream)?;
    kernels().spin(&stream, SLOW);
    drop(on);
    drop(t);
    dropped.put(()).unwrap();
    stays();
    Ok(())
}

fn makes_two_of_one_memory((tensors, reported): (Queue<FrozenCudaTensor<f32>>, [Signals; 2])) -> Outcome {
    let ([dropped, begun], stream) = (reported, stream());
    let t = CudaTensor::<f32>::full([LEN], 1.0, &stream)?.freeze();
    // The retained tensor is in the same slab, so the slab stays.
    let kept = CudaTensor::<f32>::full([LEN], 1.0, &stream)?;
    tensors.put(t.clone()).unwrap();
    tensors.put(t).unwrap();
    taken(&dropped);
    let mut next = CudaTensor::<f32>::empty([LEN], &stream)?;
    let on = next.on_mut(&stream)?;
    kernels().fill(&stream, on.ptr(), on.len(), 2.0);
    drop(on);
    begun.put(()).unwrap();
    assert_eq!(next.to_vec(&stream)?, [2.0; LEN]);
    drop(kept);
    Ok(())
}

/// A stream of the second reader waits for the work of both readers. When the second reader is killed, the
/// waiters continue, although the first reader's work may not have run.
#[test]
fn memory_of_two_readers_survives_one_death() {
    let session = session();
    let tensors = Queue::unbounded().unwrap();
    let [one_done, other_done, dropped, begun] = [(); 4].map(|()| Signals::unbounded().unwrap());
    let maker = with_gpu(&session)
        .spawn(makes_two_of_one_memory, (tensors.clone(), [dropped.clone(), begun.clone()]))
        .unwrap();
    let one = with_gpu(&session).spawn(reads_slowly, (tensors.clone(), one_done.clone())).unwrap();
    taken(&one_done);
    let other = with_gpu(&session).spawn(reads_and_stays, (tensors, other_done.clone())).unwrap();
    taken(&other_done);
    dropped.put(()).unwrap();
    taken(&begun);
    other.kill().unwrap();
    assert!(other.wait_timeout(DEADLINE));
    join(maker);
    let read = one.wait_timeout(DEADLINE);
    nothing_found(&session);
    assert!(read);
    join(one);
    nothing_is_left(&session);
}

/// Queues of a reader: tensors, signals of the reader that it has dropped a tensor, and signals for which the
/// reader waits.
type Reader = (Queue<FrozenCudaTensor<f32>>, Signals, Signals);

/// Submits a read of the tensor that waits for a signal, and drops the tensor before the read runs.
fn reads_after_a_signal((tensors, dropped, go): Reader) -> Outcome {
    let (stream, t) = (stream(), taken(&tensors));
    let mut sink = CudaTensor::<f32>::empty([LEN], &stream)?;
    let (on, to) = (t.on(&stream)?, sink.on_mut(&stream)?);
    let gate = kernels().gate(&stream);
    kernels().multiply(&stream, to.ptr(), on.ptr(), on.len(), 1.0);
    drop((on, to));
    drop(t);
    dropped.put(()).unwrap();
    taken(&go);
    drop(gate);
    assert!(sink.to_vec(&stream)? == [1.0; LEN], "the memory was reused before the read");
    Ok(())
}

fn reads_and_drops(t: FrozenCudaTensor<f32>) -> Outcome {
    let stream = stream();
    let on = t.on(&stream)?;
    kernels().spin(&stream, Duration::from_millis(1));
    drop(on);
    drop(t);
    Ok(())
}

fn reads_until_a_signal((tensors, dropped, go): Reader) -> Outcome {
    reads_and_drops(taken(&tensors))?;
    dropped.put(()).unwrap();
    taken(&go);
    Ok(())
}

type MakerOfThree = (Queue<FrozenCudaTensor<f32>>, [Signals; 4], LastUser);

fn makes_for_three((tensors, [go, dropped, killed, made], last): MakerOfThree) -> Outcome {
    let (stream, device) = (stream(), Device::new(0)?);
    let t = CudaTensor::<f32>::full([LEN], 1.0, &stream)?.freeze();
    // The retained tensor is in the same slab, so the slab stays.
    let kept = CudaTensor::<f32>::full([LEN], 1.0, &stream)?;
    tensors.put(t.clone()).unwrap();
    tensors.put(t.clone()).unwrap();
    if last == LastUser::Maker {
        taken(&go);
        reads_and_drops(t)?;
    } else {
        tensors.put(t).unwrap();
        taken(&go);
    }
    let pieces = memory_stats(&device).pieces;
    dropped.put(()).unwrap();
    taken(&killed);
    eventually("the last use counts as run, or as lost", || {
        Arena::current().unwrap().reclaim().unwrap();
        memory_stats(&device).pieces == 1
    });
    let mut next = CudaTensor::<f32>::empty([LEN], &stream)?;
    let on = next.on_mut(&stream)?;
    kernels().fill(&stream, on.ptr(), on.len(), 2.0);
    drop(on);
    assert_eq!(next.to_vec(&stream)?, [2.0; LEN]);
    made.put(()).unwrap();
    assert_eq!(pieces, 2, "the last use was pending");
    assert_eq!(memory_stats(&device).retired, SLAB, "the first reader's work was pending");
    drop(kept);
    Ok(())
}

/// Process that drops the tensor last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
enum LastUser {
    Third,
    Maker,
}

/// A stream of the last user waits for a stream of the second user, which waits for the first reader's work.
/// When the second user is killed, the last use completes before the first reader's work has run.
fn second_of_three_dies(last: LastUser) {
    let session = session();
    let tensors = Queue::unbounded().unwrap();
    let [one_done, one_go, other_done, third_done, third_go] =
        [(); 5].map(|()| Signals::unbounded().unwrap());
    let signals = [(); 4].map(|()| Signals::unbounded().unwrap());
    let [go, dropped, killed, made] = signals.clone();
    let maker = with_gpu(&session).spawn(makes_for_three, (tensors.clone(), signals, last)).unwrap();
    let one = (tensors.clone(), one_done.clone(), one_go.clone());
    let one = with_gpu(&session).spawn(reads_after_a_signal, one).unwrap();
    taken(&one_done);
    let other = with_gpu(&session).spawn(reads_and_stays, (tensors.clone(), other_done.clone())).unwrap();
    taken(&other_done);
    let third = (last == LastUser::Third).then(|| {
        let args = (tensors, third_done.clone(), third_go.clone());
        let third = with_gpu(&session).spawn(reads_until_a_signal, args).unwrap();
        taken(&third_done);
        third
    });
    go.put(()).unwrap();
    taken(&dropped);
    other.kill().unwrap();
    assert!(other.wait_timeout(DEADLINE));
    killed.put(()).unwrap();
    taken(&made);
    one_go.put(()).unwrap();
    third_go.put(()).unwrap();
    let read = one.wait_timeout(DEADLINE);
    nothing_found(&session);
    assert!(read);
    join(one);
    third.into_iter().for_each(join);
    join(maker);
    nothing_is_left(&session);
}

#[test]
fn memory_joined_by_a_third_process_survives_a_death() {
    second_of_three_dies(LastUser::Third);
}

#[test]
fn memory_joined_by_its_maker_survives_a_death() {
    second_of_three_dies(LastUser::Maker);
}
