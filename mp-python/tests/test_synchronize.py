"""Locks, semaphores, conditions, events and barriers: CPython's scenarios."""

import itertools
import os
import threading

import pytest
from sync_tasks import (
    LONG,
    SHORT,
    Increment,
    abort_by_first,
    call,
    check_action,
    check_locked,
    hold,
    in_thread,
    join,
    kill,
    notify,
    notify_and_interrupt,
    pass_barrier,
    pass_thousand,
    put_index,
    start,
    time_out,
    timed,
    until,
    wait_and_count,
    wait_for_four,
    wait_twice,
    waiters,
)

import multiproc as mp


class TestCPythonLock:
    def test_lock(self):
        lock = mp.Lock()
        assert lock.acquire() is True
        assert lock.acquire(False) is False
        assert lock.release() is None
        with pytest.raises(ValueError, match="released too many times"):
            lock.release()

    def test_rlock(self):
        lock = mp.RLock()
        assert [lock.acquire() for _ in range(3)] == [True] * 3
        assert [lock.release() for _ in range(3)] == [None] * 3
        with pytest.raises(AssertionError, match="not owned by thread"):
            lock.release()

    def test_lock_context(self):
        for lock in (mp.Lock(), mp.RLock(), mp.Semaphore(), mp.BoundedSemaphore(), mp.Condition()):
            with lock as entered:
                assert entered is True
            with lock:
                pass

    def test_lock_locked(self):
        for lock in (mp.Lock(), mp.RLock()):
            assert lock.locked() is False
            lock.acquire()
            assert lock.locked() is True
            lock.release()
            assert lock.locked() is False

    @pytest.mark.parametrize("kind", ["Lock", "RLock"])
    def test_lock_locked_2processes(self, ctx, kind):
        lock = getattr(ctx, kind)()
        lock.acquire()
        join(start(ctx, check_locked, lock, True))
        lock.release()
        join(start(ctx, check_locked, lock, False))

    def test_repr_lock(self, forkserver):
        lock, held = mp.Lock(), mp.Event()
        assert repr(lock) == "<Lock(owner=None)>"
        lock.acquire()
        assert repr(lock) == "<Lock(owner=MainProcess)>"
        assert in_thread(repr, lock) == "<Lock(owner=SomeOtherThread)>"
        lock.release()
        name = in_thread(lambda: (lock.acquire(), repr(lock), threading.current_thread().name)[1:])
        assert name[0] == f"<Lock(owner=MainProcess|{name[1]})>"
        lock.release()
        process = start(forkserver, hold, lock, held)
        assert held.wait(LONG)
        assert repr(lock) == "<Lock(owner=SomeOtherProcess)>"
        kill(process)
        assert repr(lock) == "<Lock(owner=None)>"

    def test_repr_rlock(self, forkserver):
        lock, held = mp.RLock(), mp.Event()
        assert repr(lock) == "<RLock(None, 0)>"
        for n in range(1, 4):
            lock.acquire()
            assert repr(lock) == f"<RLock(MainProcess, {n})>"
        assert in_thread(repr, lock) == "<RLock(SomeOtherThread, nonzero)>"
        for _ in range(3):
            lock.release()
        process = start(forkserver, hold, lock, held)
        assert held.wait(LONG)
        assert repr(lock) == "<RLock(SomeOtherProcess, nonzero)>"
        kill(process)


class TestCPythonSemaphore:
    def check(self, sem):
        assert sem.get_value() == 2
        for left in (1, 0):
            assert sem.acquire() is True
            assert sem.get_value() == left
        assert sem.acquire(False) is False
        for left in (1, 2):
            assert sem.release() is None
            assert sem.get_value() == left

    def test_semaphore(self):
        sem = mp.Semaphore(2)
        self.check(sem)
        for value in (3, 4):
            sem.release()
            assert sem.get_value() == value

    def test_bounded_semaphore(self):
        sem = mp.BoundedSemaphore(2)
        self.check(sem)
        with pytest.raises(ValueError, match="released too many times"):
            sem.release()
        assert sem.get_value() == 2
        assert isinstance(sem, type(mp.Semaphore()))

    @pytest.mark.parametrize(("value", "limit"), [(8190, 8192), (10_000, 10_000)])
    def test_release_at_the_limit_raises(self, value, limit):
        sem = mp.Semaphore(value)
        for _ in range(limit - value):
            sem.release()
        with pytest.raises(ValueError, match=f"the semaphore is at its limit of {limit} permits"):
            sem.release()
        assert sem.get_value() == limit

    def test_initial_value_above_the_maximum_raises(self):
        most = mp.synchronize.SEM_VALUE_MAX
        for kind in mp.Semaphore, mp.BoundedSemaphore:
            with pytest.raises(ValueError, match=f"at most {most} permits, not {most + 1}"):
                kind(most + 1)

    def test_timeout(self):
        sem = mp.Semaphore(0)
        for args in ((False,), (False, None), (False, LONG), (True, -1), (True, 0)):
            result, took = timed(sem.acquire, *args)
            assert result is False and took < SHORT
        for kwargs in ({"timeout": SHORT}, {"block": True, "timeout": 3 * SHORT}):
            result, took = timed(sem.acquire, **kwargs)
            assert result is False and kwargs["timeout"] <= took < LONG / 2


class TestCPythonCondition:
    def start_waiters(self, ctx, condition, woken, n, timeout=None):
        processes = [start(ctx, wait_and_count, condition, woken, timeout) for _ in range(n)]
        threads = [
            threading.Thread(target=wait_and_count, args=(condition, woken, timeout), daemon=True)
            for _ in range(n)
        ]
        for thread in threads:
            thread.start()
        return processes, threads

    def end(self, condition, processes, threads):
        join(*processes)
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
        assert waiters(condition) == 0

    def test_notify(self, forkserver):
        condition, woken = mp.Condition(), mp.Semaphore(0)
        all_of_them = self.start_waiters(forkserver, condition, woken, 1)
        until(lambda: waiters(condition) == 2)
        for n in (1, 2):
            with condition:
                condition.notify()
            assert woken.acquire(timeout=LONG)
            assert woken.acquire(timeout=SHORT) is False, n
            assert waiters(condition) == 2 - n
        self.end(condition, *all_of_them)

    def test_notify_all(self, ctx):
        condition, woken = mp.Condition(), mp.Semaphore(0)
        all_of_them = self.start_waiters(ctx, condition, woken, 2, SHORT)
        self.end(condition, *all_of_them)
        assert woken.get_value() == 0
        all_of_them = self.start_waiters(ctx, condition, woken, 2)
        until(lambda: waiters(condition) == 4)
        with condition:
            condition.notify_all()
        self.end(condition, *all_of_them)
        assert [woken.acquire(timeout=LONG) for _ in range(4)] == [True] * 4

    def test_notify_n(self, forkserver):
        condition, woken = mp.Condition(), mp.Semaphore(0)
        all_of_them = self.start_waiters(forkserver, condition, woken, 2)
        until(lambda: waiters(condition) == 4)
        with condition:
            condition.notify(n=3)
        assert [woken.acquire(timeout=LONG) for _ in range(3)] == [True] * 3
        assert woken.acquire(timeout=SHORT) is False
        with condition:
            condition.notify(n=5)
        assert woken.acquire(timeout=LONG)
        self.end(condition, *all_of_them)

    def test_timeout(self):
        condition = mp.Condition()
        with condition:
            result, took = timed(condition.wait, SHORT)
        assert result is False and SHORT <= took < LONG / 2

    def test_waitfor(self, ctx):
        condition, state = mp.Condition(), mp.Value("i", -1)
        process = start(ctx, wait_for_four, condition, state)
        with condition:
            assert condition.wait_for(lambda: state.value == 0, LONG)
        for n in range(1, 5):
            with condition:
                state.value = n
                condition.notify()
        join(process)

    def test_waitfor_timeout(self):
        condition = mp.Condition()
        with condition:
            result, took = timed(condition.wait_for, lambda: 0, SHORT)
        assert result == 0 and SHORT <= took < LONG / 2

    def test_wait_result(self, forkserver):
        condition = mp.Condition()
        with condition:
            assert condition.wait(0) is False
            assert condition.wait(SHORT) is False
            process = start(forkserver, notify_and_interrupt, condition, os.getpid())
            assert condition.wait(LONG) is True
            with pytest.raises(KeyboardInterrupt):
                condition.wait(LONG)
            # The lock is acquired again.
            assert repr(condition) == "<Condition(<RLock(MainProcess, 1)>, 0)>"
        join(process)


class TestCPythonEvent:
    def test_event(self, ctx):
        event = mp.Event()
        assert event.is_set() is False
        for timeout in (0.0, SHORT):
            result, took = timed(event.wait, timeout)
            assert result is False and timeout <= took < LONG / 2
        event.set()
        assert event.is_set() is True
        assert event.wait() is True and event.wait(LONG) is True
        event.clear()
        assert event.is_set() is False
        process = start(ctx, call, event.set)
        assert event.wait() is True
        join(process)

    def test_repr(self):
        event = mp.Event()
        for state in ("unset", "set", "unset"):
            assert repr(event).startswith("<Event at 0x") and repr(event).endswith(f" {state}>")
            event.clear() if event.is_set() else event.set()


class TestCPythonBarrier:
    N = 3

    def run(self, ctx, barrier, function, *args):
        """Calls the function in N - 1 processes and in this one."""
        processes = [start(ctx, function, barrier, *args) for _ in range(self.N - 1)]
        function(barrier, *args)
        join(*processes)

    def test_barrier(self, ctx):
        counts = [mp.Value("i", 0) for _ in range(2)]
        self.run(ctx, ctx.Barrier(self.N), pass_barrier, counts, 1)

    def test_barrier_10(self, forkserver):
        counts = [mp.Value("i", 0) for _ in range(2)]
        self.run(forkserver, mp.Barrier(self.N), pass_barrier, counts, 10)

    def test_wait_return(self, forkserver):
        queue = mp.Queue()
        self.run(forkserver, mp.Barrier(self.N), put_index, queue)
        assert sorted(queue.get(timeout=LONG) for _ in range(self.N)) == [0, 1, 2]

    def test_action(self, ctx):
        count = mp.Value("i", 0)
        self.run(ctx, mp.Barrier(self.N, Increment(count)), check_action, count)
        assert count.value == 2

    def test_abort(self, forkserver):
        self.run(forkserver, mp.Barrier(self.N), abort_by_first, mp.Value("i", 0))

    def test_reset(self, forkserver):
        barrier, broken = mp.Barrier(self.N), mp.Semaphore(0)
        processes = [start(forkserver, wait_twice, barrier, broken) for _ in range(self.N - 1)]
        until(lambda: barrier.n_waiting == self.N - 1)
        barrier.reset()
        assert [broken.acquire(timeout=LONG) for _ in processes] == [True] * len(processes)
        assert barrier.broken is False
        barrier.wait(LONG)
        join(*processes)

    def test_abort_and_reset(self, forkserver):
        barrier, broken = mp.Barrier(self.N), mp.Semaphore(0)
        processes = [start(forkserver, wait_twice, barrier, broken, True) for _ in range(self.N - 1)]
        until(lambda: barrier.n_waiting == self.N - 1)
        barrier.abort()
        assert [broken.acquire(timeout=LONG) for _ in processes] == [True] * len(processes)
        assert barrier.broken is True and barrier.n_waiting == 0
        with pytest.raises(threading.BrokenBarrierError, match="aborted"):
            barrier.wait()
        barrier.reset()
        broken.release(), broken.release()
        barrier.wait(LONG)
        join(*processes)

    def test_timeout(self, forkserver):
        self.run(forkserver, mp.Barrier(self.N + 1), time_out, SHORT)

    def test_default_timeout(self, forkserver):
        self.run(forkserver, mp.Barrier(self.N + 1, timeout=SHORT), time_out)

    def test_single_thread(self):
        barrier = mp.Barrier(1)
        assert (barrier.parties, barrier.wait(), barrier.wait(), barrier.n_waiting) == (1, 0, 0, 0)

    def test_thousand(self, forkserver):
        queue = mp.Queue()
        self.run(forkserver, mp.Barrier(self.N), pass_thousand, queue, 1000)
        got = [queue.get(timeout=LONG) for _ in range(1000 * self.N)]
        assert sorted(got) == sorted(list(range(1000)) * self.N)
        assert queue.empty()


def test_waitfor_waits_for_the_time_that_is_left(monkeypatch):
    condition, left = mp.Condition(), []
    # As if it were notified at once.
    monkeypatch.setattr(condition, "wait", left.append)
    assert condition.wait_for(lambda: len(left) == 9, 20)
    assert left[0] <= 20 and all(one > other for one, other in itertools.pairwise(left))
