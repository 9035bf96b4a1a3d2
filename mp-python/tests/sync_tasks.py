"""Helpers of the tests of locks, and functions that run in workers. Imports little: workers start fast."""

import os
import signal
import threading
import time

SHORT = 0.05
LONG = 20


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
    """Returns the result of a call and its duration."""
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


def is_broken(barrier, *timeout):
    try:
        barrier.wait(*timeout)
    except threading.BrokenBarrierError:
        return True
    return False


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
    assert is_broken(barrier, LONG)
    assert barrier.broken


def wait_twice(barrier, broken, pause=False):
    assert is_broken(barrier, LONG)
    broken.release()
    if pause:
        until(lambda: not barrier.broken)
    barrier.wait(LONG)


def time_out(barrier, *timeout):
    assert is_broken(barrier, *timeout)
    assert barrier.broken


def pass_thousand(barrier, queue, passes):
    for i in range(passes):
        barrier.wait(LONG)
        queue.put(i)


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
