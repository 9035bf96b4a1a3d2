"""Locks, semaphores, conditions, events, barriers: CPython's scenarios, kills, signals, forks, messages."""

import inspect
import os
import pickle
import signal
import threading
import time

import pytest

import multiproc as mp

SHORT = 0.05
LONG = 20


@pytest.fixture
def forkserver():
    return mp.get_context("forkserver")


def until(condition):
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "the condition does not hold"
        time.sleep(0.001)


def start(ctx, target, *args):
    process = ctx.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def join(*processes):
    for process in processes:
        process.join(LONG)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def timed(function, *args, **kwargs):
    """Returns the result and the time."""
    begun = time.monotonic()
    return function(*args, **kwargs), time.monotonic() - begun


def in_thread(function, *args):
    """Returns the result of a call in another thread."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()
    thread.join(LONG)
    return results[0]


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.join(LONG)
    assert process.exitcode == -signal.SIGKILL


def waiters(condition):
    return len(condition._waiters)


# Workers.


def hold(lock, held):
    lock.acquire()
    held.set()
    signal.pause()


def call(function, *args):
    function(*args)


def check_locked(lock, expected):
    assert lock.locked() is expected
    assert lock.acquire(False) is not expected


def wait_and_count(condition, woken, timeout=None):
    with condition:
        if condition.wait(timeout):
            woken.release()


def add_under(lock, value, n):
    for _ in range(n):
        with lock:
            value.value += 1


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


def wait_for_four(condition, state):
    with condition:
        state.value = 0
        condition.notify()
        assert condition.wait_for(lambda: state.value == 4, LONG)


def notify_and_interrupt(condition, pid):
    with condition:
        condition.notify()
    until(lambda: waiters(condition) == 1)
    os.kill(pid, signal.SIGINT)


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


class Increment:
    def __init__(self, value):
        self.value = value

    def __call__(self):
        with self.value.get_lock():
            self.value.value += 1


def pass_barrier(barrier, counts, times):
    for i in range(1, times + 1):
        for count in counts:
            Increment(count)()
            barrier.wait(LONG)
            assert count.value == i * barrier.parties
            barrier.wait(LONG)
    assert not barrier.broken


def put_index(barrier, queue):
    queue.put(barrier.wait(LONG))


def check_action(barrier, count):
    barrier.wait(LONG)
    assert count.value == 1
    barrier.wait(LONG)
    assert count.value == 2


def abort_by_first(barrier, first):
    with first.get_lock():
        first.value += 1
        number = first.value
    if number == barrier.parties:
        barrier.abort()
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait(LONG)
    assert barrier.broken


def wait_twice(barrier, broken, pause=False):
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait(LONG)
    broken.release()
    if pause:
        until(lambda: not barrier.broken)
    barrier.wait(LONG)


def time_out(barrier, *timeout):
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait(*timeout)
    assert barrier.broken


def pass_thousand(barrier, queue, passes):
    for i in range(passes):
        barrier.wait(LONG)
        queue.put(i)


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
            # It gets a notification that it can't take before it is stopped.
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


def hold_barrier(barrier, held):
    held.set()
    signal.pause()


def wait_last(barrier):
    until(lambda: barrier.n_waiting == 1)
    barrier.wait(LONG)


class Suicide:
    def __init__(self, parent):
        self.parent = parent

    def __call__(self):
        assert os.getpid() != self.parent
        os.kill(os.getpid(), signal.SIGKILL)


def be_interrupted(wait, lock, ready, interrupted):
    if lock is not None:
        lock.acquire()
    ready.set()
    try:
        wait()
    except KeyboardInterrupt:
        interrupted.value = time.monotonic()


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
        thread = threading.Thread(target=lambda: results.append(event.wait(LONG)))
        thread.start()
        time.sleep(2 * SHORT)
        event.set()
        event.clear()
        thread.join(LONG)
        assert results == [True]

    def test_barrier_action_raises_barrier_breaks(self):
        barrier = mp.Barrier(1, Fail())
        with pytest.raises(ZeroDivisionError):
            barrier.wait()
        assert barrier.broken


def notify(condition):
    with condition:
        condition.notify()


class Fail:
    def __call__(self):
        raise ZeroDivisionError


def in_thread_raising(function):
    errors = []

    def run():
        try:
            function()
        except BaseException as error:
            errors.append(error)

    in_thread(run)
    raise errors[0]


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


def answer(there, back, times):
    for _ in range(times):
        assert there.acquire(timeout=LONG)
        back.release()


def use_objects(queue, back):
    objects = queue.get(timeout=LONG)
    objects["lock"].release()
    objects["rlock"].acquire()
    for semaphore in objects["semaphores"]:
        semaphore.acquire()
    back.put("ready")
    with objects["condition"]:
        assert objects["condition"].wait(LONG)
    objects["event"].set()
    objects["barrier"][0].wait(LONG)


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


def test_signatures_are_those_of_multiprocessing():
    import multiprocessing

    for kind in ("Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Event", "Barrier"):
        factory = inspect.signature(getattr(mp, kind))
        assert factory == inspect.signature(getattr(multiprocessing, kind)), kind
        args = [2] if kind == "Barrier" else []
        ours, theirs = getattr(mp, kind)(*args), getattr(multiprocessing, kind)(*args)
        for name in dir(theirs):
            if not name.startswith("_"):
                assert hasattr(ours, name), (kind, name)
    assert str(inspect.signature(mp.Lock().acquire)) == "(block=True, timeout=None)"
