"""Processes, start methods and pools: further scenarios of CPython's ``_test_multiprocessing.py``."""

import io
import logging
import os
import pickle
import signal
import sys
import threading

import pytest

import multiproc as mp
from process_tasks import LIMIT, block, run_process, wait_for
from programs import run_program, run_script


def put_native_id(queue):
    queue.put(threading.main_thread().native_id)


def put_descriptors(counts, go):
    counts.put(len(os.listdir("/proc/self/fd")))
    go.wait(LIMIT)


def break_stream(name, action, done):
    stream = io.StringIO()
    stream.close()
    setattr(sys, name, stream if action == "close" else None)
    done.put(name)


def restore_sigint_and_block(ready):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    block(ready)


def kill_after_start(pid, number):
    os.kill(pid, number)


def put(queue, value):
    queue.put(value)


def put_two_and_start_another(queue):
    queue.put(2)
    run_process(mp, put, queue, 1)


def get_in_grandchild():
    queue = mp.Queue()
    child = run_process(mp, get_nothing, queue, daemon=True)
    sys.exit(child.exitcode)


def get_nothing(queue):
    with pytest.raises(mp.queues.Empty):
        queue.get(block=False)


def square(x):
    return x * x


def map_in_process(queue):
    pool = mp.Pool(2)
    queue.put(pool.map(square, range(1, 8)))
    pool.close()
    pool.join()


def fstat(fd, queue):
    try:
        os.fstat(fd)
    except OSError as error:
        queue.put(error.errno)
    else:
        queue.put(None)


def close_queue(queue):
    queue.close()
    queue.join_thread()


def put_path_and_import(queue, module):
    queue.put(sys.path)
    try:
        __import__(module)
    except ImportError as error:
        queue.put(error)
    else:
        queue.put(None)


def add_one(namespace):
    namespace.test += 1


def raise_foo():
    raise RuntimeError("foo")


class TestCPythonProcess:
    """Scenarios of ``_TestProcess``."""

    def test_process_mainthread_native_id(self, ctx):
        queue = mp.Queue()
        run_process(ctx, put_native_id, queue)
        native = queue.get(timeout=LIMIT)
        assert type(native) is int and native != threading.main_thread().native_id

    def test_child_fd_inflation(self, ctx):
        # Each process has as many descriptors as the processes that were started before it.
        counts, go = mp.Queue(), mp.Event()
        processes = [ctx.Process(target=put_descriptors, args=(counts, go)) for _ in range(5)]
        for process in processes:
            process.start()
        found = [counts.get(timeout=LIMIT) for _ in processes]
        go.set()
        for process in processes:
            process.join(LIMIT)
        assert len(set(found)) == 1, found

    @pytest.mark.parametrize("name", ["stdout", "stderr"])
    @pytest.mark.parametrize("stream", ["closed", None])
    def test_error_on_stdio_flush_1(self, ctx, monkeypatch, name, stream):
        if stream == "closed":
            stream = io.StringIO()
            stream.close()
        queue = mp.Queue()
        monkeypatch.setattr(sys, name, stream)
        assert run_process(ctx, put, queue, 1).exitcode == 0
        assert queue.get(timeout=LIMIT) == 1

    @pytest.mark.parametrize("name", ["stdout", "stderr"])
    @pytest.mark.parametrize("action", ["close", "remove"])
    def test_error_on_stdio_flush_2(self, ctx, name, action):
        queue = mp.Queue()
        assert run_process(ctx, break_stream, name, action, queue).exitcode == 0
        assert queue.get(timeout=LIMIT) == name

    def test_interrupt_no_handler(self, ctx):
        ready = mp.Queue()
        process = ctx.Process(target=restore_sigint_and_block, args=(ready,), daemon=True)
        process.start()
        ready.get(timeout=LIMIT)
        process.interrupt()
        process.join(LIMIT)
        assert process.exitcode == -signal.SIGINT

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_forkserver_death(self, tmp_path, number):
        # Ends the server while one of its copies runs. The next start makes another server.
        program = f"""
import multiproc as mp, os, time
def f(go, done):
    done.put(go.get(timeout=20))
def servers():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            name, rest = open(f"/proc/{{pid}}/stat").read().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        if name == "mp-forkserver" and int(rest.split()[1]) == os.getpid() and rest.split()[0] != "Z":
            found.append(int(pid))
    return found
if __name__ == "__main__":
    ctx = mp.get_context("forkserver")
    go, done = mp.Queue(), mp.Queue()
    first = ctx.Process(target=f, args=(go, done))
    first.start()
    os.kill(servers()[0], {int(number)})
    second = ctx.Process(target=f, args=(go, done))
    second.start()
    go.put(1)
    go.put(2)
    print(sorted([done.get(timeout=20), done.get(timeout=20)]))
    first.join()
    second.join()
    print(first.exitcode, second.exitcode)
"""
        assert run_script(tmp_path, program) == ("[1, 2]\n0 0\n", "", 0)

    def test_poll_eintr(self, ctx):
        # A signal during the join is handled, and the join continues.
        received = []
        old = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
        try:
            queue = mp.Queue()
            process = ctx.Process(target=wait_for, args=(queue,))
            process.start()
            killer = ctx.Process(target=kill_after_start, args=(os.getpid(), signal.SIGUSR1))
            killer.start()
            timer = threading.Timer(0.3, queue.put, (None,))
            timer.start()
            process.join(LIMIT)
            killer.join(LIMIT)
            timer.join()
        finally:
            signal.signal(signal.SIGUSR1, old)
        assert received == [signal.SIGUSR1] and process.exitcode == 0


    @pytest.mark.parametrize("kind", ["str", "os.fsencode", "pathlib.Path"])
    def test_set_executable(self, tmp_path, kind):
        program = f"""
import multiproc as mp, os, pathlib, sys
if __name__ == "__main__":
    mp.set_executable({kind}(sys.executable))
    for method in mp.get_all_start_methods():
        process = mp.get_context(method).Process()
        process.start()
        process.join()
        print(process.exitcode)
"""
        assert run_script(tmp_path, program) == ("0\n0\n", "", 0)


class TestCPythonStdinBadfiledescriptor:
    """Scenarios of ``TestStdinBadfiledescriptor``."""

    def test_queue_in_process(self, ctx):
        assert run_process(ctx, get_in_grandchild).exitcode == 0

    def test_pool_in_process(self, ctx):
        queue = mp.Queue()
        assert run_process(ctx, map_in_process, queue).exitcode == 0
        assert queue.get(timeout=LIMIT) == [1, 4, 9, 16, 25, 36, 49]

    def test_flushing(self):
        # A process that is not started leaves buffered output alone.
        output = io.StringIO()
        text = io.TextIOWrapper(io.BytesIO(), write_through=False)
        text.write("foo")
        mp.Process(target=text.flush)
        text.flush()
        output.write(text.buffer.getvalue().decode())
        assert output.getvalue() == "foo"


class TestCPythonCloseFds:
    def test_closefd(self, ctx):
        # High enough that a new process has no descriptor of this number.
        read, write = os.pipe()
        high = 200
        os.dup2(read, high, inheritable=False)
        queue = mp.Queue()
        try:
            run_process(ctx, fstat, high, queue)
        finally:
            for fd in (read, write, high):
                os.close(fd)
        assert queue.get(timeout=LIMIT) == 9


class TestCPythonStartMethod:
    """Scenarios of ``TestStartMethod`` and ``_TestSpawnedSysPath``."""

    def test_context_check_module_types(self):
        with pytest.raises(TypeError, match="module_names must be a list of strings"):
            mp.get_context("forkserver").set_forkserver_preload([1, 2, 3])

    def test_mixed_startmethod(self):
        # An object of any context reaches a process of any method.
        for queue_method in mp.get_all_start_methods():
            for process_method in mp.get_all_start_methods():
                queue = mp.get_context(queue_method).Queue()
                queue.put(1)
                assert run_process(mp.get_context(process_method), close_queue, queue).exitcode == 0
                assert queue.get(timeout=LIMIT) == 1

    def test_nested_startmethod(self, ctx):
        queue = mp.Queue()
        assert run_process(ctx, put_two_and_start_another, queue).exitcode == 0
        assert {queue.get(timeout=LIMIT), queue.get(timeout=LIMIT)} == {1, 2}

    def test_child_sys_path(self, ctx, tmp_path, monkeypatch):
        (tmp_path / "only_in_the_path.py").write_text("")
        monkeypatch.setattr(sys, "path", ["", str(tmp_path), *filter(None, sys.path)])
        queue = mp.Queue()
        run_process(ctx, put_path_and_import, queue, "only_in_the_path")
        path = queue.get(timeout=LIMIT)
        assert "" not in path and str(tmp_path) in path
        assert queue.get(timeout=LIMIT) is None

    def test_forkserver_preload_imports_sys_path(self, tmp_path):
        (tmp_path / "modules").mkdir()
        (tmp_path / "modules" / "only_in_the_path.py").write_text("")
        program = f"""
import sys
sys.path.insert(0, {str(tmp_path / "modules")!r})
import multiproc as mp
def f(queue):
    queue.put("only_in_the_path" in sys.modules)
if __name__ == "__main__":
    ctx = mp.get_context("forkserver")
    ctx.set_forkserver_preload(["only_in_the_path"])
    queue = mp.Queue()
    process = ctx.Process(target=f, args=(queue,))
    process.start()
    print(queue.get(timeout=20))
    process.join()
"""
        assert run_script(tmp_path, program) == ("True\n", "", 0)


class TestCPythonInitializers:
    @pytest.fixture
    def namespace(self):
        with mp.get_context("forkserver").Manager() as manager:
            namespace = manager.Namespace()
            namespace.test = 0
            yield namespace

    def test_manager_initializer(self, namespace):
        manager = mp.managers.SyncManager(ctx=mp.get_context("forkserver"))
        with pytest.raises(TypeError):
            manager.start(1)
        manager.start(add_one, (namespace,))
        assert namespace.test == 1
        manager.shutdown()
        manager.join()

    def test_pool_initializer(self, namespace, ctx):
        with pytest.raises(TypeError):
            ctx.Pool(initializer=1)
        pool = ctx.Pool(1, add_one, (namespace,))
        pool.close()
        pool.join()
        assert namespace.test == 1


class TestCPythonPool:
    def test_wrapped_exception(self, one):
        with pytest.raises(RuntimeError, match="foo"):
            one.apply(raise_foo)

    def test_large_pool(self, tmp_path):
        program = """
import multiproc as mp
def f(x): return x * x
if __name__ == "__main__":
    with mp.get_context("forkserver").Pool(200) as pool:
        print(sum(pool.map(f, range(1000))))
"""
        assert run_script(tmp_path, program, timeout=100) == ("332833500\n", "", 0)


class TestCPythonLogging:
    def test_enable_logging(self):
        logger = mp.get_logger()
        old = logger.level
        try:
            logger.setLevel(mp.SUBWARNING)
            assert logger is mp.get_logger() and logger.getEffectiveLevel() == mp.SUBWARNING
            assert not logger.isEnabledFor(logging.DEBUG) and not logger.isEnabledFor(logging.INFO)
        finally:
            logger.setLevel(old)

    def test_filename(self):
        logger, stream = mp.get_logger(), io.StringIO()
        old, handler = logger.level, logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("[%(levelname)s] [%(filename)s] %(message)s"))
        logger.addHandler(handler)
        try:
            logger.setLevel(logging.DEBUG)
            logger.info("1")
            logger.debug("3")
        finally:
            logger.setLevel(old)
            logger.removeHandler(handler)
        file = os.path.basename(__file__)
        assert stream.getvalue() == f"[INFO] [{file}] 1\n[DEBUG] [{file}] 3\n"


class TestCPythonMisc:
    """Scenarios of ``MiscTestCase``, ``_TestImportStar`` and ``TestNamedResource``."""

    def test__all__(self):
        missing = {name for name in mp.__all__ if not hasattr(mp, name)}
        # CPython's `__all__` also leaves out the levels of the logger.
        public = {name for name in vars(mp) if name[0] != "_" and name not in ("SUBDEBUG", "SUBWARNING")}
        modules = {name for name in public if type(getattr(mp, name)) is type(mp)}
        assert missing == set() and public - modules - set(mp.__all__) == set()

    def test_import(self):
        import importlib
        import pkgutil

        names = [info.name for info in pkgutil.iter_modules(mp.__path__) if info.name[0] != "_"]
        assert "queues" in names
        for module in [mp, *(importlib.import_module(f"multiproc.{name}") for name in names)]:
            assert [name for name in module.__all__ if not hasattr(module, name)] == [], module

    def test_spawn_sys_executable_none_allows_import(self):
        program = "import sys; sys.executable = None; import multiproc, multiproc.spawn"
        assert run_program(program) == ("", "", 0)

    def test_global_named_resource_spawn(self, tmp_path):
        program = """
import multiproc as mp
ctx = mp.get_context("spawn")
resource = ctx.Semaphore()
def f():
    pass
if __name__ == "__main__":
    process = ctx.Process(target=f)
    process.start()
    process.join()
"""
        assert run_script(tmp_path, program) == ("", "", 0)

    def test_no_import_lock_contention(self, tmp_path):
        (tmp_path / "uses_a_queue.py").write_text(
            "import multiproc\nqueue = multiproc.Queue()\nqueue.put('knock')\n"
            "print(queue.get(timeout=3))\nqueue.close()\n"
        )
        assert run_script(tmp_path, "import uses_a_queue\n") == ("knock\n", "", 0)


class TestTorchSpawn:
    """Scenarios of torch's ``test_multiprocessing_spawn.py``."""

    def test_errors_pickleable(self):
        raised = mp.ProcessRaisedException("Oh no!", 1, 1)
        for error in (raised, mp.ProcessExitedException("Oh no!", 1, 1, 1)):
            other = pickle.loads(pickle.dumps(error))
            assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))

    def test_exception_raises(self):
        with pytest.raises(mp.ProcessRaisedException):
            mp.spawn(raise_value_error, nprocs=1)

    def test_signal_raises(self):
        ready = mp.Queue()
        context = mp.spawn(block_in, args=(ready,), nprocs=1, join=False)
        ready.get(timeout=LIMIT)
        for pid in context.pids():
            os.kill(pid, signal.SIGTERM)
        with pytest.raises(mp.ProcessExitedException):
            context.join()

    @pytest.mark.parametrize("grace_period", [None, LIMIT])
    def test_terminate_exit(self, method, grace_period, caplog):
        # The other process is ended, and a warning says so, unless it ends by itself in time.
        go = mp.Queue()
        context = mp.start_processes(
            exit_first, args=(go, grace_period is None), nprocs=2, join=False, start_method=method
        )
        with pytest.raises(mp.ProcessExitedException, match="process 0 terminated with exit code 123"):
            while not context.join(grace_period=grace_period):
                pass
        messages = [record.getMessage() for record in caplog.records if record.name == "multiproc.spawn"]
        expected = f"Terminating process {context.pids()[1]} via signal SIGTERM"
        assert messages == ([expected] if grace_period is None else [])
        assert not any(process.is_alive() for process in context.processes)

    def test_success_first_then_exception(self, method):
        done = mp.Queue()
        with pytest.raises(Exception, match="ValueError: legitimate exception"):
            mp.start_processes(return_first_then_raise, args=(done,), nprocs=2, start_method=method)


class TestCPythonResourceTracker:
    def test_resource_tracker_reused(self, tmp_path, method):
        # Runs in a program of its own, whose resource tracker ends with it.
        program = f"""
import multiproc as mp
from multiprocessing.resource_tracker import _resource_tracker

def is_reused(results):
    # The process has the descriptor of its parent's tracker, and has started none.
    inherited = _resource_tracker._fd
    _resource_tracker.ensure_running()
    results.put((_resource_tracker._pid, inherited is not None, _resource_tracker._check_alive()))

if __name__ == "__main__":
    _resource_tracker.ensure_running()
    results = mp.Queue()
    process = mp.get_context({method!r}).Process(target=is_reused, args=(results,))
    process.start()
    print(results.get(timeout={LIMIT}))
    process.join()
"""
        assert run_script(tmp_path, program) == ("(None, True, True)\n", "", 0)


def raise_value_error(index):
    raise ValueError("legitimate exception")


def block_in(index, ready):
    block(ready)


def exit_first(index, go, blocks):
    if index == 0:
        go.put(None)
        sys.exit(123)
    go.get(timeout=LIMIT)
    if blocks:
        block()


def return_first_then_raise(index, done):
    if index == 0:
        done.put(None)
        return
    done.get(timeout=LIMIT)
    raise ValueError("legitimate exception")
