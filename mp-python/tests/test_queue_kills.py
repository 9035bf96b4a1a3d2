"""Queues whose producers or consumers have ended or were killed."""

import random
import signal
import sys
import threading
import time
from multiprocessing import connection

import pytest

import multiproc as mp
from multiproc.queues import Empty, Full
from queue_tasks import WAIT, kill, start


def touch_and_wait(queue, ready):
    ready.put(queue.qsize())
    signal.pause()


def put_and_wait(queue, obj):
    queue.put(obj)
    signal.pause()


def produce(queue, who, acks):
    i = 0
    while True:
        queue.put((who, i))
        acks.put((who, i))
        i += 1


def consume_leases(jobs, done):
    for _ in range(10**9):
        lease = jobs.get_ack()
        done.put(lease.value)
        lease.ack()


class TestPeerLost:
    @pytest.fixture(autouse=True)
    def _alone(self):
        # Another thread could use the queue, and would keep the waits going.
        assert len(sys._current_frames()) == 1, "a test before this one has left threads"

    def test_get_after_kill_of_the_producer_raises(self, ctx):
        queue, ready = ctx.Queue(), ctx.Queue()
        process = start(ctx, touch_and_wait, queue, ready)
        ready.get(timeout=WAIT)
        kill(process)
        with pytest.raises(mp.PeerLost, match="last process that had it"):
            queue.get()

    def test_objects_of_the_dead_come_first(self, ctx):
        queue = ctx.SimpleQueue()
        process = start(ctx, put_and_wait, queue, "last")
        assert connection.wait([process.sentinel], 0) == []
        end = time.monotonic() + WAIT
        while queue.empty():
            assert time.monotonic() < end
            time.sleep(0.001)
        kill(process)
        assert queue.get() == "last"
        with pytest.raises(mp.PeerLost):
            queue.get()

    def test_put_after_kill_of_the_consumer_raises(self, ctx):
        queue, ready = ctx.Queue(1), ctx.Queue()
        process = start(ctx, touch_and_wait, queue, ready)
        ready.get(timeout=WAIT)
        kill(process)
        queue.put(1)
        with pytest.raises(mp.PeerLost):
            queue.put(2)

    def test_second_object_in_process_is_not_a_peer(self, ctx):
        queue, ready, carrier = ctx.Queue(), ctx.Queue(), ctx.Queue()
        carrier.put(queue)
        second = carrier.get()
        process = start(ctx, touch_and_wait, queue, ready)
        ready.get(timeout=WAIT)
        kill(process)
        with pytest.raises(mp.PeerLost):
            second.get()

    def test_timed_calls_raise_empty_and_full(self, ctx):
        # Programs use the time limit to check their workers.
        queue, ready = ctx.Queue(1), ctx.Queue()
        process = start(ctx, touch_and_wait, queue, ready)
        ready.get(timeout=WAIT)
        kill(process)
        with pytest.raises(Empty):
            queue.get(timeout=0.3)
        queue.put(1)
        with pytest.raises(Full):
            queue.put(1, timeout=0.3)

    @pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "JoinableQueue"])
    def test_threads_of_one_process_are_peers(self, ctx, kind):
        # One object, shared by two threads. A process that had it is gone, and the getter waits for longer
        # than the detection of its end takes.
        queue, ready = getattr(ctx, kind)(), ctx.Queue()
        process = start(ctx, put_and_wait, queue, 0)
        assert queue.get() == 0
        kill(process)
        got = []
        thread = threading.Thread(target=lambda: got.append(queue.get()))
        thread.start()
        thread.join(0.5)
        assert thread.is_alive() and got == []
        queue.put(1)
        thread.join(WAIT)
        assert got == [1]

    def test_thread_that_comes_to_put_is_a_peer(self, ctx):
        queue = ctx.Queue()
        process = start(ctx, put_and_wait, queue, 0)
        assert queue.get() == 0
        kill(process)
        timer = threading.Timer(0.5, queue.put, (1,))
        timer.start()
        assert queue.get() == 1
        timer.join()


class TestKills:
    @pytest.mark.parametrize("seed", range(2))
    def test_killed_producers_lose_only_their_last(self, ctx, seed):
        rng = random.Random(seed)
        queue, acks = ctx.Queue(1000), ctx.Queue()
        got, acked = {}, {}

        def take(timeout):
            try:
                who, i = queue.get(timeout=timeout)
            except Empty:
                return False
            # In order, and none twice.
            assert i == got.get(who, -1) + 1
            got[who] = i
            return True

        for who in range(4):
            process = start(ctx, produce, queue, who, acks)
            while who not in got:
                assert take(WAIT)
            until = time.monotonic() + rng.random() / 20
            while time.monotonic() < until:
                take(0.001)
            kill(process)
        while take(0.01):
            pass
        while not acks.empty():
            acked.update([acks.get()])
        for who in range(4):
            # Acknowledged objects arrived, and at most one more: the kill may precede its acknowledgement.
            assert acked.get(who, -1) <= got[who] <= acked.get(who, -1) + 1

    @pytest.mark.parametrize("seed", range(2))
    def test_killed_consumers_lose_nothing_leased(self, ctx, seed):
        rng = random.Random(seed)
        jobs, done = mp.Queue(deliveries=0), ctx.Queue()
        count, seen = 3000, []
        jobs.put_many(range(count))
        while len(set(seen)) < count:
            process = start(ctx, consume_leases, jobs, done)
            seen.append(done.get(timeout=WAIT))
            until = time.monotonic() + rng.random() / 100
            while len(seen) < count and time.monotonic() < until:
                seen += done.get_many(100, timeout=0) if not done.empty() else []
            kill(process)
            while not done.empty():
                seen.append(done.get())
        # Each job arrived. Only a job that was leased at a kill may have arrived twice.
        assert set(seen) == set(range(count))

    def test_kill_of_waiting_consumers_loses_nothing(self, ctx):
        queue, ready = ctx.Queue(), ctx.Queue()
        waiting = [start(ctx, wait_for_object, queue, ready) for _ in range(3)]
        for _ in waiting:
            ready.get(timeout=WAIT)
        for process in waiting:
            kill(process)
        queue.put_many(range(100))
        assert queue.get_many(100, timeout=WAIT) == list(range(100))


def wait_for_object(queue, ready):
    ready.put(True)
    queue.get()
