"""Load: eight threads use the same objects for ``MP_LOAD_SECONDS`` seconds, 0.5 by default."""

import collections
import gc
import os
import random
import sys
import threading
import time

import multiproc as mp
import numpy as np
import pytest
from multiproc import shared_memory
from test_threads import PATIENCE, run_all
from thread_tasks import Renewed, Stream

THREADS = 8
SECONDS = float(os.environ.get("MP_LOAD_SECONDS", "0.5"))

pytestmark = pytest.mark.deadline(2 * SECONDS + 120)


@pytest.fixture(autouse=True)
def _short_turns():
    """With a GIL, threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def load(work, threads=THREADS):
    """Calls ``work(thread, round)`` in threads until the time is over. Returns the number of rounds."""
    begin, errors, rounds = threading.Barrier(threads), [], [0] * threads

    def run(thread):
        begin.wait(PATIENCE)
        end = time.monotonic() + SECONDS
        try:
            while time.monotonic() < end and not errors:
                work(thread, rounds[thread])
                rounds[thread] += 1
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=(thread,), daemon=True) for thread in range(threads)]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + SECONDS + PATIENCE
    for worker in workers:
        worker.join(max(deadline - time.monotonic(), 0))
    if errors:
        raise errors[0]
    assert not any(worker.is_alive() for worker in workers), "a thread has not ended in time"
    assert all(rounds), rounds
    return rounds


def test_queue_under_load_delivers_each_once():
    """Arrays of several sizes, new, shared before and received before, each dropped by another thread."""
    queue, kept = mp.Queue(), [[] for _ in range(THREADS)]
    put, got = [[] for _ in range(THREADS)], [[] for _ in range(THREADS)]

    def work(thread, number):
        array = np.full(random.choice([1, 100, 5000, 70_000]), thread * 1_000_000 + number)
        if kept[thread] and number % 2:
            array = kept[thread].pop()
        elif number % 3 == 0:
            array = mp.share(array)
        put[thread].append(int(array[0]))
        queue.put(array, timeout=PATIENCE)
        received = queue.get(timeout=PATIENCE)
        assert (received == received[0]).all()
        got[thread].append(int(received[0]))
        if number % 4 == 0:
            kept[thread].append(received)
        assert queue.fileno() >= 0 and queue.qsize() >= 0 and "object" in repr(queue)

    load(work)
    assert queue.empty() and collections.Counter(sum(put, [])) == collections.Counter(sum(got, []))


def typed_queue():
    return mp.TypedQueue("n/1(x:i64)")


@pytest.mark.parametrize("kind", [mp.Queue, mp.SimpleQueue, mp.JoinableQueue, typed_queue])
def test_queue_closed_under_load_raises(kind):
    """One thread closes the queue that the others use, and makes another."""
    current = [kind()]

    def work(thread, number):
        queue = current[0]
        if thread == 0:
            current[0] = kind()
            queue.close()
            return
        try:
            queue.put({"x": number})
            assert queue.get() is not None
            if kind is mp.JoinableQueue:
                queue.task_done()
            assert queue.empty() in (True, False) and repr(queue)
        except (ValueError, OSError) as error:
            assert "closed" in str(error)

    load(work)


def test_pipe_under_load_delivers_each_once():
    """Both ends are used by all threads, which send objects, bytes and arrays."""
    ends = mp.Pipe()
    put, got = [[] for _ in range(THREADS)], [[] for _ in range(THREADS)]

    def work(thread, number):
        one, other = ends if thread % 2 else ends[::-1]
        name = thread * 1_000_000 + number
        put[thread].append(name)
        one.send((name, np.full(1 << (number % 13), name)))
        assert other.poll(PATIENCE)
        received, array = other.recv()
        assert (array == received).all()
        got[thread].append(received)
        assert one.fileno() >= 0 and "open" in repr(one)

    load(work)
    assert not ends[0].poll() and not ends[1].poll()
    assert sorted(sum(put, [])) == sorted(sum(got, []))


def test_pipe_closed_under_load_raises():
    current = [mp.Pipe()]

    def work(thread, number):
        one, other = current[0]
        if thread == 0:
            current[0] = mp.Pipe()
            (one if number % 2 else other).close()
            return
        try:
            one.send(number)
            assert type(other.recv()) is int and repr(one)
        except (OSError, EOFError):
            assert one.closed or other.closed

    load(work)


def test_pool_under_load_answers_each_call(forkserver):
    with forkserver.Pool(2) as pool:
        called = [[] for _ in range(THREADS)]

        def work(thread, number):
            items = list(range(thread, thread + 40))
            assert pool.map(abs, items, 7) == items
            assert sorted(pool.imap_unordered(abs, items, 9)) == items
            result = pool.apply_async(abs, (-number,), callback=called[thread].append)
            assert result.get(PATIENCE) == number
            assert pool.starmap_async(pow, [(2, 3)]).get(PATIENCE) == [8]

        rounds = load(work)
        assert [sorted(numbers) for numbers in called] == [list(range(count)) for count in rounds]
    pool.join()


@pytest.mark.parametrize("dataset", [Renewed(), Stream()])
def test_loader_under_load_delivers_each_batch(dataset):
    """Each thread begins epochs of its own, and all threads share one more epoch."""
    loader = mp.DataLoader(dataset, 4, num_workers=1, in_order=False)
    shared, lock, taken = [iter(loader)], threading.Lock(), []

    def work(thread, number):
        if thread % 2:
            assert sorted(int(n) for batch in loader for n in batch) == list(range(12))
            return
        with lock:
            iterator = shared[0]
        try:
            batch = next(iterator)
        except StopIteration:
            with lock:
                if shared[0] is iterator:
                    shared[0] = iter(loader)
        else:
            with lock:
                taken.append((id(iterator), iterator, [int(n) for n in batch]))

    load(work, 4)
    rest = [int(n) for batch in shared[0] for n in batch]
    epochs = collections.defaultdict(list)
    for name, _, numbers in taken:
        epochs[name] += numbers
    epochs[id(shared[0])] += rest
    assert all(sorted(numbers) == list(range(12)) for numbers in epochs.values())


def test_epochs_begun_by_threads_get_their_setup():
    loader = mp.DataLoader(Renewed(), 4, num_workers=1)
    run_all(*[lambda: [iter(loader) for _ in range(3000)]] * 4)
    assert sorted(int(n) for batch in loader for n in batch) == list(range(12))


def test_locks_under_load_exclude():
    value, array, lock, sem = mp.Value("q"), mp.Array("q", 4), mp.Lock(), mp.BoundedSemaphore(2)
    condition, plain, inside = mp.Condition(), [0], []

    def work(thread, number):
        with value.get_lock():
            with value:
                value.value += 1
        with array.get_lock():
            array[number % 4] += 1
        with lock:
            plain[0] += 1
        with sem:
            inside.append(thread)
            assert len(inside) <= 2
            inside.remove(thread)
        with condition:
            condition.notify_all()
            condition.wait(0.001)
        assert repr(value.get_lock()) and repr(sem) and repr(condition)

    rounds = sum(load(work))
    assert value.value == rounds and sum(array[:]) == rounds and plain == [rounds]


def test_barrier_under_load_passes_all():
    barrier, numbers = mp.Barrier(THREADS), [set() for _ in range(200)]

    def work(thread):
        for number in range(200):
            numbers[number].add(barrier.wait(PATIENCE))

    run_all(*[lambda thread=thread: work(thread) for thread in range(THREADS)])
    assert all(each == set(range(THREADS)) for each in numbers)


def test_joinable_queue_under_load_is_joined():
    queue, done = mp.JoinableQueue(), [0] * THREADS

    def work(thread, number):
        queue.put(number)
        queue.get(timeout=PATIENCE)
        done[thread] += 1
        queue.task_done()
        if number % 50 == 0:
            queue.join(0)

    assert sum(load(work)) == sum(done)
    assert queue.join(PATIENCE) and queue.empty()
    with pytest.raises(ValueError):
        queue.task_done()


def test_memory_under_load_keeps_its_contents():
    """Views of the same memory are made, sent and dropped by all threads, in every order."""
    queue, blocks = mp.Queue(), [mp.share(np.full(3000, n)) for n in range(4)]

    def work(thread, number):
        n = random.randrange(4)
        begin = random.randrange(2000)
        view = blocks[n][begin : begin + random.randrange(1, 1000)]
        queue.put((n, view, memoryview(view)))
        n, view, buffer = queue.get(timeout=PATIENCE)
        assert (view == n).all() and buffer[0] == n
        blocks[n] = view if len(view) == 3000 else mp.share(np.full(3000, n))
        own = mp.zeros(random.choice([1, 10, 10_000]), dtype="i8")
        own += thread
        assert (own == thread).all()
        if number % 100 == 0:
            gc.collect()

    load(work)


def test_named_memory_under_load_is_found_or_gone():
    current = [shared_memory.SharedMemory(create=True, size=4096)]

    def work(thread, number):
        memory = current[0]
        if thread == 0:
            current[0] = shared_memory.SharedMemory(create=True, size=4096)
            memory.unlink()
        try:
            with memoryview(memory.buf)[:8] as view:
                view[0] = 1
            other = shared_memory.SharedMemory(memory.name)
            other.close()
        except (FileNotFoundError, ValueError):
            pass

    load(work)
    current[0].unlink()
