"""Shutdown of queues: further scenarios of CPython's ``_test_multiprocessing.py``."""

import pytest

import multiproc as mp
from queue_tasks import WAIT, start


def call(queue, name, results, *args):
    try:
        results.put(getattr(queue, name)(*args))
    except mp.ShutDown:
        results.put("shut down")


def join_tasks(queue, ready, results):
    ready.put(None)
    queue.join()
    results.put("joined")


class Joining:
    """A process that waits in ``join`` of the queue, if it has one."""

    def __init__(self, ctx, queue):
        self.process, self.results = None, mp.Queue()
        if isinstance(queue, mp.queues.JoinableQueue):
            ready = mp.Queue()
            self.process = start(ctx, join_tasks, queue, ready, self.results)
            ready.get(timeout=WAIT)

    def is_waiting(self):
        return self.results.empty() and self.process.is_alive()

    def end(self):
        if self.process is not None:
            assert self.results.get(timeout=WAIT) == "joined"
            self.process.join(WAIT)
            assert self.process.exitcode == 0


def in_process(ctx, queue, name, *args):
    results = mp.Queue()
    process = start(ctx, call, queue, name, results, *args)
    result = results.get(timeout=WAIT)
    process.join(WAIT)
    return result


def check_shut_down(ctx, queue):
    assert in_process(ctx, queue, "put", "data") == "shut down"
    assert in_process(ctx, queue, "get") == "shut down"
    with pytest.raises(mp.ShutDown):
        queue.put_nowait("data")
    with pytest.raises(mp.ShutDown):
        queue.get_nowait()


@pytest.fixture(params=["Queue", "JoinableQueue"])
def kind(request):
    """Class of queues."""
    return getattr(mp, request.param)


class TestCPythonShutdown:
    """Scenarios of ``_TestQueue``."""

    def test_shutdown_empty(self, forkserver, kind):
        queue = kind()
        joining = Joining(forkserver, queue)
        queue.shutdown(immediate=False)
        assert queue.qsize() == 0
        joining.end()
        check_shut_down(forkserver, queue)

    def test_shutdown_nonempty(self, forkserver, kind):
        queue = kind(1)
        queue.put("data")
        joining = Joining(forkserver, queue)
        queue.shutdown(immediate=False)
        assert queue.qsize() == 1
        # A process that ended here without `task_done` would make `join` fail.
        assert queue.get() == "data"
        if joining.process is not None:
            assert joining.is_waiting()
            queue.task_done()
        joining.end()
        check_shut_down(forkserver, queue)

    def test_shutdown_immediate(self, forkserver, kind):
        queue = kind()
        queue.put("data")
        joining = Joining(forkserver, queue)
        queue.shutdown(immediate=True)
        assert queue.qsize() == 0
        joining.end()
        check_shut_down(forkserver, queue)
        if joining.process is not None:
            with pytest.raises(ValueError):
                queue.task_done()

    def test_shutdown_immediate_with_unfinished(self, forkserver):
        queue = mp.JoinableQueue()
        queue.put("data")
        queue.put("data")
        joining = Joining(forkserver, queue)
        assert queue.get(timeout=WAIT) == "data"
        queue.shutdown(immediate=True)
        assert queue.qsize() == 0 and joining.is_waiting()
        assert in_process(forkserver, queue, "put", "data") == "shut down"
        check_shut_down(forkserver, queue)
        queue.task_done()
        with pytest.raises(ValueError):
            queue.task_done()
        joining.end()
