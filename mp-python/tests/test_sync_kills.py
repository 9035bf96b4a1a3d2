"""Locks, conditions and barriers whose owners, waiters and parties are killed or interrupted."""

import os
import signal
import threading
import time

import pytest
from sync_tasks import (
    LONG,
    SHORT,
    Suicide,
    be_interrupted,
    call,
    hold,
    hold_barrier,
    in_thread,
    join,
    kill,
    notify,
    start,
    timed,
    until,
    wait_and_count,
    wait_last,
    waiters,
)

import multiproc as mp


class TestKills:
    def test_consumer_exits_signals_are_used(self, ctx):
        signals = ctx.Semaphore(2)
        join(start(ctx, call, signals.acquire))
        assert signals.get_value() == 1

    @pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition"])
    def test_owner_killed_lock_is_released(self, ctx, kind):
        lock, held = getattr(ctx, kind)(), ctx.Event()
        process = start(ctx, hold, lock, held)
        assert held.wait(LONG)
        assert in_thread(lock.acquire, False) is False
        kill(process)
        acquired, took = timed(lock.acquire, timeout=LONG)
        assert acquired and took < 2
        lock.release()

    def test_owner_killed_wakes_sleeping_thread(self, forkserver):
        lock, held = mp.Lock(), mp.Event()
        process = start(forkserver, hold, lock, held)
        assert held.wait(LONG)
        killed = []

        def kill_later():
            time.sleep(SHORT)
            killed.append(time.monotonic())
            kill(process)

        killer = threading.Thread(target=kill_later)
        killer.start()
        assert lock.acquire(timeout=LONG)
        assert time.monotonic() - killed[0] < 2
        killer.join(LONG)

    def test_owner_exits_lock_is_released(self, ctx):
        lock = ctx.Lock()
        join(start(ctx, call, lock.acquire))
        assert lock.acquire(timeout=LONG)
        lock.release()

    def test_waiter_killed_others_are_notified(self, ctx):
        condition, woken = mp.Condition(), mp.Semaphore(0)
        victims = [start(ctx, wait_and_count, condition, woken) for _ in range(2)]
        until(lambda: waiters(condition) == 2)
        kill(victims[0])
        assert waiters(condition) == 1
        with condition:
            condition.notify()
        join(victims[1])
        assert woken.get_value() == 1 and waiters(condition) == 0

    def test_waiter_killed_with_notification(self, forkserver):
        condition, woken = mp.Condition(), mp.Semaphore(0)
        with condition:
            # The victim gets a notification, and is stopped before it can take it.
            victim = start(forkserver, wait_and_count, condition, woken)
            condition.wait(0)
        until(lambda: waiters(condition) == 1)
        os.kill(victim.pid, signal.SIGSTOP)
        with condition:
            condition.notify()
        other = threading.Thread(target=wait_and_count, args=(condition, woken), daemon=True)
        other.start()
        until(lambda: waiters(condition) == 1)
        kill(victim)
        other.join(LONG)
        assert not other.is_alive()

    def test_waiting_party_killed_barrier_breaks(self, ctx):
        barrier = ctx.Barrier(3)
        process = start(ctx, call, barrier.wait)
        until(lambda: barrier.n_waiting == 1)
        killer = threading.Thread(target=lambda: (until(lambda: barrier.n_waiting == 2), kill(process)))
        killer.start()
        with pytest.raises(threading.BrokenBarrierError, match=f"{process.pid}.*died"):
            barrier.wait(LONG)
        killer.join(LONG)
        barrier.reset()
        assert barrier.broken is False

    def test_absent_party_killed_barrier_breaks(self, ctx):
        barrier, held = ctx.Barrier(2), ctx.Event()
        process = start(ctx, hold_barrier, barrier, held)
        assert held.wait(LONG)
        killer = threading.Thread(target=lambda: (until(lambda: barrier.n_waiting == 1), kill(process)))
        killer.start()
        with pytest.raises(threading.BrokenBarrierError, match=f"{process.pid}.*died"):
            barrier.wait(LONG)
        killer.join(LONG)

    def test_party_exits_barrier_stays(self, ctx):
        barrier = ctx.Barrier(2)
        process = start(ctx, call, barrier.wait)
        barrier.wait(LONG)
        join(process)
        thread = threading.Thread(target=barrier.wait, args=(LONG,))
        thread.start()
        barrier.wait(LONG)
        thread.join(LONG)
        assert barrier.broken is False

    def test_action_killed_barrier_breaks(self, forkserver):
        barrier, count = mp.Barrier(2, Suicide(os.getpid())), mp.Value("i", 0)
        process = start(forkserver, wait_last, barrier)
        with pytest.raises(threading.BrokenBarrierError):
            barrier.wait(LONG)
        process.join(LONG)
        assert (process.exitcode, count.value) == (-signal.SIGKILL, 0)


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore", "Event", "Condition", "Barrier", "Value"])
def test_sigint_ends_the_wait(forkserver, kind):
    ready, interrupted, lock, taken = mp.Event(), mp.RawValue("d", 0), None, None
    if kind in ("Lock", "RLock", "Value"):
        taken = mp.Value("i", 0) if kind == "Value" else getattr(mp, kind)()
        taken.acquire()
        wait = taken.acquire
    elif kind == "Semaphore":
        wait = mp.Semaphore(0).acquire
    elif kind == "Barrier":
        wait = mp.Barrier(2).wait
    else:
        waitable = getattr(mp, kind)()
        wait, lock = waitable.wait, (waitable if kind == "Condition" else None)
    process = start(forkserver, be_interrupted, wait, lock, ready, interrupted)
    assert ready.wait(LONG)
    time.sleep(SHORT)
    begun = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    join(process)
    assert 0 <= interrupted.value - begun < 0.5
    if taken is not None:
        taken.release()
