"""Many threads of one process use the same objects at once, and change objects that other threads send."""

import os
import sysconfig
import threading
import time

import multiproc as mp
import numpy as np
import pytest
from pool_tasks import write

THREADS = 4
ROUNDS = 60
PATIENCE = 30


def run_all(*targets):
    """Runs the functions in threads that begin together. Raises the first exception of any of them."""
    begin, errors = threading.Barrier(len(targets)), []

    def run(target):
        begin.wait(PATIENCE)
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    end = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread has not ended in time"


def numbers():
    """Names of all messages: (thread, round)."""
    return [(thread, number) for thread in range(THREADS) for number in range(ROUNDS)]


def exchange(send, receive):
    """Sends messages from some threads and receives them in as many. Asserts that each arrives once."""
    got = []

    def sender(thread):
        for number in range(ROUNDS):
            send((thread, number, np.full(64 << (number % 8), number)))

    def receiver():
        for _ in range(ROUNDS):
            thread, number, array = receive()
            assert array.size == 64 << (number % 8) and (array == number).all()
            got.append((thread, number))

    run_all(*[lambda thread=thread: sender(thread) for thread in range(THREADS)], *[receiver] * THREADS)
    assert sorted(got) == numbers()


def test_import_leaves_the_gil_as_it_is():
    program = "import sys, multiproc; sys.exit(getattr(sys, '_is_gil_enabled', lambda: True)())"
    process = mp.get_context("spawn").Process(target=exec, args=(program,))
    process.start()
    process.join(PATIENCE)
    has_gil = not sysconfig.get_config_var("Py_GIL_DISABLED")
    assert process.exitcode == has_gil


def test_queue_of_threads_delivers_once():
    queue = mp.Queue(8)
    exchange(lambda value: queue.put(value, timeout=PATIENCE), lambda: queue.get(timeout=PATIENCE))
    assert queue.empty()


def test_pipe_of_threads_delivers_once():
    receiver, sender = mp.Pipe(False)

    def receive():
        assert receiver.poll(PATIENCE)
        return receiver.recv()

    exchange(sender.send, receive)
    assert not receiver.poll()


@pytest.mark.parametrize("kind", [mp.Lock, mp.RLock, lambda: mp.Semaphore(1)])
def test_lock_of_threads_excludes(kind):
    lock, count = kind(), [0, 0]

    def add():
        for _ in range(20 * ROUNDS):
            assert lock.acquire(timeout=PATIENCE)
            before = count[0]
            count[1] += 1
            count[0] = before + 1
            lock.release()

    run_all(*[add] * THREADS)
    assert count == [20 * ROUNDS * THREADS] * 2


def test_event_wakes_all_threads():
    events = [mp.Event() for _ in range(ROUNDS)]
    run_all(
        *[lambda: [event.wait(PATIENCE) or pytest.fail("not woken") for event in events]] * THREADS,
        lambda: [event.set() for event in events],
    )
    assert all(event.is_set() for event in events)


def test_objects_changed_meanwhile_arrive_whole():
    """An object that changes while it is put arrives in some state that it had, or `put` raises."""
    queue = mp.Queue()
    ended = threading.Event()
    table, items, data = dict.fromkeys(range(50), 0), [0] * 400, bytearray(40_000)
    sent, lock = [], threading.Lock()

    def change():
        number = 0
        while not ended.is_set():
            number += 1
            table[number % 100] = number
            table.pop((number + 50) % 100, None)
            items.append(number)
            items.pop(0)
            data[number % len(data)] = number % 256

    def put(thread):
        try:
            for number in range(ROUNDS):
                for value in (table, items, memoryview(data), data):
                    try:
                        queue.put((thread, number, value), timeout=PATIENCE)
                    except RuntimeError as error:
                        # Raised by pickle: the object changed its size.
                        assert "changed" in str(error)
                    else:
                        with lock:
                            sent.append((thread, number))
        finally:
            if thread == 0:
                ended.set()

    run_all(*[lambda thread=thread: put(thread) for thread in range(THREADS)], change, change)
    got = []
    for _ in range(len(sent)):
        thread, number, value = queue.get(timeout=PATIENCE)
        got.append((thread, number))
        if isinstance(value, list):
            assert all(type(item) is int for item in value)
        elif isinstance(value, dict):
            assert all(0 <= key < 100 for key in value)
        else:
            assert len(value) == 40_000
    assert sorted(got) == sorted(sent) and queue.empty()
    assert len(sent) >= 2 * THREADS * ROUNDS


def test_pool_of_threads_answers_each_call(forkserver):
    with forkserver.Pool(2) as pool:

        def call(thread):
            for number in range(ROUNDS // 4):
                items = [1000 * thread + number + item for item in range(40)]
                assert pool.map(abs, items, 7) == items
                assert list(pool.imap(abs, items, 9)) == items
                assert pool.apply_async(abs, (-number,)).get(PATIENCE) == number

        run_all(*[lambda thread=thread: call(thread) for thread in range(THREADS)])
    pool.join()


def test_result_of_threads_is_the_same(one):
    """Several threads wait for one result while other threads make new calls, which check older calls."""
    results = [one.apply_async(abs, (-number,)) for number in range(ROUNDS)]
    run_all(
        *[lambda: [result.get(PATIENCE) for result in results]] * THREADS,
        *[lambda: [one.apply_async(abs, (1,)).get(PATIENCE) for _ in range(2 * ROUNDS)]] * 2,
    )
    assert [result.get() for result in results] == list(range(ROUNDS))


class Slow:
    """Argument whose pickling takes until the event ``go``, in the thread that pushes the tasks."""

    begun, go = threading.Event(), threading.Event()

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        self.begun.set()
        assert self.go.wait(PATIENCE)
        return str, (self.path,)


def test_call_being_sent_is_not_dropped(one, tmp_path):
    """The program keeps no result of the call. Calls of another thread make the pool drop ended calls."""
    path = str(tmp_path / "lines")

    def call():
        one.map_async(write, [path, Slow(path), *[path] * 500], chunksize=1)

    def others():
        assert Slow.begun.wait(PATIENCE)
        for _ in range(300):
            one.apply_async(abs, (1,)).wait(PATIENCE)
        unread = [one.apply_async(abs, (1,)) for _ in range(300)]
        Slow.go.set()
        [result.wait(PATIENCE) for result in unread]

    run_all(call, others)
    one.close()
    one.join()
    assert os.path.getsize(path) == 502 * len("end\n")


def test_list_shortened_meanwhile_is_no_error(one):
    """A list that another thread shortens while `map` reads it."""
    ended = threading.Event()
    items = list(range(400))

    def change():
        while not ended.is_set():
            items[20:] = []
            items[20:] = range(20, 400)

    def call():
        try:
            for _ in range(ROUNDS):
                got = one.map(abs, items)
                assert got[:20] == list(range(20)) and set(got) <= {*range(400), None}
        finally:
            ended.set()

    run_all(call, change)
