"""Life of the interpreter: signals, exits, forks, threads, finalization, flags, and copies of the package."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
from multiprocessing import connection

import pytest

import multiproc as mp
from programs import run_command, run_program, run_script

LIMIT = 20
METHODS = mp.get_all_start_methods()

# Sends SIGINT to the program while it waits, and returns the time that the wait took to end.
INTERRUPT = """
import multiproc as mp, os, signal, sys, threading, time

def interrupt_after(wait, delay=0.15):
    sent = []
    def send():
        time.sleep(delay)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        wait()
    except KeyboardInterrupt:
        took = time.monotonic() - sent[0]
    else:
        sys.exit("the wait has ended")
    thread.join()
    return took

def sleep(*args):
    time.sleep(60)

def full():
    queue = mp.Queue(1)
    queue.put(0)
    return queue

ends = []
def pipe():
    ends.extend(mp.Pipe())
    return ends

def held(lock):
    lock.acquire()
    return lock

def hold(lock, ready):
    lock.acquire()
    ready.put(None)
    sleep()

def held_elsewhere(lock):
    ready = mp.Queue()
    started(hold, lock, ready)
    ready.get(timeout=20)
    return lock

def started(target=sleep, *args):
    process = mp.get_context("forkserver").Process(target=target, args=args, daemon=True)
    process.start()
    return process
"""

WAITS = [
    "mp.Queue().get()",
    "mp.Queue().get(timeout=50)",
    "mp.SimpleQueue().get()",
    "full().put(1)",
    "full().put(1, timeout=50)",
    "started().join()",
    "started().join(50)",
    "mp.start_processes(sleep, nprocs=1, join=False, daemon=True).join()",
    "mp.Event().wait()",
    "mp.Event().wait(50)",
    "held(mp.Lock()).acquire()",
    "held(mp.Lock()).acquire(timeout=50)",
    "held_elsewhere(mp.RLock()).acquire()",
    "held(mp.Semaphore(1)).acquire()",
    "mp.Barrier(2).wait()",
    "held(mp.Condition()).wait()",
    "pipe()[0].recv()  # mp.Pipe()",
    "pipe()[0].poll(None)  # mp.Pipe()",
    "mp.JoinableQueue().get()",
    "unfinished().join()",
]


class TestInterrupt:
    @pytest.mark.parametrize("wait", WAITS)
    def test_wait_ends_with_keyboard_interrupt(self, tmp_path, wait):
        name = wait.partition("mp.")[2].partition("(")[0]
        if name and not hasattr(mp, name):
            pytest.skip(f"{name} is not offered")
        program = INTERRUPT + f"""
def unfinished():
    queue = mp.JoinableQueue()
    queue.put(0)
    return queue

if __name__ == "__main__":
    made = []
    def wait():
        made.append(None)
        {wait}
    took = interrupt_after(wait, 0.25)
    assert made and took < 0.5, took
    # The program continues.
    queue = mp.Queue()
    started(queue.put, 5)
    assert queue.get(timeout=20) == 5
    print("ended")
"""
        assert run_script(tmp_path, program) == ("ended\n", "", 0)

    def test_handler_that_returns_continues_the_wait(self):
        program = """
import multiproc as mp, os, signal, threading
queue = mp.Queue()
signal.signal(signal.SIGUSR1, lambda number, frame: queue.put("from the handler"))
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
print(queue.get(timeout=20))
"""
        assert run_program(program) == ("from the handler\n", "", 0)

    def test_handler_that_raises_ends_the_wait(self):
        program = """
import multiproc as mp, os, signal, threading
class Stop(Exception): pass
def stop(number, frame):
    raise Stop
queue = mp.Queue(1)
queue.put(0)
signal.signal(signal.SIGALRM, stop)
for wait in [lambda: mp.Queue().get(), lambda: queue.put(1)]:
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        wait()
    except Stop:
        print("stopped")
# The object whose put was interrupted is not in the queue.
assert queue.get() == 0 and queue.empty()
"""
        assert run_program(program) == ("stopped\nstopped\n", "", 0)

    @pytest.mark.parametrize("method", METHODS)
    def test_group_is_interrupted_at_exit(self, tmp_path, method):
        program = f"""
import multiproc as mp, os, time
def sleep():
    print("ready", flush=True)
    time.sleep(60)
if __name__ == "__main__":
    mp.get_context({method!r}).Process(target=sleep).start()
"""
        (tmp_path / "program.py").write_text(program)
        # A terminal sends SIGINT to the whole group.
        running = subprocess.Popen(
            [sys.executable, tmp_path / "program.py"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )
        assert running.stdout.readline() == "ready\n"
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=LIMIT)
        assert out == "" and err.count("KeyboardInterrupt") >= 1


class TestExit:
    def test_daemon_threads_that_wait_are_left(self):
        program = """
import multiproc as mp, os, sys, threading, time, types
queue, full = mp.Queue(), mp.Queue(1)
full.put(0)
def get():
    queue.get()
def put():
    full.put(1)
def poll():
    while True:
        try:
            queue.get(timeout=0.001)
        except Exception:
            pass
for target in [get, put, poll, poll]:
    threading.Thread(target=target, daemon=True).start()
class Slow:
    # The interpreter's end takes longer than a wait between two looks for signals.
    def __del__(self, sleep=time.sleep, write=os.write):
        sleep(0.3)
        write(1, b"end\\n")
sys.modules["kept"] = types.ModuleType("kept")
sys.modules["kept"].slow = Slow()
print("exit", flush=True)
"""
        assert run_program(program) == ("exit\nend\n", "", 0)

    @pytest.mark.parametrize("method", METHODS)
    def test_exit_with_everything_alive(self, tmp_path, method):
        program = f"""
import multiproc as mp, sys, time
def sleep():
    time.sleep(60)
def late(queue):
    time.sleep(0.2)
    queue.put("late")
    print("waited for", flush=True)
if __name__ == "__main__":
    try:
        import numpy
    except ImportError:
        numpy = None
    ctx = mp.get_context({method!r})
    queue = mp.Queue()
    queue.put(bytearray(100_000))
    queue.put(memoryview(b"view" * 100_000))
    array = queue.get(), queue.get()
    if numpy is not None:
        queue.put(numpy.ones(1000))
        queue.put(numpy.ones(1000))
        mp.array = queue.get()[::2]
    ctx.Process(target=sleep, daemon=True).start()
    ctx.Process(target=late, args=(queue,)).start()
    del sys.modules["multiproc"]
    sys.exit(3)
"""
        assert run_script(tmp_path, program) == ("waited for\n", "", 3)

    @pytest.mark.parametrize("method", METHODS)
    def test_exception_ends_the_program(self, tmp_path, method):
        program = f"""
import multiproc as mp, time
def sleep():
    time.sleep(60)
if __name__ == "__main__":
    queue = mp.Queue()
    queue.put(1)
    process = mp.get_context({method!r}).Process(target=sleep, daemon=True)
    process.start()
    raise ValueError("in the main module")
"""
        out, err, code = run_script(tmp_path, program)
        assert (out, code) == ("", 1) and err.endswith("ValueError: in the main module\n")

    def test_exit_functions_run_before_processes_end(self, tmp_path):
        program = """
import atexit
import multiproc as mp
def work(jobs, results):
    for job in iter(jobs.get, None):
        results.put(job * 2)
if __name__ == "__main__":
    jobs, results = mp.Queue(), mp.Queue()
    workers = [mp.Process(target=work, args=(jobs, results), daemon=daemon) for daemon in (False, True)]
    for worker in workers:
        worker.start()
    def first():
        for worker in workers:
            worker.join(20)
        print("second", [worker.exitcode for worker in workers])
    def last():
        jobs.put(4)
        print("first", results.get(timeout=20))
        jobs.put(None)
        jobs.put(None)
    atexit.register(first)
    atexit.register(last)
"""
        assert run_script(tmp_path, program) == ("first 8\nsecond [0, 0]\n", "", 0)

    def test_queue_is_used_at_finalization(self):
        program = """
import multiproc as mp
class Last:
    def __init__(self):
        self.queue = mp.Queue()
        self.queue.put(0)
        self.queue.get()
    def __del__(self):
        self.queue.put([1, 2])
        print(self.queue.get())
last = Last()
cycle = [Last()]
cycle.append(cycle)
"""
        out, err, code = run_program(program)
        assert (set(out.splitlines()), err, code) == ({"[1, 2]"}, "", 0)

    def test_processes_end_when_the_parent_calls_os_exit(self, tmp_path):
        program = """
import multiproc as mp, os, time
def sleep(queue):
    queue.put(os.getpid())
    time.sleep(60)
if __name__ == "__main__":
    queue = mp.Queue()
    for method in mp.get_all_start_methods():
        mp.get_context(method).Process(target=sleep, args=(queue,)).start()
        print(queue.get(timeout=20))
    os.sys.stdout.flush()
    os._exit(5)
"""
        out, err, code = run_script(tmp_path, program)
        assert (err, code) == ("", 5)
        wait_for_ends(out.split())

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
    def test_processes_end_when_the_parent_is_killed(self, tmp_path, number):
        program = """
import multiproc as mp, os, time
def sleep(queue):
    queue.put(os.getpid())
    time.sleep(60)
if __name__ == "__main__":
    queue = mp.Queue()
    for method in mp.get_all_start_methods():
        mp.get_context(method).Process(target=sleep, args=(queue,)).start()
        print(queue.get(timeout=20))
    print("all", flush=True)
    queue.get()
"""
        (tmp_path / "program.py").write_text(program)
        running = subprocess.Popen(
            [sys.executable, tmp_path / "program.py"], stdout=subprocess.PIPE, text=True
        )
        pids = list(iter(running.stdout.readline, "all\n"))
        assert len(pids) == len(METHODS)
        running.send_signal(number)
        assert running.wait(LIMIT) == -number
        running.stdout.close()
        wait_for_ends(pids)


def wait_for_ends(pids):
    for pid in pids:
        try:
            end = os.pidfd_open(int(pid))
        except ProcessLookupError:
            continue
        assert connection.wait([end], LIMIT) == [end]
        os.close(end)


class TestFork:
    def test_forked_process_is_told_what_to_do(self, tmp_path):
        program = """
import multiproc as mp, os, sys, time
def sleep():
    time.sleep(60)
if __name__ == "__main__":
    queue = mp.Queue()
    queue.put(5)
    process = mp.Process(target=sleep, daemon=True)
    process.start()
    pid = os.fork()
    if pid == 0:
        calls = [queue.get, queue.get_nowait, lambda: queue.put(1), mp.Queue, mp.Process(target=sleep).start]
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                assert "os.fork" in str(error) and "multiproc.Process" in str(error), error
            else:
                sys.exit("no error")
        for call in [process.is_alive, process.join]:
            try:
                call()
            except AssertionError:
                pass
            else:
                sys.exit("no error")
        assert mp.active_children() == []
        del queue
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert process.is_alive() and queue.get(timeout=0) == 5
    queue.put(6)
    assert queue.get(timeout=0) == 6
    print("parent")
"""
        flags = ["-W", "ignore::DeprecationWarning"]
        assert run_script(tmp_path, program, *flags) == ("parent\n", "", 0)

    def test_fork_before_the_first_use_is_free(self, tmp_path):
        program = """
import multiproc as mp, os
def f(queue):
    queue.put(os.getppid())
if __name__ == "__main__":
    pid = os.fork()
    for method in mp.get_all_start_methods():
        queue = mp.Queue()
        process = mp.get_context(method).Process(target=f, args=(queue,))
        process.start()
        assert queue.get(timeout=20) == os.getpid()
        process.join()
        assert process.exitcode == 0
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
        print("both")
"""
        assert run_script(tmp_path, program) == ("both\n", "", 0)

    def test_fork_of_multiprocessing_spares_processes(self, tmp_path):
        program = """
import multiproc as mp, multiprocessing, os, time
def sleep():
    time.sleep(60)
if __name__ == "__main__":
    process = mp.Process(target=sleep, daemon=True)
    process.start()
    other = multiprocessing.get_context("fork").Process(target=os.getpid)
    other.start()
    other.join()
    assert other.exitcode == 0 and process.is_alive()
    assert mp.active_children() == [process]
    print("ended")
"""
        flags = ["-W", "ignore::DeprecationWarning"]
        assert run_script(tmp_path, program, *flags) == ("ended\n", "", 0)

    def test_subprocesses_get_no_descriptors(self, tmp_path):
        program = """
import multiproc as mp, subprocess, sys, time
def sleep(queue):
    queue.put(0)
    time.sleep(60)
if __name__ == "__main__":
    queue = mp.Queue()
    before = subprocess.check_output(["ls", "/proc/self/fd"], close_fds=False)
    for method in mp.get_all_start_methods():
        mp.get_context(method).Process(target=sleep, args=(queue,), daemon=True).start()
        queue.get(timeout=20)
    running = [subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"]) for code in range(5)]
    assert subprocess.check_output(["ls", "/proc/self/fd"], close_fds=False) == before
    print([process.wait(20) for process in running])
"""
        assert run_script(tmp_path, program) == ("[0, 1, 2, 3, 4]\n", "", 0)


class TestThreads:
    def test_threads_put_and_get_under_load(self):
        program = """
import multiproc as mp, threading
queue, results = mp.Queue(100), mp.Queue()
def put(begin):
    for number in range(begin, begin + 500):
        queue.put({"number": number, "data": b"x" * (number % 300)})
def get():
    total = 0
    for item in iter(queue.get, None):
        assert len(item["data"]) == item["number"] % 300
        total += item["number"]
    results.put(total)
putters = [threading.Thread(target=put, args=(500 * number,)) for number in range(4)]
getters = [threading.Thread(target=get) for _ in range(4)]
for thread in putters + getters:
    thread.start()
for thread in putters:
    thread.join()
for _ in getters:
    queue.put(None)
for thread in getters:
    thread.join()
print(sum(results.get(timeout=0) for _ in range(4)) == sum(range(2000)))
"""
        assert run_program(program) == ("True\n", "", 0)

    def test_objects_are_collected_on_any_thread(self):
        program = """
import gc, multiproc as mp, threading, weakref
class Node:
    pass
def make():
    node = Node()
    node.queue = mp.Queue()
    node.queue.put(bytearray(50_000))
    node.view = node.queue.get()
    node.queue.put(memoryview(b"x" * 100_000))
    node.array = node.queue.get()
    node.queue.put(node.array)
    node.me = node
    return weakref.ref(node), node.queue
gc.disable()
def descriptors():
    import os
    return len(os.listdir("/proc/self/fd"))
def rounds():
    for _ in range(100):
        make()
    collected = []
    thread = threading.Thread(target=lambda: collected.append(gc.collect()))
    thread.start()
    thread.join()
    return collected[0]
rounds()
first = rounds(), descriptors()
second = rounds(), descriptors()
print(first == second, first[0] >= 100)
"""
        assert run_program(program) == ("True True\n", "", 0)

    def test_views_outlive_the_module(self):
        program = """
import gc, sys
import multiproc as mp
queue = mp.Queue()
queue.put([memoryview(bytes([number]) * 70_000) for number in range(10)])
views = queue.get()
del queue, mp
for name in [name for name in sys.modules if name.startswith("multiproc.") or name == "multiproc"]:
    del sys.modules[name]
gc.collect()
assert [view[69_999] for view in views] == list(range(10))
del views[::2]
gc.collect()
print([view[0] for view in views])
"""
        assert run_program(program) == ("[1, 3, 5, 7, 9]\n", "", 0)


class TestImport:
    def test_import_starts_nothing(self):
        program = """
import os, sys
before = set(os.listdir("/proc/self/fd"))
import multiproc as mp
assert len(os.listdir("/proc/self/task")) == 1
assert set(os.listdir("/proc/self/fd")) == before
maps = open("/proc/self/maps").read()
assert "memfd:" not in maps and "/dev/shm" not in maps, maps
heavy = {"numpy", "torch", "cloudpickle", "logging", "inspect", "dataclasses", "multiprocessing.pool"}
assert not heavy & set(sys.modules)
queue = mp.Queue()
queue.put(0)
assert "memfd:" in open("/proc/self/maps").read()
"""
        assert run_program(program) == ("", "", 0)

    def test_import_is_fast(self, tmp_path):
        program = """
import resource
def time():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
before = time()
import multiproc
print(time() - before)
"""
        # Compiled modules are stored, as an installer does.
        environment = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # Other programs on this machine can make single runs slower.
        runs = (float(run_program(program, env=environment)[0]) for _ in range(20))
        assert any(seconds <= 0.030 for seconds in runs)

    def test_subinterpreters_are_refused(self):
        program = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import multiproc
code = '''
try:
    import multiproc
except ImportError as error:
    print(error)
'''
interpreter = interpreters.create()
interpreters.run_string(interpreter, code)
interpreters.destroy(interpreter)
queue = multiproc.Queue()
queue.put("main")
print(queue.get())
"""
        out, err, code = run_program(program)
        lines = out.splitlines()
        assert (err, code, lines[-1]) == ("", 0, "main")
        assert "subinterpreters" in lines[0] and len(lines) == 2


class TestCopies:
    def test_second_copy_in_the_process_is_refused(self, tmp_path):
        library = pathlib.Path(mp._multiproc.__file__)
        shutil.copy(library, tmp_path / library.name)
        program = f"""
import multiproc as mp, sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
path = {str(tmp_path / library.name)!r}
loader = ExtensionFileLoader("other._multiproc", path)
other = module_from_spec(spec_from_loader("other._multiproc", loader, origin=path))
loader.exec_module(other)
mine, theirs = mp.Queue(), other.Queue()
for queue in [mine, theirs]:
    queue.put([1])
    assert queue.get() == [1]
for one, two in [(mine, theirs), (theirs, mine)]:
    try:
        one.put(two)
    except RuntimeError as error:
        print(error)
"""
        out, err, code = run_program(program)
        assert (err, code) == ("", 0)
        assert out.count("belongs to the processes of one program") == 2

    def test_replaced_library_is_a_clear_error(self, tmp_path, method):
        package = pathlib.Path(mp.__file__).parent
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, tmp_path / "site" / "multiproc", ignore=ignore)
        library = tmp_path / "site" / "multiproc" / pathlib.Path(mp._multiproc.__file__).name
        program = f"""
import multiproc as mp, os, sys
assert mp.__file__.startswith({str(tmp_path)!r})
def f():
    print("has run")
if __name__ == "__main__":
    library = {str(library)!r}
    data = bytearray(open(library, "rb").read())
    # The note of the build id: sizes, type, name, id.
    at = data.index(b"\\x03\\0\\0\\0GNU\\0") + 8
    data[at] ^= 1
    with open(library + ".new", "wb") as file:
        file.write(data)
    os.replace(library + ".new", library)
    try:
        process = mp.get_context({method!r}).Process(target=f)
        process.start()
        process.join()
        sys.exit(process.exitcode)
    except RuntimeError as error:
        sys.exit(str(error))
"""
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
        out, err, code = run_script(tmp_path, program, env=environment)
        assert out == "" and code not in (0, None)
        assert "another build" in err or "build id" in err or "build-id" in err


FLAGS = """
import sys
sys.path.insert(0, SITE)
import multiproc as mp

def numbers():
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if not name.startswith("_")}
    return {name: value for name, value in flags.items() if isinstance(value, int)}

def f(queue):
    queue.put((numbers(), sys.warnoptions, sys._xoptions, sys.prefix, sys.path))

if __name__ == "__main__":
    for method in mp.get_all_start_methods():
        queue = mp.Queue()
        process = mp.get_context(method).Process(target=f, args=(queue,))
        process.start()
        flags, warnoptions, xoptions, prefix, path = queue.get(timeout=20)
        process.join()
        assert process.exitcode == 0
        assert flags == numbers(), (flags, numbers())
        assert (warnoptions, xoptions, prefix) == (sys.warnoptions, sys._xoptions, sys.prefix)
        # The main module has changed its path there, too.
        assert [*dict.fromkeys(path)] == [*dict.fromkeys(sys.path)]
    print(sys.flags.optimize)
"""


class TestFlags:
    @pytest.mark.parametrize(
        "flags",
        [
            ["-O"],
            ["-OO", "-B"],
            ["-I"],
            ["-S"],
            ["-I", "-S", "-O"],
            ["-E", "-s"],
            ["-P"],
            ["-X", "dev"],
            ["-X", "utf8=1", "-W", "error"],
            ["-X", "dev", "-W", "error"],
        ],
        ids=" ".join,
    )
    def test_processes_have_the_flags(self, tmp_path, flags):
        program = FLAGS.replace("SITE", repr(str(pathlib.Path(mp.__file__).parents[1])))
        optimize = 2 if "-OO" in flags else int("-O" in flags)
        assert run_script(tmp_path, program, *flags) == (f"{optimize}\n", "", 0)

    def test_normal_exit_warns_of_nothing(self, tmp_path):
        program = """
import multiproc as mp, sys
def f(index, queue):
    queue.put(bytearray(100_000))
if __name__ == "__main__":
    queue = mp.Queue()
    for method in mp.get_all_start_methods():
        mp.start_processes(f, args=(queue,), nprocs=2, start_method=method)
        process = mp.get_context(method).Process(target=f, args=(0, queue))
        process.start()
        process.join()
        for _ in range(3):
            queue.get(timeout=20)
    print("ended")
"""
        flags = ["-X", "dev", "-W", "error"]
        assert run_script(tmp_path, program, *flags) == ("ended\n", "", 0)

    def test_processes_are_in_the_virtual_environment(self, tmp_path):
        import venv

        venv.EnvBuilder(symlinks=True, with_pip=False).create(tmp_path / "env")
        program = FLAGS.replace("SITE", repr(str(pathlib.Path(mp.__file__).parents[1])))
        program = program.replace("print(sys.flags.optimize)", "print(sys.prefix)")
        (tmp_path / "program.py").write_text(program)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [tmp_path / "env" / "bin" / "python", tmp_path / "program.py"]
        assert run_command(command, env=environment) == (f"{tmp_path / 'env'}\n", "", 0)
