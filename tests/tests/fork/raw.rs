//! A raw `fork` bypasses the library: the child is not a member. Each use of shared memory in the child is an
//! error, and the child releases nothing that its parent holds.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::task::Poll;

use mp::list::ListError;
use mp::queue::JoinableQueueError;
use mp::sync::{AcquireError, BarrierError, RawArray};
use mp::wait::Descriptor;
use mp::{
    Arena, Array, Barrier, Condition, Error, Event, FrozenTensor, GetError, JoinableQueue, Listener, Lock,
    LockError, Once, Process, PutError, Queue, QueueOptions, RLock, RwLock, Semaphore, ShareableList, Tensor,
    channel, pipe,
};
use mp_tests::block_on::poll_once;
use mp_tests::{DEADLINE, Outcome, alone, eventually, in_use, join, next, one_process, send, take};

use crate::memory::wait_for_the_end;

/// Runs `f` in a forked child of this process. Returns the exit status of the child, which is the result of
/// `f`.
fn in_a_fork(f: impl Fn() -> i32) -> i32 {
    // SAFETY: the copy has only this thread. Functions that it calls take no lock that another thread could
    // have held, except the allocator's lock, which the C library repairs in the copy.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(101);
        // SAFETY: ends the copy at once, without running the exit handlers of the parent.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    eventually("the copy ends", || {
        // SAFETY: the status is valid for writes, and the process is a child of this process.
        unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) == pid }
    });
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

/// Returns the number of the first check that fails, counted from 1, or 0 if all succeed.
fn first_failure(checks: &[(&str, bool)]) -> i32 {
    let failed = checks.iter().position(|(_, ok)| !ok);
    if let Some(i) = failed {
        eprintln!("in the copy: {} is wrong", checks[i].0);
    }
    failed.map_or(0, |i| i as i32 + 1)
}

fn forked<T>(result: &mp_core::Result<T>) -> bool {
    matches!(result, Err(Error::Forked))
}

/// Returns the output of a future that is not pending.
fn at_once<R>(polled: Poll<R>) -> Option<R> {
    match polled {
        Poll::Ready(found) => Some(found),
        Poll::Pending => None,
    }
}

fn put_is_refused<T: mp::Message>(result: Result<(), PutError<T>>) -> bool {
    matches!(&result, Err(PutError::Failed { error: mp_reduce::Error::Memory(Error::Forked), .. }))
}

fn get_is_refused<T>(result: Result<T, GetError>) -> bool {
    matches!(&result, Err(GetError::Failed(mp_reduce::Error::Memory(Error::Forked))))
}

#[test]
fn raw_forked_copy_releases_no_memory() {
    let _alone = alone();
    // Runs in a worker whose other threads are all asleep.
    fn worker(_: usize, (kept, results): (FrozenTensor<u8>, Queue<Vec<u8>>)) -> Outcome {
        let arena = Arena::current()?;
        let queue = Queue::<Vec<u8>>::bounded(4)?;
        send(&queue, vec![1; 1000])?;
        let own = Tensor::<u32>::full([1000], 7)?;
        let frozen = Tensor::<u8>::full([4], 1)?.freeze();
        let shared = Tensor::<u8>::full([4], 1)?.share();
        let indices = Tensor::<i64>::zeros([1, 4])?.freeze();
        let sparse = mp::tensor::SparseCoo::new(indices.clone(), frozen.clone(), [1])?;
        // The future is pending, and needs a descriptor: the child has no thread that would wake it.
        let waits = Queue::<u8>::bounded(1)?;
        let (here, _there) = mp::pipe()?;
        let mut future = Box::pin(waits.get_async());
        assert!(poll_once(&mut future).is_pending() && here.as_fd().is_ok());
        let future = Cell::new(Some(future));
        let before = in_use();
        // These are the last handles of this process. The child takes them out of its own copy of the cell.
        let handles = Cell::new(Some((own, kept, queue.clone())));
        let code = in_a_fork(|| {
            let refused = queue.put(vec![2; 10]);
            let given_back = matches!(&refused, Err(PutError::Failed { value: v, .. }) if v == &[2; 10]);
            let checks = [
                ("current", forked(&Arena::current())),
                ("me", forked(&arena.me())),
                ("Arena::get", Arena::get().is_none()),
                ("zeros", forked(&Tensor::<u8>::zeros([10]))),
                ("as_slice", forked(&frozen.as_slice())),
                ("get", forked(&frozen.get(&[0]))),
                ("contiguous", forked(&frozen.contiguous())),
                ("into_bytes", forked(&frozen.clone().into_bytes())),
                ("as_ndarray", forked(&frozen.as_ndarray())),
                ("read_into", forked(&shared.read_into(&mut [0; 4]))),
                ("write_from", forked(&shared.write_from(&[0; 4]))),
                ("fill", forked(&shared.fill(0))),
                ("as_atomics", forked(&shared.as_atomics())),
                ("get of a shared one", forked(&shared.get(&[0]))),
                ("set of a shared one", forked(&shared.set(&[0], 1))),
                ("copy_from", forked(&shared.copy_from(&frozen))),
                (
                    "a sparse tensor",
                    forked(&mp::tensor::SparseCoo::new(indices.clone(), frozen.clone(), [1])),
                ),
                ("to_dense", forked(&sparse.to_dense())),
                ("reclaim", forked(&arena.reclaim())),
                ("empty_cache", forked(&arena.empty_cache())),
                ("wait", forked(&mp::wait(&[&queue, &queue.put_ready()], None))),
                ("select", forked(&mp::select(&[&Descriptor(std::io::stdin()), &queue], None))),
                (
                    "ready",
                    at_once(poll_once(&mut Box::pin(mp::wait::wait_async(queue.clone()))))
                        .is_some_and(|r| forked(&r)),
                ),
                ("get_async", {
                    // The future is polled once more, and then dropped.
                    let polled = future.take().map(|mut future| poll_once(&mut future));
                    polled.and_then(at_once).is_some_and(get_is_refused)
                }),
                ("put_async", {
                    let polled = poll_once(&mut Box::pin(queue.put_async(vec![3])));
                    at_once(polled).is_some_and(put_is_refused)
                }),
                ("a connection", get_is_refused(here.try_recv::<u8>()) && !mp::Waitable::is_ready(&here)),
                ("put", put_is_refused(refused)),
                ("the value given back", given_back),
                ("try_put", put_is_refused(queue.try_put(vec![]))),
                ("get", get_is_refused(queue.get())),
                ("try_get", get_is_refused(queue.try_get())),
                ("close", !queue.close()),
                ("bounded", Queue::<u8>::bounded(1).is_err()),
                ("pack", mp::message::pack(1_u8).is_err()),
                ("spawn", mp::spawn(|_: usize, (): ()| {}, (), 1).is_err()),
            ];
            drop(handles.take());
            first_failure(&checks)
        });
        assert_eq!((code, in_use()), (0, before));
        let (own, kept, _) = handles.take().ok_or("the parent has its handles")?;
        assert_eq!((own.to_vec(), kept.to_vec()), (vec![7; 1000], vec![5; 100]));
        // If memory was released by mistake, these allocations use it again.
        let others: Vec<_> = (0..100).map(|_| Tensor::<u32>::full([1000], 9)).collect();
        assert_eq!((own.to_vec(), others.len()), (vec![7; 1000], 100));
        send(&results, next(&queue)?.ok_or("closed by the copy")?)
    }
    let kept = Tensor::<u8>::full([100], 5).unwrap().freeze();
    let results = Queue::bounded(1).unwrap();
    let context = one_process(worker, (kept.clone(), results.clone()));
    assert_eq!(take(&results), [1; 1000]);
    join(&context).unwrap();
    assert_eq!(kept.to_vec(), [5; 100]);
}

#[test]
fn raw_copy_reads_shared_memory_without_crash() {
    let _alone = alone();
    fn worker(_: usize, kept: FrozenTensor<u8>) -> Outcome {
        let queue = Queue::<u8>::bounded(4)?;
        // These functions are safe, whatever they return in the child.
        let array = kept.clone().into_bytes()?;
        let mut own = Tensor::<f32>::zeros([10])?;
        own.set_requires_grad(true)?;
        let looks: [(&str, &dyn Fn()); 7] = [
            ("the length of a queue", &|| assert!(queue.len() < 9)),
            ("a queue's Debug", &|| drop(format!("{queue:?}"))),
            ("an element that get can refuse", &|| drop(kept.get(&[0]))),
            ("a tensor's Debug and Display", &|| assert!(format!("{kept:?}{own}").contains("forked"))),
            ("views", &|| drop(kept.narrow(0, 5, 5).and_then(|part| part.reshape([5, 1])))),
            ("bytes", &|| assert!(array.is_empty())),
            ("statistics", &|| {
                let _ = Arena::get().map(|arena| arena.memory_stats());
            }),
        ];
        let codes = looks.map(|(what, look)| {
            let code = in_a_fork(|| {
                look();
                0
            });
            (what, code)
        });
        let crashed: Vec<_> = codes.into_iter().filter(|(_, code)| *code < 0).collect();
        assert!(crashed.is_empty(), "killed by a signal: {crashed:?}");
        Ok(())
    }
    let kept = Tensor::<u8>::full([100], 5).unwrap().freeze();
    join(&one_process(worker, kept)).unwrap();
}

/// Code in other languages accesses views by plain addresses, which stay readable in a forked copy. Writes of
/// the copy are private.
#[test]
fn raw_copy_writes_stay_private() {
    let _alone = alone();
    fn worker(_: usize, (): ()) -> Outcome {
        mp_core::fork::keep_memory_readable();
        let own = Tensor::<u8>::full([100_000], 7)?;
        let frozen = Tensor::<u8>::full([100_000], 6)?.freeze();
        let mut private = frozen.storage().copy_on_write(0, 100_000)?;
        let addresses = [own.storage().as_ptr().cast_mut(), private.as_mut_ptr()];
        // SAFETY: only this thread accesses both.
        unsafe { addresses[1].wrapping_add(1).write(5) };
        let code = in_a_fork(|| {
            // SAFETY: as above. In the copy, the addresses are those of its private mapping.
            let read = |i: usize, at: usize| unsafe { addresses[i].wrapping_add(at).read_volatile() };
            let found = [read(0, 0), read(0, 99_999), read(1, 0), read(1, 1)];
            for address in addresses {
                // SAFETY: as above.
                unsafe { address.write_volatile(1) };
            }
            let checks = [
                ("what is read", found == [7, 7, 6, 5]),
                ("what was written", [read(0, 0), read(1, 0)] == [1, 1]),
                ("a tensor", forked(&frozen.as_slice()) && forked(&Tensor::<u8>::zeros([1]))),
            ];
            first_failure(&checks)
        });
        assert_eq!(code, 0);
        // SAFETY: as above.
        assert_eq!((own.to_vec(), unsafe { addresses[1].read() }), (vec![7; 100_000], 6));
        Ok(())
    }
    join(&one_process(worker, ())).unwrap();
}

/// A daemon closes the descriptors that it has inherited, but keeps the mappings. These mappings must not
/// keep the locks that show that its parent is alive.
#[test]
fn raw_copy_without_files_hides_no_dead_parent() {
    let _alone = alone();
    fn original(here: Queue<u32>) -> Outcome {
        mp::process::detach()?;
        mp_core::fork::keep_memory_readable();
        let frozen = Tensor::<u8>::full([100_000], 6)?.freeze();
        let _private = frozen.storage().copy_on_write(0, 100_000)?;
        // SAFETY: the copy makes only system calls.
        let copy = unsafe { libc::fork() };
        if copy == 0 {
            for fd in 0..1024 {
                // SAFETY: nothing in the copy uses a descriptor.
                unsafe { libc::close(fd) };
            }
            // SAFETY: ends the copy if the test doesn't.
            unsafe { libc::alarm(2 * DEADLINE.as_secs() as u32) };
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        send(&here, copy.cast_unsigned())?;
        send(&here, std::process::id())?;
        wait_for_the_end()
    }
    // No process of this program reaps the parent of the copy, because that parent's own parent ends first.
    fn outer(_: usize, here: Queue<u32>) -> Outcome {
        let inner = |here: Queue<u32>| original(here).map_err(|e| e.to_string());
        let _inner = Process::builder().spawn(inner, here)?;
        wait_for_the_end()
    }
    let kill = |pid: u32| {
        // SAFETY: no memory is involved.
        assert_eq!(unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) }, 0);
    };
    let here = Queue::bounded(2).unwrap();
    let context = one_process(outer, here.clone());
    let (copy, original) = (take(&here), take(&here));
    context.kill(0).unwrap();
    assert!(join(&context).is_err());
    let arena = Arena::current().unwrap();
    let is_live = || arena.members().iter().any(|member| member.pid == original && member.live);
    assert!(is_live());
    kill(original);
    eventually("the original is found dead", || {
        arena.reclaim().unwrap();
        !is_live()
    });
    kill(copy);
}

#[test]
fn locks_are_refused_in_a_raw_copy_and_stay_held() {
    let _alone = alone();
    fn worker(_: usize, (): ()) -> Outcome {
        let value = Lock::new(5_u64)?;
        let array = Array::<u8>::zeros(4)?;
        let raw = RawArray::<u8>::zeros(4)?;
        let list = ShareableList::new([1.into()])?;
        let held = Cell::new(Some(value.lock()?));
        let code = in_a_fork(|| {
            let refused = |e: LockError| matches!(e, LockError::Failed(Error::Forked));
            let checks = [
                ("lock", array.lock().is_err_and(refused)),
                ("recover", array.recover().is_err_and(refused)),
                ("try_lock of what the parent holds", value.try_lock().is_err_and(refused)),
                ("RawArray::get", forked(&raw.get(0))),
                ("RawArray::set", forked(&raw.set(0, 1))),
                ("a list", matches!(list.get(0), Err(ListError::Lock(LockError::Failed(Error::Forked))))),
                ("Lock::new", forked(&Lock::new(1_u8))),
            ];
            // The child's copy of the guard must not unlock.
            drop(held.take());
            first_failure(&checks)
        });
        assert_eq!(code, 0);
        assert!(matches!(value.try_lock(), Err(LockError::WouldDeadlock)), "still held");
        assert_eq!(held.take().map(|guard| *guard), Some(5));
        drop(value.try_lock()?);
        Ok(())
    }
    join(&one_process(worker, ())).unwrap();
}

#[test]
fn raw_copy_uses_and_releases_no_lock() {
    let _alone = alone();
    fn worker(_: usize, (): ()) -> Outcome {
        let (lock, rlock, rwlock) = (Lock::new(1_u8)?, RLock::new(1_u8)?, RwLock::new(1_u8)?);
        let (semaphore, event, condition) = (Semaphore::new(2)?, Event::new()?, Condition::new()?);
        let (barrier, once, writes) = (Barrier::new(1)?, Once::new()?, RwLock::new(1_u8)?);
        // The child takes the guards out of its own copy of the cell, and drops them.
        let held = Cell::new(Some((
            (lock.lock()?, rlock.lock()?, rwlock.read()?, writes.write()?),
            (semaphore.acquire()?, barrier.enroll()?),
        )));
        let other = Lock::new(2_u8)?;
        let waits = Cell::new(Some(other.lock()?));
        let code = in_a_fork(|| {
            let failed = |e: Option<LockError>| matches!(e, Some(LockError::Failed(Error::Forked)));
            let waited = waits.take().map(|guard| condition.wait(guard).map(drop));
            let checks = [
                ("lock", failed(other.lock().err())),
                ("try_lock of a lock that is held", failed(lock.try_lock().err())),
                ("recover", failed(lock.recover().err())),
                ("lock of an RLock", failed(rlock.lock().err())),
                ("read", failed(rwlock.read().err())),
                ("write", failed(rwlock.write().err())),
                ("call_once", failed(once.call_once(|_| ()).err())),
                ("acquire", matches!(semaphore.try_acquire(), Err(AcquireError::Failed(Error::Forked)))),
                ("release", matches!(semaphore.release(), Err(AcquireError::Failed(Error::Forked)))),
                ("add_permits", matches!(semaphore.add_permits(1), Err(AcquireError::Failed(Error::Forked)))),
                ("set", forked(&event.set())),
                ("clear", forked(&event.clear())),
                ("wait for an event", forked(&event.wait())),
                ("wait at a condition", failed(waited.and_then(Result::err))),
                ("notify", forked(&condition.notify_all())),
                ("wait at a barrier", matches!(barrier.wait(), Err(BarrierError::Failed(Error::Forked)))),
                ("enroll", matches!(barrier.enroll(), Err(BarrierError::Failed(Error::Forked)))),
                ("abort", forked(&barrier.abort())),
                ("reset", forked(&barrier.reset())),
                ("the rest", !event.is_set() && semaphore.available() == 0 && !once.is_completed()),
                (
                    "debug output",
                    !format!("{lock:?} {rlock:?} {rwlock:?} {barrier:?} {condition:?}").is_empty(),
                ),
            ];
            drop(held.take());
            first_failure(&checks)
        });
        assert_eq!(code, 0, "number of the failed check in the copy");
        // This process still holds all locks.
        let elsewhere = |f: &(dyn Fn() -> bool + Sync)| std::thread::scope(|s| s.spawn(f).join().unwrap());
        assert!(elsewhere(&|| matches!(lock.try_lock(), Err(LockError::Held { .. }))));
        assert!(elsewhere(&|| matches!(rlock.try_lock(), Err(LockError::Held { .. }))));
        assert!(elsewhere(&|| matches!(rwlock.try_write(), Err(LockError::Held { .. }))));
        assert!(elsewhere(&|| matches!(writes.try_read(), Err(LockError::Held { .. }))));
        assert_eq!(semaphore.available(), 1);
        assert!(matches!(barrier.enroll(), Err(BarrierError::TooMany { .. })));
        drop((held.take(), waits.take()));
        drop((lock.try_lock()?, rlock.try_lock()?, rwlock.try_write()?, writes.try_read()?));
        assert_eq!(semaphore.available(), 2);
        drop(barrier.enroll()?);
        Ok(())
    }
    join(&one_process(worker, ())).unwrap();
}

#[test]
fn queues_of_every_kind_are_refused_in_a_raw_copy() {
    let _alone = alone();
    fn worker(_: usize, (): ()) -> Outcome {
        let queue = QueueOptions::new().capacity(4).bytes(1000).create::<u32>()?;
        let (sender, receiver) = channel::<u32>()?;
        let (here, there) = pipe()?;
        let tasks = JoinableQueue::<u32>::bounded(4)?;
        queue.put(1)?;
        sender.send(1)?;
        here.send(1_u32)?;
        tasks.put(1)?;
        let before = in_use();
        let lease = Cell::new(queue.get_lease()?);
        let code = in_a_fork(|| {
            // Dropped in the child, the lease returns nothing to the queue.
            drop(lease.take());
            let checks = [
                ("get_lease", get_is_refused(queue.get_lease())),
                ("put_many", queue.put_many([1, 2]).is_err()),
                ("get_many", get_is_refused(queue.get_many(&mut Vec::new(), 2))),
                ("send", put_is_refused(sender.send(2))),
                ("recv", get_is_refused(receiver.recv())),
                ("send into a pipe", put_is_refused(here.send(2_u32))),
                ("recv from a pipe", get_is_refused(there.recv::<u32>())),
                ("poll", get_is_refused(there.poll(std::time::Duration::ZERO))),
                ("put of a task", put_is_refused(tasks.put(2))),
                ("get of a task", get_is_refused(tasks.get())),
                ("join", matches!(tasks.join(), Err(JoinableQueueError::Failed(_)))),
                ("wait for a task", forked(&mp::wait(&[&tasks], Some(std::time::Duration::ZERO)))),
                ("what is in them", (queue.len(), receiver.len(), tasks.unfinished()) == (0, 0, 0)),
            ];
            first_failure(&checks)
        });
        assert_eq!((code, in_use()), (0, before));
        assert!(queue.try_get_lease().is_err(), "the lease still belongs to the parent");
        lease.take().ok_or("the parent has its lease")?.ack();
        assert_eq!((receiver.recv()?, there.recv::<u32>()?), (1, 1));
        tasks.get()?.ok_or("closed")?.ack();
        tasks.join()?;
        Ok(())
    }
    join(&one_process(worker, ())).unwrap();
}

#[test]
fn copied_listener_keeps_its_path() {
    let _alone = alone();
    let directory = std::env::temp_dir().join(format!("mp-test-copied-listener-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let listener = Cell::new(Some(Listener::bind(directory.join("socket")).unwrap()));
    assert_eq!(
        in_a_fork(|| {
            drop(listener.take());
            0
        }),
        0
    );
    assert!(directory.join("socket").exists());
    drop(listener);
    assert!(!directory.join("socket").exists());
    std::fs::remove_dir(&directory).unwrap();
}

/// In a forked child of the inviting process, an invitation always counts as open, whatever the state of its
/// socket.
#[test]
fn forked_copy_does_not_wait_for_an_invitation() {
    let _alone = alone();
    fn worker(_: usize, (): ()) -> Outcome {
        let mut command = std::process::Command::new("true");
        let invitation = mp::connection::invite(&mut command, 1_u8)?;
        drop(command);
        let code = in_a_fork(|| first_failure(&[("the wait", forked(&invitation.wait_timeout(DEADLINE)))]));
        assert_eq!(code, 0);
        assert_eq!(invitation.state(), mp::connection::InvitationState::Lapsed);
        Ok(())
    }
    join(&one_process(worker, ())).unwrap();
}
