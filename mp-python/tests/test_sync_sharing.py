"""Locks and similar objects between threads and processes, in messages and in forked copies."""

import os
import pickle
import sys
import threading

import pytest
from sync_tasks import (
    LONG,
    Fail,
    add_under,
    answer,
    call,
    in_thread,
    in_thread_raising,
    join,
    notify,
    start,
    until,
    use_objects,
    waiters,
)

import multiproc as mp


class TestThreads:
    def test_lock_is_released_by_another_thread(self):
        lock = mp.Lock()
        lock.acquire()
        in_thread(lock.release)
        assert lock.acquire(False)

    def test_rlock_belongs_to_its_thread(self):
        lock = mp.RLock()
        lock.acquire()
        assert in_thread(lock.acquire, False) is False
        with pytest.raises(AssertionError):
            in_thread_raising(lock.release)
        lock.release()
        assert in_thread(lock.acquire, False) is True

    def test_condition_needs_its_lock(self):
        condition = mp.Condition()
        for function in (condition.wait, condition.notify, condition.notify_all):
            with pytest.raises(AssertionError):
                function()
        assert waiters(condition) == 0

    def test_condition_releases_all_levels(self):
        condition = mp.Condition(mp.RLock())
        notifier = threading.Thread(target=notify, args=(condition,))
        with condition, condition:
            notifier.start()
            assert condition.wait(LONG)
            assert repr(condition._lock) == "<RLock(MainProcess, 2)>"
        notifier.join(LONG)

    def test_condition_refuses_other_locks(self):
        with pytest.raises(TypeError):
            mp.Condition(mp.Semaphore())

    @pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore", "Condition"])
    def test_sections_exclude_each_other(self, forkserver, kind):
        lock, value, n = getattr(mp, kind)(), mp.RawValue("i", 0), 300
        processes = [start(forkserver, add_under, lock, value, n) for _ in range(2)]
        threads = [threading.Thread(target=add_under, args=(lock, value, n)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        join(*processes)
        assert value.value == 4 * n

    def test_event_set_and_cleared_wakes_waiters(self):
        event, results = mp.Event(), []

        def wait():
            results.append("waits")
            results.append(event.wait(LONG))

        thread, interval = threading.Thread(target=wait), sys.getswitchinterval()
        # This thread continues when the other one releases the interpreter: in `event.wait`.
        sys.setswitchinterval(LONG)
        try:
            thread.start()
            until(lambda: results)
            event.set()
            event.clear()
        finally:
            sys.setswitchinterval(interval)
        thread.join(LONG)
        assert results == ["waits", True]

    def test_barrier_action_raises_barrier_breaks(self):
        barrier = mp.Barrier(1, Fail())
        with pytest.raises(ZeroDivisionError):
            barrier.wait()
        assert barrier.broken


class TestProcesses:
    def test_lock_is_released_by_another_process(self, ctx):
        for lock in (ctx.Lock(), ctx.Semaphore(1), ctx.BoundedSemaphore(1)):
            lock.acquire()
            join(start(ctx, call, lock.release))
            assert lock.acquire(False) is True

    def test_rlock_belongs_to_its_process(self, forkserver):
        lock = mp.RLock()
        lock.acquire()
        process = start(forkserver, call, lock.release)
        process.join(LONG)
        assert process.exitcode == 1
        assert repr(lock) == "<RLock(MainProcess, 1)>"

    def test_semaphore_signals_do_not_accumulate(self, forkserver):
        there, back = mp.Semaphore(0), mp.Semaphore(0)
        process = start(forkserver, answer, there, back, 9000)
        for _ in range(9000):
            there.release()
            assert back.acquire(timeout=LONG)
        join(process)
        assert (there.get_value(), back.get_value()) == (0, 0)

    def test_objects_in_queues_stay_shared(self, ctx):
        queue, back = ctx.Queue(), ctx.Queue()
        objects = {
            "lock": ctx.Lock(),
            "rlock": ctx.RLock(),
            "semaphores": [ctx.Semaphore(3), ctx.BoundedSemaphore(2)],
            "condition": ctx.Condition(),
            "event": ctx.Event(),
            "barrier": (ctx.Barrier(2),),
        }
        process = start(ctx, use_objects, queue, back)
        objects["lock"].acquire()
        queue.put(objects)
        assert back.get(timeout=LONG) == "ready"
        assert objects["lock"].acquire(False) is True, "it was released there"
        assert [semaphore.get_value() for semaphore in objects["semaphores"]] == [2, 1]
        assert repr(objects["rlock"]) == "<RLock(SomeOtherProcess, nonzero)>"
        until(lambda: waiters(objects["condition"]) == 1)
        with objects["condition"]:
            objects["condition"].notify()
        assert objects["event"].wait(LONG)
        objects["barrier"][0].wait(LONG)
        join(process)

    def test_condition_shares_its_lock_in_messages(self, ctx):
        queue = ctx.Queue()
        lock = ctx.Lock()
        queue.put([lock, ctx.Condition(lock)])
        lock, condition = queue.get(timeout=LONG)
        assert condition._lock is lock

    def test_pickle_outside_of_messages_is_refused(self):
        for obj in (mp.Lock(), mp.RLock(), mp.Semaphore(), mp.Event(), mp.Condition(), mp.Barrier(2)):
            with pytest.raises(RuntimeError, match="only as a part of a message"):
                pickle.dumps(obj)


def test_forked_copy_raises_runtime_error():
    lock, rlock, semaphore, event = mp.Lock(), mp.RLock(), mp.Semaphore(), mp.Event()
    condition, barrier, value = mp.Condition(), mp.Barrier(1), mp.Value("i", 7)
    lock.acquire()
    calls = [
        lock.acquire, lock.release, lock.locked, rlock.acquire, rlock.release, semaphore.acquire,
        semaphore.release, semaphore.get_value, event.wait, event.set, event.clear, event.is_set,
        condition.acquire, condition.wait, condition.notify, barrier.wait, barrier.abort, barrier.reset,
        lambda: barrier.broken, lambda: value.value, mp.Lock, mp.Event, mp.Condition,
    ]  # fmt: skip
    pid = os.fork()
    if pid == 0:
        failed = 0
        for function in calls:
            try:
                function()
                failed += 1
            except RuntimeError as error:
                failed += "forked" not in str(error)
            except BaseException:
                failed += 1
        unknown = sum("unknown" in repr(obj) for obj in (lock, rlock, semaphore, event, condition, barrier))
        os._exit(failed + (6 - unknown))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert lock.locked() is True, "the copy has released nothing"


@pytest.mark.parametrize(
    ("kind", "args"), [("Semaphore", -1), ("BoundedSemaphore", -1), ("Semaphore", 1 << 31), ("Barrier", 0)]
)
def test_invalid_numbers_are_refused(kind, args):
    with pytest.raises(ValueError):
        getattr(mp, kind)(args)


def test_locks_have_names_of_multiprocessing():
    import multiprocessing

    for kind in ("Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Event", "Barrier"):
        args = [2] if kind == "Barrier" else []
        ours, theirs = getattr(mp, kind)(*args), getattr(multiprocessing, kind)(*args)
        for name in dir(theirs):
            if not name.startswith("_"):
                assert hasattr(ours, name), (kind, name)
