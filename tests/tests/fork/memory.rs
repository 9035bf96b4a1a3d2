//! The start method `fork`, and shared memory: a child is a separate member, its arguments work, and
//! inherited handles return errors.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mp::{
    Arena, Error, FrozenTensor, Lock, Pool, Process, PutError, Queue, SharedTensor, SpawnOptions,
    StartMethod, Tensor, start_processes,
};
use mp_tests::scratch::Scratch;
use mp_tests::{DEADLINE, Outcome, eventually, in_use, join, next, one_process, send, settled, take};
use rustix::fs::FlockOperation;

fn forked(nprocs: usize) -> SpawnOptions {
    SpawnOptions::nprocs(nprocs).start_method(StartMethod::Fork)
}

fn allow() {
    // SAFETY: what these tests do in copies needs nothing of other threads, and nothing that is there once.
    unsafe { mp::process::allow_fork() };
}

/// Waits until another process kills this process. Returns an error if none does.
pub(crate) fn wait_for_the_end() -> Outcome {
    std::thread::sleep(2 * DEADLINE); // sleep: its work is to exist until another process ends it
    Err("no other process ended this one".into())
}

/// Static variables of the process, which its children inherit.
struct Kept {
    frozen: FrozenTensor<u8>,
    shared: SharedTensor<i64>,
    queue: Queue<Vec<u8>>,
    tensors: Queue<FrozenTensor<u8>>,
    lock: Lock<u32>,
    arena: Arena,
}

static KEPT: OnceLock<Kept> = OnceLock::new();

fn keep() -> Result<&'static Kept, Box<dyn std::error::Error + Send + Sync>> {
    let kept = Kept {
        frozen: Tensor::<u8>::full([1000], 5)?.freeze(),
        shared: Tensor::<i64>::zeros([8])?.share(),
        queue: Queue::bounded(4)?,
        tensors: Queue::bounded(4)?,
        lock: Lock::new(7)?,
        arena: Arena::current()?,
    };
    Ok(KEPT.get_or_init(|| kept))
}

#[test]
fn forked_copy_uses_arguments_not_inherited_handles() {
    let _alone = settled();
    type Args = (FrozenTensor<u8>, SharedTensor<i64>, Queue<Vec<u8>>, Queue<FrozenTensor<u8>>);
    fn copy(rank: usize, (frozen, shared, queue, tensors): Args) -> Outcome {
        let kept = KEPT.get().ok_or("it was copied along")?;
        // Arguments work.
        assert!(frozen.iter().all(|x| x == 5));
        shared.fetch_add(rank, 10 + rank as i64);
        send(&queue, vec![rank as u8; 2000])?;
        send(&tensors, frozen.clone())?;
        send(&tensors, Tensor::<u8>::full([100_000], rank as u8)?.freeze())?;
        // Inherited handles don't.
        let forked = |r: mp_core::Result<()>| matches!(r, Err(Error::Forked));
        assert!(forked(kept.frozen.as_slice().map(drop)) && forked(kept.shared.get(&[0]).map(drop)));
        assert!(
            forked(kept.arena.me().map(drop))
                && kept.lock.lock().is_err()
                && kept.queue.put(vec![1]).is_err()
        );
        assert!(kept.arena != Arena::current()?);
        // An inherited handle can't be sent either, because this process does not hold the tensor.
        let refused = tensors.try_put(kept.frozen.clone());
        let says = |error: &dyn std::fmt::Display| error.to_string().contains("was copied along");
        let expected = |e: &PutError<_>| matches!(e, PutError::Failed { error, .. } if says(error));
        assert!(refused.as_ref().is_err_and(expected), "{refused:?}");
        assert!(
            mp::message::pack(kept.frozen.clone()).is_err() && mp::message::pack(kept.queue.clone()).is_err()
        );
        // It can't be sent to a child process either.
        let child = Process::spawn(|t: FrozenTensor<u8>| drop(t), kept.frozen.clone());
        assert!(child.is_err());
        // Dropping an inherited handle releases nothing.
        drop((kept.frozen.clone(), kept.shared.clone(), kept.queue.clone()));
        Ok(())
    }
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        let kept = keep()?;
        let before = in_use();
        for round in 1..=3 {
            let args = (kept.frozen.clone(), kept.shared.clone(), kept.queue.clone(), kept.tensors.clone());
            let context = start_processes(copy, args, forked(2))?;
            let mut sums = [0; 2];
            for _ in 0..2 {
                let bytes = next(&kept.queue)?.ok_or("closed")?;
                sums[usize::from(bytes[0])] += bytes.len();
            }
            let mut got = Vec::new();
            for _ in 0..4 {
                let tensor = next(&kept.tensors)?.ok_or("closed")?;
                got.push((tensor.len(), tensor.get(&[0])?));
            }
            got.sort_unstable();
            assert_eq!(
                (sums, &got[..]),
                ([2000; 2], &[(1000, 5), (1000, 5), (100_000, 0), (100_000, 1)][..])
            );
            join(&context)?;
            assert_eq!((kept.shared.get(&[0])?, kept.shared.get(&[1])?), (10 * round, 11 * round));
        }
        // The handles of this process are unchanged.
        assert!(kept.frozen.iter().all(|x| x == 5));
        assert_eq!((*kept.lock.lock()?, in_use()), (7, before));
        Ok(())
    }
    join(&one_process(original, ())).unwrap();
}

#[test]
fn exclusive_tensors_move_to_a_forked_copy_and_back() {
    let _alone = settled();
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        let before = in_use();
        let tensor = Tensor::<u32>::full([50_000], 3)?;
        let double = |mut tensor: Tensor<u32>| -> Result<Tensor<u32>, Error> {
            tensor.as_mut_slice()?.iter_mut().for_each(|x| *x *= 2);
            Ok(tensor)
        };
        let child = Process::builder().start_method(StartMethod::Fork).spawn(double, tensor)?;
        let tensor = child.join()?;
        assert!(tensor.iter().all(|x| x == 6));
        drop(tensor);
        assert_eq!(in_use(), before);
        Ok(())
    }
    join(&one_process(original, ())).unwrap();
}

#[test]
fn copies_forked_under_busy_threads_leak_nothing() {
    let _alone = settled();
    static STOP: AtomicBool = AtomicBool::new(false);
    fn copy(rank: usize, (queue, lock): (Queue<Vec<u8>>, Lock<u64>)) -> Outcome {
        let tensor = Tensor::<u8>::full([5000], rank as u8)?;
        send(&queue, tensor.to_vec())?;
        *lock.lock().or_else(|_| lock.recover())? += 1;
        Ok(())
    }
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        let (queue, lock) = (Queue::<Vec<u8>>::bounded(4)?, Lock::new(0_u64)?);
        let before = in_use();
        let used: Vec<_> = (0..3)
            .map(|i| {
                let (queue, lock) = (queue.clone(), lock.clone());
                std::thread::spawn(move || {
                    while !STOP.load(Ordering::Relaxed) {
                        drop(Tensor::<u8>::zeros([1 << (4 * i + 4)]).unwrap());
                        if i == 0 {
                            _ = queue.try_get();
                        } else {
                            _ = queue.try_put(vec![9; 3000]);
                        }
                        // A child may have been killed while it held the lock.
                        drop(lock.lock().or_else(|_| lock.recover()).unwrap());
                    }
                })
            })
            .collect();
        let mut made = 0;
        for round in 0..40 {
            let context = start_processes(copy, (queue.clone(), lock.clone()), forked(2))?;
            if round % 4 == 3 {
                // The children may be at any point when they are killed.
                context.kill(round % 2)?;
                eventually("the process has ended", || {
                    !matches!(context.join_timeout(Duration::ZERO), Ok(false))
                });
            } else {
                join(&context)?;
                made += 2;
            }
        }
        STOP.store(true, Ordering::Relaxed);
        used.into_iter().for_each(|thread| thread.join().unwrap());
        while queue.try_get().is_ok() {}
        let counted = *lock.lock().or_else(|_| lock.recover())?;
        assert!((made..=made + 20).contains(&counted), "{counted} of {made}");
        Arena::current()?.reclaim()?;
        assert_eq!(in_use(), before);
        Ok(())
    }
    join(&one_process(original, ())).unwrap();
}

#[test]
fn forked_copy_and_killed_original_release_all_memory() {
    let _alone = settled();
    fn copy(_: usize, (kept, here): (FrozenTensor<u8>, Queue<u32>)) -> Outcome {
        send(&here, std::process::id())?;
        let end = wait_for_the_end();
        drop(kept);
        end
    }
    fn original(_: usize, here: Queue<u32>) -> Outcome {
        allow();
        let kept = keep()?;
        let _copies = start_processes(copy, (kept.frozen.clone(), here.clone()), forked(2))?;
        send(&here, std::process::id())?;
        wait_for_the_end()
    }
    let here = Queue::bounded(8).unwrap();
    let before = in_use();
    let members = Arena::current().unwrap().members().len();
    let context = one_process(original, here.clone());
    let all = [take(&here), take(&here), take(&here)];
    assert_eq!(Arena::current().unwrap().members().iter().filter(|m| all.contains(&m.pid)).count(), 3);
    context.kill(0).unwrap();
    assert!(join(&context).is_err());
    // The children end with their parent. No parent is left that reaps them, so only their locks show that
    // they are dead.
    let arena = Arena::current().unwrap();
    eventually("all processes are reclaimed", || {
        arena.reclaim().unwrap();
        in_use() == before && arena.members().len() == members
    });
}

#[test]
fn dead_original_is_detected_while_its_copies_live() {
    let _alone = settled();
    // The children must not keep the locks that show that their parent is alive. In this test, the locks are
    // the only sign of the parent's death.
    fn middle(_: usize, here: Queue<u32>) -> Outcome {
        allow();
        fn copy(_: usize, here: Queue<u32>) -> Outcome {
            // This process outlives its parent.
            live_on();
            send(&here, std::process::id())?;
            wait_for_the_end()
        }
        let kept = keep()?;
        let _copies = start_processes(copy, here.clone(), forked(1))?;
        drop(kept.frozen.clone());
        wait_for_the_end()
    }
    fn live_on() {
        mp::process::detach().unwrap();
    }
    // No process waits for the forking process as its child, because its own parent ends first.
    fn outer(_: usize, here: Queue<u32>) -> Outcome {
        let inner = |here: Queue<u32>| {
            live_on();
            send(&here, std::process::id()).and_then(|()| middle(0, here)).map_err(|e| e.to_string())
        };
        let _inner = Process::builder().spawn(inner, here)?;
        wait_for_the_end()
    }
    let here = Queue::bounded(8).unwrap();
    let before = in_use();
    let context = one_process(outer, here.clone());
    let (original, copy) = (take(&here), take(&here));
    context.kill(0).unwrap();
    assert!(join(&context).is_err());
    let arena = Arena::current().unwrap();
    let is_member = |pid: u32| arena.members().iter().any(|m| m.pid == pid && m.live);
    assert!(is_member(original) && is_member(copy));
    let kill = |pid: u32| {
        // SAFETY: no memory is involved.
        assert_eq!(unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) }, 0);
    };
    kill(original);
    eventually("the original is found dead", || {
        arena.reclaim().unwrap();
        !is_member(original)
    });
    assert!(is_member(copy), "the copy is still a member");
    kill(copy);
    eventually("all processes are reclaimed", || {
        arena.reclaim().unwrap();
        in_use() == before && !is_member(copy)
    });
}

#[test]
fn copies_forked_during_exit_end_with_the_original() {
    let _alone = settled();
    // A child inherits the flag that a thread is exiting the process. Without a correction, it would wait
    // forever for that thread.
    fn original(_: usize, path: PathBuf) -> Outcome {
        allow();
        let file = std::fs::File::open(path)?;
        // All children inherit this lock, until they end.
        rustix::fs::flock(&file, FlockOperation::LockShared)?;
        // The file is never closed, whatever destructors run at exit.
        std::mem::forget(file);
        // At exit, this process ends the workers of its pool. The pool replaces them by the children under
        // test.
        static POOL: OnceLock<Pool> = OnceLock::new();
        let pool = Pool::builder().processes(6).start_method(StartMethod::Fork).build()?;
        assert_eq!(POOL.get_or_init(|| pool).apply(|x: u8| x, 1)?, 1);
        Ok(())
    }
    let scratch = Scratch::new("exits");
    let path = scratch.0.join("held");
    let file = std::fs::File::create(&path).unwrap();
    for _ in 0..20 {
        join(&one_process(original, path.clone())).unwrap();
        eventually("all copies have ended", || {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
    }
}

#[test]
fn forked_copies_use_tensors_in_files() {
    let _alone = settled();
    fn original(_: usize, (): ()) -> Outcome {
        allow();
        mp::memory::set_sharing_strategy(mp::memory::SharingStrategy::FileSystem)?;
        let kept = Tensor::<u8>::full([100_000], 5)?.freeze();
        let before = in_use();
        let copy = |rank: usize, kept: FrozenTensor<u8>| -> Outcome {
            assert_eq!(mp::memory::get_sharing_strategy(), mp::memory::SharingStrategy::FileSystem);
            let own = Tensor::<u8>::full([200_000], rank as u8)?;
            assert!(kept.iter().all(|x| x == 5) && own.iter().all(|x| x == rank as u8));
            Ok(())
        };
        for _ in 0..3 {
            join(&start_processes(copy, kept.clone(), forked(2))?)?;
        }
        assert!(kept.iter().all(|x| x == 5));
        assert_eq!(in_use(), before);
        Ok(())
    }
    join(&one_process(original, ())).unwrap();
}

/// `keep_memory_readable`, which the library for Python calls, affects only raw forks. A worker of the start
/// method `fork` can't read inherited memory.
#[test]
fn forked_worker_does_not_inherit_readable_memory() {
    let _alone = settled();
    fn copy(_: usize, addresses: [usize; 2]) -> Outcome {
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let permissions = |address: usize| {
            maps.lines().find_map(|line| {
                let (range, rest) = line.split_once(' ')?;
                let (first, end) = range.split_once('-')?;
                let number = |text| usize::from_str_radix(text, 16).ok();
                (number(first)?..number(end)?).contains(&address).then(|| rest[..4].to_string())
            })
        };
        assert_eq!(addresses.map(permissions), [Some("---p".into()), Some("---p".into())]);
        Ok(())
    }
    fn worker(_: usize, (): ()) -> Outcome {
        allow();
        mp_core::fork::keep_memory_readable();
        let frozen = Tensor::<u8>::full([100_000], 6)?.freeze();
        let mut private = frozen.storage().copy_on_write(0, 100_000)?;
        let addresses = [frozen.storage().as_ptr() as usize, private.as_mut_ptr() as usize];
        start_processes(copy, addresses, forked(1))?.join()?;
        Ok(())
    }
    join(&one_process(worker, ())).unwrap();
}
