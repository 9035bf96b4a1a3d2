"""Queues: CPython's scenarios, and additional features."""

import multiprocessing
import os
import pickle
import queue as _queue
import select
import signal
import threading
import time
from multiprocessing import connection

import pytest

import multiproc as mp
from multiproc.queues import Empty, Full
from programs import run_program
from queue_tasks import WAIT, kill, start


def join(*processes):
    for process in processes:
        process.join(WAIT)
        assert process.exitcode == 0


def echo(taken, answers):
    for obj in iter(taken.get, None):
        answers.put(obj)


def put_range(queue, begin, end):
    for i in range(begin, end):
        queue.put(i)


def drain_after(queue, begin, done):
    begin.get(timeout=WAIT)
    got = [queue.get(timeout=WAIT) for _ in range(6)]
    done.put(got)


def work(tasks, done):
    for _ in iter(tasks.get, None):
        tasks.task_done()
    done.put(os.getpid())


def take_task_and_wait(tasks, taken):
    taken.put(tasks.get())
    signal.pause()


def lease_and_wait(jobs, taken):
    lease = jobs.get_ack()
    taken.put((lease.value, lease.deliveries))
    signal.pause()


def exits_at_once(queue):
    queue.put(bytes(100_000))
    os._exit(0)


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("can't be pickled")


class Fails:
    """Raises when it is read."""

    def __reduce__(self):
        return divide, (1, 0)


def divide(a, b):
    return a / b


class TestCPythonQueue:
    def test_put(self, ctx):
        queue, begin, done = ctx.Queue(maxsize=6), ctx.Queue(), ctx.Queue()
        process = start(ctx, drain_after, queue, begin, done)
        assert queue.empty() and not queue.full()
        queue.put(1)
        queue.put(2, True)
        queue.put(3, True, None)
        queue.put(4, False)
        queue.put(5, False, None)
        queue.put_nowait(6)
        assert not queue.empty() and queue.full()
        for call, least in [
            (lambda: queue.put(7, False), 0),
            (lambda: queue.put(7, False, None), 0),
            (lambda: queue.put_nowait(7), 0),
            (lambda: queue.put(7, True, 0.05), 0.05),
            (lambda: queue.put(7, False, 1000), 0),
            (lambda: queue.put(7, True, timeout=0.05), 0.05),
        ]:
            begun = time.monotonic()
            with pytest.raises(Full):
                call()
            assert least <= time.monotonic() - begun < least + 5
        begin.put(None)
        assert done.get(timeout=WAIT) == [1, 2, 3, 4, 5, 6]
        assert queue.empty() and not queue.full()
        join(process)

    def test_get(self, ctx):
        queue = ctx.Queue()
        process = start(ctx, put_range, queue, 2, 6)
        join(process)
        assert not queue.empty()
        assert queue.get(True, None) == 2
        assert queue.get(True) == 3
        assert queue.get(timeout=1) == 4
        assert queue.get_nowait() == 5
        assert queue.empty()
        for call, least in [
            (lambda: queue.get(False), 0),
            (lambda: queue.get(False, None), 0),
            (lambda: queue.get_nowait(), 0),
            (lambda: queue.get(True, 0.05), 0.05),
            (lambda: queue.get(False, 1000), 0),
            (lambda: queue.get(timeout=0.05), 0.05),
        ]:
            begun = time.monotonic()
            with pytest.raises(Empty):
                call()
            assert least <= time.monotonic() - begun < least + 5

    def test_fork(self, ctx):
        # Objects of this process come before those of a process that is started after them.
        queue = ctx.Queue()
        put_range(queue, 0, 10)
        process = start(ctx, put_range, queue, 10, 20)
        assert [queue.get(timeout=WAIT) for _ in range(20)] == list(range(20))
        with pytest.raises(Empty):
            queue.get(False)
        join(process)

    def test_qsize(self):
        queue = mp.Queue()
        assert queue.qsize() == 0
        for size in range(1, 4):
            queue.put(size)
            assert queue.qsize() == size
        queue.get()
        assert queue.qsize() == 2
        queue.get()
        queue.get()
        assert queue.qsize() == 0

    def test_task_done(self, ctx):
        tasks, done = ctx.JoinableQueue(), ctx.Queue()
        workers = [start(ctx, work, tasks, done) for _ in range(4)]
        for i in range(10):
            tasks.put(i)
        assert tasks.join()
        for _ in workers:
            tasks.put(None)
        join(*workers)

    def test_timeout(self):
        queue = mp.Queue()
        begun = time.monotonic()
        with pytest.raises(Empty):
            queue.get(timeout=0.2)
        assert time.monotonic() - begun >= 0.2

    def test_queue_feeder_donot_stop_onexc(self):
        # No thread puts: the error is the caller's, and the queue works as before.
        queue = mp.Queue(maxsize=1)
        with pytest.raises(RuntimeError, match="can't be pickled"):
            queue.put(Unpicklable())
        queue.put(True)
        assert queue.get(timeout=WAIT) is True
        assert queue.empty()

    def test_closed_queue_empty_exceptions(self):
        for queue in mp.Queue(), mp.JoinableQueue():
            queue.close()
            queue.join_thread()
            assert queue.empty()
        queue = mp.Queue()
        queue.put("foo")
        queue.close()
        with pytest.raises(OSError, match="is closed"):
            queue.empty()

    def test_closed_queue_put_get_exceptions(self):
        for queue in mp.Queue(), mp.JoinableQueue():
            queue.close()
            with pytest.raises(ValueError, match="is closed"):
                queue.put("foo")
            with pytest.raises(ValueError, match="is closed"):
                queue.get()


class TestCPythonSimpleQueue:
    def test_empty(self, ctx):
        there, back = ctx.SimpleQueue(), ctx.SimpleQueue()
        process = start(ctx, echo, there, back)
        assert back.empty()
        there.put(True)
        assert back.get() is True
        there.put(None)
        join(process)
        assert back.empty() and there.empty()

    def test_empty_exceptions(self):
        queue = mp.SimpleQueue()
        queue.close()
        with pytest.raises(OSError, match="is closed"):
            queue.empty()

    def test_close(self):
        queue = mp.SimpleQueue()
        queue.close()
        queue.close()

    def test_closed(self):
        queue = mp.SimpleQueue()
        queue.close()
        with pytest.raises(OSError, match="is closed"):
            queue.put(1)
        with pytest.raises(OSError, match="is closed"):
            queue.get()


class TestQueue:
    @pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "JoinableQueue"])
    def test_received_queue_has_its_class(self, kind):
        carrier, queue = mp.Queue(), getattr(mp, kind)()
        carrier.put(queue)
        received = carrier.get()
        assert type(received) is getattr(mp, kind)
        queue.put(5)
        assert received.get() == 5

    def test_pickle_outside_a_message_is_refused(self):
        with pytest.raises(RuntimeError, match="only as a part of a message"):
            pickle.dumps(mp.Queue())

    def test_put_many_and_get_many_keep_order(self):
        queue = mp.Queue()
        assert queue.put_many(range(100)) == 100
        assert queue.get_many(30) == list(range(30))
        assert queue.get_many(1000, timeout=0) == list(range(30, 100))
        with pytest.raises(Empty):
            queue.get_many(5, timeout=0.01)
        assert queue.get_many(0) == []

    def test_put_many_reports_its_count_when_full(self):
        queue = mp.Queue(4)
        with pytest.raises(Full) as caught:
            queue.put_many(range(10), timeout=0.01)
        assert caught.value.put == 4
        assert queue.get_many(10) == [0, 1, 2, 3]

    def test_put_many_of_unpicklable_puts_nothing(self):
        queue = mp.Queue()
        with pytest.raises(RuntimeError, match="can't be pickled"):
            queue.put_many([1, 2, Unpicklable()])
        assert queue.empty()

    def test_put_many_waits_for_consumers(self, ctx):
        queue, done, begin = ctx.Queue(2), ctx.Queue(), ctx.Queue()
        process = start(ctx, drain_after, queue, begin, done)
        begin.put(None)
        assert queue.put_many(range(6)) == 6
        assert done.get(timeout=WAIT) == list(range(6))
        join(process)

    def test_get_many_error_has_the_readable_objects(self):
        queue = mp.Queue()
        queue.put_many([1, Fails(), 3])
        with pytest.raises(ZeroDivisionError) as caught:
            queue.get_many(3)
        assert caught.value.objects == [1, 3]

    def test_iteration_ends_at_shutdown(self, ctx):
        queue, back = ctx.Queue(), ctx.Queue()
        queue.put_many([1, 2, 3])
        queue.shutdown()
        assert list(queue) == [1, 2, 3]
        with pytest.raises(mp.ShutDown):
            queue.get()
        with pytest.raises(mp.ShutDown):
            queue.put(4)
        with pytest.raises(mp.ShutDown):
            queue.get_many(4)

    def test_immediate_shutdown_drops_objects(self):
        for queue in mp.Queue(), mp.JoinableQueue():
            queue.put_many([1, 2, 3])
            queue.shutdown(immediate=True)
            assert queue.empty()
            with pytest.raises(mp.ShutDown):
                queue.get()
        assert queue.join()

    def test_shutdown_wakes_waiting_processes(self, ctx):
        queue, ready = ctx.Queue(), ctx.Queue()
        process = start(ctx, iterate, queue, ready)
        ready.get(timeout=WAIT)
        queue.shutdown()
        join(process)

    def test_close_ends_a_wait_of_a_thread(self):
        queue, errors = mp.Queue(), []

        def get():
            try:
                queue.get()
            except ValueError as error:
                errors.append(str(error))

        thread = threading.Thread(target=get)
        thread.start()
        queue.close()
        thread.join(WAIT)
        assert len(errors) == 1 and "is closed" in errors[0]

    def test_bytes_bound_the_queue(self):
        for kind in mp.Queue, mp.JoinableQueue:
            with pytest.raises(ValueError, match="bytes must not be negative"):
                kind(bytes=-1)
        queue = mp.Queue(bytes=10_000)
        queue.put(bytes(6000))
        with pytest.raises(Full):
            queue.put_nowait(bytes(6000))
        with pytest.raises(ValueError, match="may contain at most"):
            queue.put(bytes(20_000))
        assert len(queue.get()) == 6000
        queue.put_nowait(bytes(6000))

    def test_large_maxsize_takes_no_memory(self):
        queue = mp.Queue(2**31 - 1)
        queue.put(1)
        assert not queue.full()
        queue = mp.Queue(1_000_000)
        assert repr(queue) == "<multiproc.Queue: 0 of 1000000 objects>"

    def test_repr_names_class_and_size(self):
        queue = mp.Queue(3)
        queue.put(1)
        assert repr(queue) == "<multiproc.Queue: 1 of 3 objects>"
        assert repr(mp.JoinableQueue()) == "<multiproc.JoinableQueue: 0 objects>"
        queue.close()
        assert repr(queue) == "<multiproc.Queue: closed>"

    def test_fileno_is_readable_while_it_has_objects(self, ctx):
        queue = ctx.Queue()
        assert select.select([queue], [], [], 0)[0] == []
        process = start(ctx, put_range, queue, 0, 2)
        assert select.select([queue], [], [], WAIT)[0] == [queue]
        join(process)
        assert connection.wait([queue, process.sentinel], WAIT)
        assert [queue.get(), queue.get()] == [0, 1]
        assert select.select([queue], [], [], 0)[0] == []
        queue.shutdown()
        assert select.select([queue], [], [], WAIT)[0] == [queue]

    def test_exiting_producer_loses_nothing(self, ctx):
        queue = ctx.Queue()
        join(start(ctx, exits_at_once, queue))
        assert queue.get(timeout=WAIT) == bytes(100_000)

    def test_nan_timeout_is_refused(self):
        with pytest.raises(ValueError, match="not a number"):
            mp.Queue().get(timeout=float("nan"))

    def test_context_kept_objects_are_same_queue(self):
        ctx = multiprocessing.get_context("spawn")
        queue = mp.Queue(2, ctx=ctx)
        queue.put(1)
        assert queue.get() == 1


def iterate(queue, ready):
    ready.put(True)
    assert list(queue) == []


class TestLease:
    def test_exception_gives_the_object_back(self):
        queue = mp.Queue()
        queue.put("job")
        with pytest.raises(ZeroDivisionError):
            with queue.get_ack() as job:
                divide(len(job), 0)
        lease = queue.get_ack(timeout=WAIT)
        assert (lease.value, lease.deliveries) == ("job", 2)
        lease.ack()
        with pytest.raises(ValueError):
            lease.ack()
        with pytest.raises(Empty):
            queue.get_ack(False)

    def test_block_acknowledges(self):
        queue = mp.Queue()
        queue.put("job")
        with queue.get_ack() as job:
            assert job == "job"
        assert queue.empty()
        with pytest.raises(Empty):
            queue.get_ack(timeout=0)

    def test_kill_redelivers_the_object(self, ctx):
        jobs, taken = ctx.Queue(), ctx.Queue()
        jobs.put("job")
        for delivery in range(1, 4):
            process = start(ctx, lease_and_wait, jobs, taken)
            assert taken.get(timeout=WAIT) == ("job", delivery)
            kill(process)
        with jobs.get_ack(timeout=WAIT) as job:
            assert job == "job"

    def test_object_that_kills_is_set_aside(self, ctx):
        jobs, taken = mp.Queue(deliveries=1), ctx.Queue()
        jobs.put("kills")
        process = start(ctx, lease_and_wait, jobs, taken)
        taken.get(timeout=WAIT)
        kill(process)
        with pytest.raises(Empty):
            jobs.get_ack(timeout=0.3)
        assert jobs.dead_letter() == "kills"
        with pytest.raises(Empty):
            jobs.dead_letter()


class TestJoinableQueue:
    def test_too_many_task_done_is_an_error(self):
        tasks = mp.JoinableQueue()
        with pytest.raises(ValueError, match="too many times"):
            tasks.task_done()
        tasks.put(1)
        tasks.get()
        tasks.task_done()
        with pytest.raises(ValueError, match="too many times"):
            tasks.task_done()

    def test_join_waits_for_unfinished_tasks(self):
        tasks = mp.JoinableQueue()
        tasks.put_many([1, 2])
        assert tasks.get_many(5) == [1, 2]
        assert not tasks.join(timeout=0.05)
        tasks.task_done()
        assert not tasks.join(timeout=0.05)
        tasks.task_done()
        assert tasks.join()

    def test_task_done_of_another_thread_counts(self):
        tasks = mp.JoinableQueue()
        tasks.put(1)
        thread = threading.Thread(target=tasks.get)
        thread.start()
        thread.join(WAIT)
        tasks.task_done()
        assert tasks.join(timeout=WAIT)

    def test_task_done_before_get_counts(self):
        tasks = mp.JoinableQueue()
        tasks.put_many([1, 2])
        tasks.task_done()
        assert not tasks.join(timeout=0.05)
        assert tasks.get() == 1
        assert not tasks.join(timeout=0.05)
        tasks.task_done()
        assert tasks.join(timeout=WAIT)
        with pytest.raises(ValueError, match="too many times"):
            tasks.task_done()
        assert tasks.get() == 2
        assert tasks.join(timeout=WAIT)
        with pytest.raises(ValueError, match="too many times"):
            tasks.task_done()

    def test_task_done_of_another_process_counts(self, ctx):
        tasks = ctx.JoinableQueue()
        for count in range(2):
            tasks.put(count)
            assert tasks.get(timeout=WAIT) == count
            process = start(ctx, tasks.task_done)
            assert tasks.join(timeout=WAIT)
            process.join(WAIT)
            assert process.exitcode == 0
            with pytest.raises(ValueError, match="too many times"):
                tasks.task_done()

    def test_task_done_by_another_is_not_lost(self, ctx):
        tasks, taken = ctx.JoinableQueue(), ctx.Queue()
        tasks.put("a")
        process = start(ctx, take_task_and_wait, tasks, taken)
        assert taken.get(timeout=WAIT) == "a"
        tasks.task_done()
        kill(process)
        assert tasks.join(timeout=WAIT)
        tasks.put("b")
        assert tasks.get() == "b"
        assert not tasks.join(timeout=0.05)
        tasks.task_done()
        assert tasks.join(timeout=WAIT)
        assert tasks.dead_letter() == "a"
        tasks.put("c")
        assert not tasks.join(timeout=0.05)

    def test_killed_consumer_ends_join(self, ctx):
        tasks, taken = ctx.JoinableQueue(), ctx.Queue()
        tasks.put("a")
        process = start(ctx, take_task_and_wait, tasks, taken)
        assert taken.get(timeout=WAIT) == "a"
        assert not tasks.join(timeout=0.05)
        kill(process)
        with pytest.raises(mp.PeerLost, match="1 task not done"):
            tasks.join(timeout=WAIT)
        assert tasks.dead_letter() == "a"
        assert tasks.join(timeout=WAIT)

    def test_is_a_queue(self):
        tasks = mp.JoinableQueue(1)
        assert isinstance(tasks, mp.Queue)
        tasks.put(1)
        with pytest.raises(Full):
            tasks.put(2, timeout=0.01)


def test_queue_module_classes_are_raised():
    assert Full is _queue.Full and Empty is _queue.Empty


def test_put_waits_while_the_program_has_too_many_messages():
    program = """
import multiproc as mp, threading
queue = mp.Queue()
count = 0
try:
    while True:
        queue.put(count, timeout=0.05)
        count += 1
except mp.queues.Full:
    pass
assert 0 < count < 4096, count
putting = threading.Thread(target=queue.put, args=("last",), daemon=True)
putting.start()
got = [queue.get(timeout=20) for _ in range(count + 1)]
putting.join(20)
assert not putting.is_alive() and got == [*range(count), "last"]
print("ended")
"""
    environment = {**os.environ, "MP_ARENA_MESSAGES": "4096"}
    assert run_program(program, env=environment) == ("ended\n", "", 0)


def test_pickler_puts_at_its_end():
    program = """
import pickle
class Pickler(pickle.Pickler):
    def __del__(self):
        queue.put("end")
pickle.Pickler = Pickler
import multiproc as mp
class Nested:
    def __reduce__(self):
        queue.put("nested")
        return str, ()
queue = mp.Queue()
queue.put(Nested())
print([queue.get(timeout=20) for _ in range(3)])
"""
    out, _, code = run_program(program)
    assert (out, code) == ("['nested', 'end', '']\n", 0)
