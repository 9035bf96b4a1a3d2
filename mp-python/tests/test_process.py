"""``Process``, contexts, start methods: scenarios of CPython's ``_test_multiprocessing.py``, and more."""

import logging
import os
import pickle
import signal
import sys
import threading
import time
from multiprocessing import connection

import pytest

import multiproc as mp
from process_tasks import LIMIT, block, run_process, wait_for
from programs import run_program, run_script


def send(queue, *values, **named):
    process = mp.current_process()
    queue.put((values, named, process.name, bytes(process.authkey), process.pid, process.daemon))


def start_method_of_child(queue):
    queue.put((mp.get_start_method(), mp.get_context().get_start_method()))


def start_daemon_child(queue):
    try:
        mp.Process(target=os.getpid).start()
    except AssertionError as error:
        queue.put(str(error))


def raise_error():
    1 // 0


def parent_of_child(queue, go):
    parent = mp.parent_process()
    queue.put((parent.pid, parent.name, parent.is_alive(), parent.ident))
    go.get(timeout=LIMIT)


def count_recursively(queue, path):
    queue.put(path)
    if len(path) < 2:
        for number in range(2):
            child = mp.get_context().Process(target=count_recursively, args=(queue, [*path, number]))
            child.start()
            child.join()


def levels(queue):
    queue.put((mp.get_logger().getEffectiveLevel(), len(mp.get_logger().handlers)))


def interrupted(queue):
    try:
        queue.put(None)
        block()
    except KeyboardInterrupt:
        queue.put("interrupted")


def run_thread(queue):
    # The thread puts its object after this function has returned.
    main = threading.main_thread()
    threading.Thread(target=lambda: (main.join(LIMIT), queue.put(main.is_alive()))).start()


def open_file_at_exit(queue):
    import atexit

    atexit.register(queue.put, "atexit")
    atexit.register(queue.put, "registered last")


class Upper(mp.Process):
    def __init__(self, inbox, outbox):
        super().__init__(name="upper", daemon=True)
        self.inbox, self.outbox = inbox, outbox
        self.sent = {}

    def run(self):
        for text in iter(self.inbox.get, None):
            self.outbox.put(text.upper())


class Fails(mp.Process):
    def run(self):
        sys.stderr.write("before\n")
        raise ValueError("from run")


class Unpicklable:
    def __reduce__(self):
        raise ValueError("not today")


class Unreadable:
    def __reduce__(self):
        return int, ("not a number",)


class TestCPythonProcess:
    """Scenarios of ``_TestProcess``."""

    def test_current(self):
        current = mp.current_process()
        assert current.is_alive() and not current.daemon
        assert isinstance(current.authkey, bytes) and len(current.authkey) > 0
        assert current.ident == current.pid == os.getpid()
        assert current.exitcode is None

    def test_daemon_argument(self, ctx):
        assert not ctx.Process(target=block).daemon
        assert ctx.Process(target=block, daemon=True).daemon
        assert not ctx.Process(target=block, daemon=False).daemon

    def test_args_argument(self, ctx):
        for args, expected in [((1,), (1,)), ([1], (1,)), ("ab", ("a", "b")), ((), ())]:
            assert ctx.Process(target=block, args=args)._args == expected
        with pytest.raises(TypeError):
            ctx.Process(target=block, args=3)
        with pytest.raises(AssertionError):
            ctx.Process("group", target=block)

    def test_process(self, ctx):
        queue, go = mp.Queue(), mp.Queue()
        process = ctx.Process(
            target=send, name="me", args=(queue, 1, (2,)), kwargs={"key": [3], "go": None}, daemon=True
        )
        assert process.exitcode is None and not process.is_alive() and process.ident is None
        assert process.daemon and process not in mp.active_children()
        assert "initial" in repr(process) and "me" in repr(process)
        process.start()
        assert queue.get(timeout=LIMIT) == (
            (1, (2,)), {"key": [3], "go": None}, "me", bytes(process.authkey), process.pid, True
        )
        process.join(LIMIT)
        assert process.exitcode == 0 and not process.is_alive()
        assert process not in mp.active_children()
        assert "stopped" in repr(process)
        del go

    def test_active_children(self, ctx):
        queue = mp.Queue()
        process = ctx.Process(target=wait_for, args=(queue,))
        assert type(mp.active_children()) is list and process not in mp.active_children()
        process.start()
        assert process in mp.active_children() and process.is_alive()
        assert "started" in repr(process)
        queue.put(None)
        process.join(LIMIT)
        assert process not in mp.active_children()

    def test_parent_process(self, ctx):
        assert mp.parent_process() is None
        queue, go = mp.Queue(), mp.Queue()
        process = ctx.Process(target=parent_of_child, args=(queue, go))
        process.start()
        assert queue.get(timeout=LIMIT) == (os.getpid(), mp.current_process().name, True, os.getpid())
        go.put(None)
        process.join(LIMIT)
        assert process.exitcode == 0

    def test_recursion(self, ctx):
        queue = mp.Queue()
        assert run_process(ctx, count_recursively, queue, []).exitcode == 0
        assert [queue.get(timeout=LIMIT) for _ in range(7)] == [
            [], [0], [0, 0], [0, 1], [1], [1, 0], [1, 1]
        ]

    def test_sentinel(self, ctx):
        queue = mp.Queue()
        process = ctx.Process(target=wait_for, args=(queue,))
        with pytest.raises(ValueError):
            _ = process.sentinel
        process.start()
        sentinel = process.sentinel
        assert type(sentinel) is int
        assert connection.wait([sentinel], timeout=0) == []
        queue.put(None)
        assert connection.wait([sentinel], timeout=LIMIT) == [sentinel]
        process.join(LIMIT)
        assert connection.wait([sentinel], timeout=0) == [sentinel]
        assert process.sentinel == sentinel

    def test_sentinel_after_the_end(self, ctx):
        process = run_process(ctx, abs, 1)
        assert process.exitcode == 0
        sentinel = process.sentinel
        assert connection.wait([sentinel], timeout=0) == [sentinel] == [process.sentinel]
        process.close()
        with pytest.raises(OSError):
            os.fstat(sentinel)

    def test_close(self, ctx):
        queue = mp.Queue()
        process = ctx.Process(target=wait_for, args=(queue,))
        process.start()
        with pytest.raises(ValueError, match="still running"):
            process.close()
        queue.put(None)
        process.join(LIMIT)
        process.close()
        for call in [process.is_alive, process.join, process.terminate, process.kill, process.start]:
            with pytest.raises(ValueError, match="closed"):
                call()
        with pytest.raises(ValueError):
            _ = process.sentinel
        assert "closed" in repr(process)
        process.close()

    @pytest.mark.parametrize("end, code", [("terminate", -15), ("kill", -9), ("interrupt", -2)])
    def test_terminate(self, ctx, end, code):
        ready = mp.Queue()
        process = ctx.Process(target=block, args=(ready,), daemon=True)
        process.start()
        assert ready.get(timeout=LIMIT) == process.pid
        assert process.join(0) is None and process.join(-1) is None and process.is_alive()
        before = time.monotonic()
        process.join(0.05)
        assert 0.04 < time.monotonic() - before < 5 and process.exitcode is None
        getattr(process, end)()
        process.join(LIMIT)
        # In a process, an interrupt is an unhandled exception.
        assert process.exitcode == (1 if end == "interrupt" else code)
        getattr(process, end)()
        process.join()

    def test_interrupt(self, ctx):
        queue = mp.Queue()
        process = ctx.Process(target=interrupted, args=(queue,))
        process.start()
        queue.get(timeout=LIMIT)
        process.interrupt()
        assert queue.get(timeout=LIMIT) == "interrupted"
        process.join(LIMIT)
        assert process.exitcode == 0

    def test_wait_for_threads(self, ctx):
        queue = mp.Queue()
        process = run_process(ctx, run_thread, queue)
        assert (process.exitcode, queue.get(timeout=LIMIT)) == (0, False)

    def test_error_on_stdio_flush(self, ctx):
        out, sys.stdout = sys.stdout, None
        try:
            assert run_process(ctx, os.getpid).exitcode == 0
        finally:
            sys.stdout = out

    def test_lose_target_ref(self, ctx):
        import gc
        import weakref

        class Target:
            def __reduce__(self):
                return os.getpid, ()

            def __call__(self):
                pass

        target = Target()
        alive = weakref.ref(target)
        process = ctx.Process(target=print, args=(target,))
        del target
        process.start()
        gc.collect()
        assert alive() is None
        process.join(LIMIT)

    def test_cpu_count(self):
        assert mp.cpu_count() >= 1
        assert mp.get_context("spawn").cpu_count() == mp.cpu_count()

    @pytest.mark.parametrize(
        "code, expected",
        [(None, 0), (0, 0), (1, 1), (255, 255), (256, 0), (-1, 255), (True, 1), (False, 0), (2**80, 255)],
    )
    def test_sys_exit(self, code, expected):
        assert run_process(mp.get_context("forkserver"), sys.exit, code).exitcode == expected

    @pytest.mark.parametrize("reason", [[1, 2, 3], "ignore this", (1, 2)])
    def test_sys_exit_reason(self, reason, capfd):
        # The fork server writes to the output that this process had when the server was started.
        assert run_process(mp.get_context("spawn"), sys.exit, reason).exitcode == 1
        assert capfd.readouterr().err == f"{reason}\n"

    def test_many_processes(self, ctx):
        processes = [ctx.Process(target=block, daemon=True) for _ in range(10)]
        for process in processes:
            process.start()
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(LIMIT)
        assert {process.exitcode for process in processes} == {-signal.SIGTERM}

    def test_finished_processes_leak_no_descriptors(self, ctx):
        counts = []
        for _ in range(12):
            run_process(ctx, os.getpid).close()
            counts.append(len(os.listdir("/proc/self/fd")))
        assert counts[2] == counts[-1]

    def test_set_executable(self, tmp_path):
        script = tmp_path / "python with a blank"
        script.write_text(f'#!/bin/sh\nSTARTED_BY=script exec "{sys.executable}" "$@"\n')
        script.chmod(0o755)
        program = f"""
import multiproc as mp, os, sys
def f(queue):
    queue.put(os.environ.get("STARTED_BY"))
if __name__ == "__main__":
    mp.set_executable({str(script)!r})
    queue = mp.Queue()
    process = mp.Process(target=f, args=(queue,))
    process.start()
    print(queue.get(timeout=20))
    process.join()
"""
        assert run_script(tmp_path, program) == ("script\n", "", 0)


class TestCPythonSubclassingProcess:
    """Scenarios of ``_TestSubclassingProcess``."""

    def test_subclassing(self):
        inbox, outbox = mp.Queue(), mp.Queue()
        upper = Upper(inbox, outbox)
        upper.start()
        for text in ["hello", "world"]:
            inbox.put(text)
            assert outbox.get(timeout=LIMIT) == text.upper()
        inbox.put(None)
        upper.join(LIMIT)
        assert upper.exitcode == 0 and upper.name == "upper"

    def test_stderr_flush(self, capfd):
        fails = Fails(name="fails")
        fails.start()
        fails.join(LIMIT)
        assert fails.exitcode == 1
        lines = capfd.readouterr().err.splitlines()
        assert lines[:3] == ["before", "Process fails:", "Traceback (most recent call last):"]
        assert lines[-1] == "ValueError: from run"

    def test_unhandled_exception_is_printed(self, capfd):
        process = run_process(mp.get_context("spawn"), raise_error, name="worker")
        assert process.exitcode == 1
        lines = capfd.readouterr().err.splitlines()
        assert lines[:2] == ["Process worker:", "Traceback (most recent call last):"]
        assert "in raise_error" in lines[-3] + lines[-2] + lines[-4]
        assert lines[-1].startswith("ZeroDivisionError: ")

    def test_output_is_flushed(self, tmp_path, method):
        program = f"""
import atexit, multiproc as mp, sys
def f(code):
    atexit.register(print, "late", end="")
    sys.stdout.write("out")
    sys.stderr.write("err")
    sys.exit(code)
if __name__ == "__main__":
    for code in [0, 3]:
        process = mp.get_context({method!r}).Process(target=f, args=(code,))
        process.start()
        process.join()
        assert process.exitcode == code
"""
        assert run_script(tmp_path, program) == ("outlateoutlate", "errerr", 0)

    def test_atexit(self, ctx):
        queue = mp.Queue()
        assert run_process(ctx, open_file_at_exit, queue).exitcode == 0
        assert [queue.get(timeout=LIMIT) for _ in range(2)] == ["registered last", "atexit"]


class TestCPythonStartMethod:
    """Scenarios of ``TestStartMethod``."""

    def test_context(self, method):
        ctx = mp.get_context(method)
        assert ctx.get_start_method() == method and ctx.get_context() is ctx
        queue = mp.Queue()
        run_process(ctx, start_method_of_child, queue)
        assert queue.get(timeout=LIMIT) == (method, method)
        with pytest.raises(ValueError):
            ctx.set_start_method("spawn")
        with pytest.raises(ValueError):
            ctx.set_start_method(None)

    def test_set_get(self):
        program = """
import multiproc as mp
assert mp.get_start_method(allow_none=True) is None
for method in mp.get_all_start_methods():
    mp.set_start_method(method, force=True)
    assert mp.get_start_method() == method
    ctx = mp.get_context()
    assert ctx.get_start_method() == method
    assert type(ctx).__name__.lower().startswith(method)
    assert ctx.Process.__name__.lower().startswith(method)
try:
    mp.set_start_method("spawn")
except RuntimeError as error:
    print(error)
mp.set_start_method(None, force=True)
assert mp.get_start_method(allow_none=True) is None
mp.set_start_method(None)
assert mp.get_start_method(allow_none=True) == "spawn"
"""
        ran = run_program(program)
        assert ran == ("context has already been set\n", "", 0)

    def test_get_all(self):
        assert mp.get_all_start_methods() == ["spawn", "forkserver"]
        assert mp.get_context().get_all_start_methods() == ["spawn", "forkserver"]

    @pytest.mark.parametrize("name", ["fork", "thread", ""])
    def test_unknown_method_is_refused(self, name):
        with pytest.raises(ValueError, match="forkserver|cannot find context"):
            mp.get_context(name)
        with pytest.raises(ValueError):
            mp.set_start_method(name, force=True)

    def test_preload_resources(self, tmp_path):
        (tmp_path / "heavy.py").write_text("import os\nWHERE = os.getpid()\n")
        program = """
import multiproc as mp, os
def f(queue):
    import sys
    heavy = sys.modules["heavy"]
    queue.put((heavy.WHERE != os.getpid(), os.getppid() == mp.parent_process().pid))
if __name__ == "__main__":
    ctx = mp.get_context("forkserver")
    ctx.set_forkserver_preload(["heavy", "no_such_module"])
    queue = mp.Queue()
    process = ctx.Process(target=f, args=(queue,))
    process.start()
    print(queue.get(timeout=20))
    process.join()
"""
        assert run_script(tmp_path, program) == ("(True, True)\n", "", 0)

    def test_preload_of_other_types_is_refused(self):
        for modules in [[1], [b"os"], [None]]:
            with pytest.raises(TypeError):
                mp.set_forkserver_preload(modules)

    def test_context_has_all_names(self, ctx):
        import multiprocessing

        base = multiprocessing.get_context("spawn")
        missing = {name for name in dir(base) if not name.startswith("_")} - set(dir(ctx))
        assert missing == set()
        assert ctx.TimeoutError is mp.TimeoutError and ctx.ProcessError is mp.ProcessError
        assert issubclass(ctx.Process, mp.Process)


class TestCPythonDaemons:
    def test_daemon_has_no_children(self, ctx):
        queue = mp.Queue()
        run_process(ctx, start_daemon_child, queue, daemon=True)
        assert queue.get(timeout=LIMIT) == "daemonic processes are not allowed to have children"

    def test_setting_daemon_after_start_raises(self, ctx):
        process = ctx.Process(target=os.getpid)
        process.daemon = True
        process.start()
        with pytest.raises(AssertionError):
            process.daemon = False
        process.join(LIMIT)

    def test_started_process_is_not_started_again(self, ctx):
        process = run_process(ctx, os.getpid)
        with pytest.raises(AssertionError, match="twice"):
            process.start()

    def test_process_is_not_joined_before_start(self, ctx):
        process = ctx.Process(target=os.getpid)
        with pytest.raises(AssertionError, match="started"):
            process.join()
        for call in [process.terminate, process.kill]:
            with pytest.raises(AttributeError):
                call()

    def test_names(self, ctx):
        process = ctx.Process(target=os.getpid)
        assert process.name.startswith(type(process).__name__ + "-")
        process.name = "other"
        assert process.name == "other"
        with pytest.raises(AssertionError):
            process.name = 3


class TestCPythonLogging:
    def test_level(self, ctx):
        logger = mp.get_logger()
        old = logger.level
        queue = mp.Queue()
        try:
            logger.setLevel(logging.ERROR)
            run_process(ctx, levels, queue)
            assert queue.get(timeout=LIMIT)[0] == logging.ERROR
        finally:
            logger.setLevel(old)

    def test_log_to_stderr(self, tmp_path):
        program = """
import multiproc as mp, logging
def f():
    mp.get_logger().warning("from the child")
if __name__ == "__main__":
    mp.log_to_stderr(logging.WARNING)
    process = mp.Process(target=f, name="logs")
    process.start()
    process.join()
"""
        expected = ("", "[WARNING/logs] from the child\n", 0)
        assert run_script(tmp_path, program) == expected


class TestArguments:
    def test_large_arguments_arrive(self, ctx):
        data = os.urandom(1 << 16) * 800
        queue = mp.Queue()
        run_process(ctx, send_length, queue, data)
        assert queue.get(timeout=LIMIT) == (len(data), data[-9:])

    def test_unpicklable_argument_raises_its_error(self, ctx):
        with pytest.raises(ValueError, match="not today"):
            ctx.Process(target=print, args=(Unpicklable(),)).start()
        with pytest.raises(TypeError, match="lock"):
            ctx.Process(target=print, args=(threading.Lock(),)).start()

    def test_unreadable_argument_is_printed(self, capfd):
        process = run_process(mp.get_context("spawn"), print, Unreadable())
        assert process.exitcode == 1
        lines = capfd.readouterr().err.splitlines()
        assert lines[-1].startswith("ValueError: invalid literal")

    def test_local_function_is_sent_by_value(self, ctx):
        pytest.importorskip("cloudpickle")
        queue, factor = mp.Queue(), 3
        process = run_process(ctx, lambda value: queue.put((value * factor, Upper.__name__)), 4)
        assert process.exitcode == 0 and queue.get(timeout=LIMIT) == (12, "Upper")

    def test_local_function_without_cloudpickle(self, ctx, monkeypatch):
        from multiproc import reduction

        monkeypatch.setitem(sys.modules, "cloudpickle", None)
        reduction.pickler.cache_clear()
        try:
            with pytest.raises(pickle.PicklingError, match="install cloudpickle"):
                ctx.Process(target=lambda: None).start()
        finally:
            reduction.pickler.cache_clear()

    def test_failed_start_can_be_repeated(self, ctx):
        process = ctx.Process(target=print, args=(Unpicklable(),))
        for _ in range(2):
            with pytest.raises(ValueError):
                process.start()
        assert process.pid is None and process not in mp.active_children()

    def test_started_process_is_not_pickled(self, ctx):
        process = run_process(ctx, os.getpid)
        with pytest.raises(TypeError):
            pickle.dumps(process)
        with pytest.raises(TypeError):
            pickle.dumps(mp.current_process().authkey)


def send_length(queue, data):
    queue.put((len(data), data[-9:]))
