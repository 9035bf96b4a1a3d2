"""``spawn`` and ``start_processes``: the scenarios of torch's ``test_multiprocessing_spawn.py``, and more."""

import os
import pickle
import signal
import sys
import time
from multiprocessing import connection

import pytest

import multiproc as mp

LIMIT = 20


def success(index):
    assert type(index) is int


def put_index(index, queue, *args):
    queue.put((index, args))


def fail_in_one(index, failing):
    if index == failing:
        raise ValueError(f"legitimate exception from process {index}")
    time.sleep(LIMIT)


def fail_in_all(index):
    raise ValueError(f"legitimate exception from process {index}")


def kill_in_one(index, failing, number):
    if index == failing:
        os.kill(os.getpid(), number)
    time.sleep(LIMIT)


def exit_in_one(index, failing, code):
    if index == failing:
        sys.exit(code)
    time.sleep(LIMIT)


def wait_for(index, queue):
    queue.get(timeout=LIMIT)


def interrupt_itself(index):
    raise KeyboardInterrupt


def ends_after_sigterm(index, started, ended):
    if index == 0:
        started.get(timeout=LIMIT)
        sys.exit(3)

    def end(number, frame):
        ended.put("at SIGTERM")
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    started.put(None)
    time.sleep(LIMIT)


def ignores_sigterm(index, started):
    if index == 0:
        started.get(timeout=LIMIT)
        sys.exit(3)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    started.put(None)
    time.sleep(LIMIT)


def ends_within_grace(index, started, ended):
    if index == 0:
        started.put(os.getpid())
        sys.exit(3)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    wait_for_end(started.get(timeout=LIMIT))
    # The process must not get the signal.
    ended.put("at SIGTERM" if signal.sigtimedwait({signal.SIGTERM}, 0.5) else "by itself")


def wait_for_end(pid):
    end = time.monotonic() + LIMIT
    while True:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] in "ZX":
                    return
        except OSError:
            return
        assert time.monotonic() < end
        time.sleep(0.01)


def nested_child(index, pids, go):
    pids.put(os.getpid())
    go.get(timeout=LIMIT)
    time.sleep(LIMIT)


def nested(index, pids, nested_pids, go, method):
    pids.put(os.getpid())
    context = mp.start_processes(
        fn=nested_child, args=(nested_pids, go), nprocs=2, join=False, daemon=False, start_method=method
    )
    context.join()


def is_daemon(index, queue):
    queue.put(mp.current_process().daemon)


class Unpicklable:
    """Can be pickled once."""

    def __init__(self, left):
        self.left = left

    def __reduce__(self):
        self.left -= 1
        if self.left < 0:
            raise ValueError("not again")
        return os.getpid, ()


class TestTorchSpawn:
    def test_success(self, method):
        assert mp.start_processes(success, nprocs=2, start_method=method) is None

    def test_success_non_blocking(self, method):
        context = mp.start_processes(success, nprocs=2, join=False, start_method=method)
        # After all processes, joining again does nothing.
        while not context.join(timeout=None):
            pass
        assert context.join(timeout=0) and context.join()

    def test_first_argument_index(self, method):
        queue = mp.SimpleQueue()
        mp.start_processes(put_index, args=(queue, "a", {"b": 1}), nprocs=3, start_method=method)
        got = sorted(queue.get() for _ in range(3))
        assert got == [(index, ("a", {"b": 1})) for index in range(3)]

    @pytest.mark.parametrize("failing", [0, 1])
    def test_exception_single(self, method, failing):
        with pytest.raises(mp.ProcessRaisedException) as raised:
            mp.start_processes(fail_in_one, args=(failing,), nprocs=2, start_method=method)
        text = str(raised.value)
        assert f"\nValueError: legitimate exception from process {failing}" in text
        assert f"-- Process {failing} terminated with the following error:" in text
        assert "Traceback (most recent call last):" in text and "in fail_in_one" in text
        assert raised.value.error_index == failing and raised.value.error_pid == raised.value.pid > 0

    def test_exception_all(self, method):
        with pytest.raises(Exception, match="\nValueError: legitimate exception from process (0|1)"):
            mp.start_processes(fail_in_all, nprocs=2, start_method=method)

    @pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL, signal.SIGUSR1])
    def test_terminate_signal(self, method, number):
        name = signal.Signals(number).name
        with pytest.raises(mp.ProcessExitedException) as raised:
            mp.start_processes(kill_in_one, args=(1, int(number)), nprocs=2, start_method=method)
        assert str(raised.value) == f"process 1 terminated with signal {name}"
        assert (raised.value.exit_code, raised.value.signal_name) == (-number, name)
        assert raised.value.error_index == 1

    def test_terminate_unknown_signal(self):
        number = signal.SIGRTMIN + 3
        with pytest.raises(mp.ProcessExitedException, match=f"<Unknown signal {number}>"):
            mp.spawn(kill_in_one, args=(0, int(number)), nprocs=1)

    @pytest.mark.parametrize("code", [123, 1])
    def test_terminate_exit(self, method, code):
        with pytest.raises(mp.ProcessExitedException) as raised:
            mp.start_processes(exit_in_one, args=(0, code), nprocs=2, start_method=method)
        assert str(raised.value) == f"process 0 terminated with exit code {code}"
        assert (raised.value.exit_code, raised.value.signal_name) == (code, None)

    def test_terminate_exit_grace_period(self, method):
        started, ended = mp.Queue(), mp.Queue()
        context = mp.start_processes(
            ends_within_grace, args=(started, ended), nprocs=2, join=False, start_method=method
        )
        with pytest.raises(mp.ProcessExitedException):
            context.join(grace_period=LIMIT)
        assert ended.get(timeout=0) == "by itself"

    def test_sigterm_lets_processes_clean_up(self, method):
        started, ended = mp.Queue(), mp.Queue()
        context = mp.start_processes(
            ends_after_sigterm, args=(started, ended), nprocs=2, join=False, start_method=method
        )
        with pytest.raises(mp.ProcessExitedException, match="exit code 3"):
            context.join()
        assert ended.get(timeout=0) == "at SIGTERM"
        assert [process.exitcode for process in context.processes] == [3, 0]

    def test_sigkill_follows_the_grace_period(self, method):
        started = mp.Queue()
        context = mp.start_processes(
            ignores_sigterm, args=(started,), nprocs=2, join=False, start_method=method
        )
        with pytest.raises(mp.ProcessExitedException, match="exit code 3"):
            context.join(grace_period=0.1)
        assert [process.exitcode for process in context.processes] == [3, -signal.SIGKILL]

    def test_process_exited(self):
        for error in [
            mp.ProcessRaisedException("message", 1, 2),
            mp.ProcessExitedException("message", 1, 2, 3),
            mp.ProcessExitedException("message", 1, 2, -9, "SIGKILL"),
        ]:
            copy = pickle.loads(pickle.dumps(error))
            assert type(copy) is type(error) and vars(copy) == vars(error) and str(copy) == "message"
            assert isinstance(copy, mp.ProcessException)

    def test_nested(self, method):
        pids, nested_pids, go = mp.Queue(), mp.Queue(), mp.Queue()
        context = mp.start_processes(
            nested, args=(pids, nested_pids, go, method), nprocs=1, join=False, start_method=method
        )
        (pid,) = context.pids()
        assert pids.get(timeout=LIMIT) == pid
        ends = [os.pidfd_open(nested_pids.get(timeout=LIMIT)) for _ in range(2)]
        os.kill(pid, signal.SIGTERM)
        with pytest.raises(mp.ProcessExitedException, match="SIGTERM"):
            context.join()
        for end in ends:
            assert connection.wait([end], LIMIT) == [end]
            os.close(end)


class TestStartProcesses:
    def test_fork_is_refused_with_the_reason(self):
        with pytest.raises(ValueError, match="use 'forkserver'"):
            mp.start_processes(success, start_method="fork")
        with pytest.raises(ValueError, match="cannot find context"):
            mp.start_processes(success, start_method="thread")

    def test_spawn_with_another_method_warns(self):
        queue = mp.Queue()
        with pytest.warns(FutureWarning, match="start_processes"):
            mp.spawn(start_method_of_child, args=(queue,), start_method="forkserver")
        assert queue.get(timeout=LIMIT) == "spawn"

    def test_join_times_out(self, method):
        go = mp.Queue()
        context = mp.start_processes(wait_for, args=(go,), nprocs=2, join=False, start_method=method)
        assert not context.join(timeout=0.05) and not context.join(timeout=0)
        go.put(None)
        go.put(None)
        end = time.monotonic() + LIMIT
        while not context.join(timeout=1):
            assert time.monotonic() < end
        assert [process.exitcode for process in context.processes] == [0, 0]

    def test_daemon_option_makes_daemons(self, method):
        for daemon in [False, True]:
            queue = mp.Queue()
            mp.start_processes(is_daemon, args=(queue,), daemon=daemon, start_method=method)
            assert queue.get(timeout=LIMIT) is daemon

    def test_interrupt_in_a_process_is_an_error(self, method):
        with pytest.raises(mp.ProcessRaisedException, match="KeyboardInterrupt"):
            mp.start_processes(interrupt_itself, start_method=method)

    def test_failed_start_ends_started_processes(self, method):
        before = set(mp.active_children())
        with pytest.raises(ValueError, match="not again"):
            mp.start_processes(
                fail_in_one, args=(Unpicklable(2),), nprocs=5, join=False, start_method=method
            )
        assert set(mp.active_children()) == before

    def test_no_processes_is_success(self, method):
        assert mp.start_processes(success, nprocs=0, start_method=method) is None

    def test_former_name_of_the_context_warns(self):
        with pytest.warns(UserWarning, match="ProcessContext"):
            context = mp.SpawnContext([], None)
        assert isinstance(context, mp.ProcessContext) and context.join()

    def test_tracebacks_of_large_errors_arrive(self, method):
        with pytest.raises(mp.ProcessRaisedException) as raised:
            mp.start_processes(fail_largely, start_method=method)
        assert "x" * 1_000_000 in str(raised.value)


def start_method_of_child(index, queue):
    queue.put(mp.get_start_method())


def fail_largely(index):
    raise ValueError("x" * 1_000_000)


def test_interrupted_process_exits_with_its_code(method):
    context = mp.start_processes(interrupt_itself, join=False, start_method=method)
    with pytest.raises(mp.ProcessRaisedException, match="KeyboardInterrupt"):
        context.join(LIMIT)
    assert context.processes[0].exitcode == 128 + signal.SIGINT


def fail_in_order(index, first, gate):
    if index != first:
        gate.get(timeout=LIMIT)
    raise ValueError(f"legitimate exception from process {index}")


@pytest.mark.parametrize("first", [0, 1])
def test_traceback_is_that_of_the_failed_process(first):
    gate = mp.Queue()
    context = mp.start_processes(
        fail_in_order, args=(first, gate), nprocs=2, join=False, start_method="forkserver"
    )
    context.processes[first].join(LIMIT)
    gate.put(None)
    context.processes[1 - first].join(LIMIT)
    with pytest.raises(mp.ProcessRaisedException) as raised:
        context.join(LIMIT)
    assert f"exception from process {raised.value.error_index}\n" in str(raised.value) + "\n"
