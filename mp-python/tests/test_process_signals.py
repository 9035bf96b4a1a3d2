"""Signals and exits of processes, their parents and their children."""

import os
import signal
import sys
import threading
from multiprocessing import connection

import pytest

import multiproc as mp
from process_tasks import LIMIT, block, run_process, wait_for


def read_stdin(queue):
    queue.put(sys.stdin.read())


def start_grandchild(queue):
    child = mp.Process(target=block, args=(queue,))
    child.start()
    child.join()


def names_of_children(queue):
    queue.put([child.name for child in mp.active_children()])


def ignore_sigterm(queue):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    queue.put(None)
    block()


class TestCPythonSignals:
    def test_process_that_ignores_sigterm_is_killed(self, ctx):
        queue = mp.Queue()
        process = ctx.Process(target=ignore_sigterm, args=(queue,), daemon=True)
        process.start()
        queue.get(timeout=LIMIT)
        process.terminate()
        process.join(0.1)
        assert process.is_alive()
        process.kill()
        process.join(LIMIT)
        assert process.exitcode == -signal.SIGKILL

    @pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGUSR1])
    def test_signal_is_the_exit_code(self, ctx, number):
        ready = mp.Queue()
        process = ctx.Process(target=block, args=(ready,), daemon=True)
        process.start()
        ready.get(timeout=LIMIT)
        os.kill(process.pid, number)
        process.join(LIMIT)
        assert process.exitcode == -number

    def test_os_exit_is_the_exit_code(self, ctx):
        assert run_process(ctx, os._exit, 7).exitcode == 7

    def test_abort_is_the_exit_code(self, ctx):
        assert run_process(ctx, os.abort).exitcode == -signal.SIGABRT

    def test_grandchild_ends_with_its_parent(self, ctx):
        queue = mp.Queue()
        process = ctx.Process(target=start_grandchild, args=(queue,))
        process.start()
        grandchild = os.pidfd_open(queue.get(timeout=LIMIT))
        process.kill()
        process.join(LIMIT)
        assert connection.wait([grandchild], LIMIT) == [grandchild]
        os.close(grandchild)

    def test_process_outlives_the_thread_that_started_it(self, ctx):
        queue, started = mp.Queue(), []

        def start():
            started.append(ctx.Process(target=wait_for, args=(queue,)))
            started[0].start()

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        assert started[0].is_alive()
        queue.put(None)
        started[0].join(LIMIT)
        assert started[0].exitcode == 0

    def test_stdin_is_empty(self, ctx):
        queue = mp.Queue()
        run_process(ctx, read_stdin, queue)
        assert queue.get(timeout=LIMIT) == ""

    def test_child_does_not_inherit_children(self, ctx):
        queue, go = mp.Queue(), mp.Queue()
        other = ctx.Process(target=wait_for, args=(go,))
        other.start()
        run_process(ctx, names_of_children, queue)
        assert queue.get(timeout=LIMIT) == []
        go.put(None)
        other.join(LIMIT)
