"""Life of the interpreter: exits, forks, threads, and finalization."""

import os
import signal
import subprocess
import sys
from multiprocessing import connection

import pytest

import multiproc as mp
from programs import run_program, run_script

LIMIT = 20
METHODS = mp.get_all_start_methods()


class TestExit:
    def test_waiting_daemon_threads_do_not_block_exit(self):
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
import atexit, multiproc as mp, sys, time
def sleep():
    time.sleep(60)
def late(queue, ends):
    ends.get(timeout=40)
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
    ends = mp.Queue()
    ctx.Process(target=late, args=(queue, ends)).start()
    # The process runs on while this one exits.
    atexit.register(ends.put, None)
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
    def test_use_after_fork_error_names_process(self, tmp_path):
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

    def test_views_of_shared_memory_work_in_a_fork(self, tmp_path):
        program = """
import ctypes, multiproc as mp, numpy, os
counters = mp.RawArray("q", range(4))
filled = mp.zeros(100_000, dtype="int64")
filled[:] = 5
queue = mp.Queue()
queue.put((numpy.arange(5000), b"x" * 50_000, filled))
received, data, same = queue.get()
view = memoryview(data)
pid = os.fork()
if pid == 0:
    assert list(counters) == [0, 1, 2, 3] and received.sum() == 5000 * 4999 // 2
    assert view[49_999] == ord("x") and same[99_999] == 5
    # Nothing of this reaches the parent, which may use the memory for something else.
    counters[0] = received[0] = filled[0] = 77
    ctypes.memset(ctypes.addressof(counters), 255, 8)
    assert (counters[0], received[0], same[0]) == (-1, 77, 77)
    # A child of the child.
    if (inner := os.fork()) == 0:
        os._exit(int(received[0]) - 70)
    assert os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) == 7
    del counters, received, filled, same, view, data
    raise SystemExit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert (counters[0], received[0], filled[0]) == (0, 0, 5)
# Memory that the child had released would be allocated again.
others = [mp.zeros(100_000, dtype="int64") for _ in range(3)]
assert (filled[1:] == 5).all() and not any(other.any() for other in others)
print("parent")
"""
        flags = ["-W", "ignore::DeprecationWarning"]
        assert run_script(tmp_path, program, *flags) == ("parent\n", "", 0)

    def test_fork_sees_later_writes_to_untouched_pages(self, tmp_path):
        program = """
import multiproc as mp, os
shared = mp.zeros(100_000, dtype="int64")
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(read, 1)
    os._exit(int(shared[50_000]))
shared[50_000] = 7
os.write(write, b"x")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
        assert run_script(tmp_path, program) == ("7\n", "", 0)

    def test_private_arrays_work_in_a_fork(self, tmp_path):
        program = """
import multiproc as mp, numpy, os
def forked(array):
    array[0] = 9
    pid = os.fork()
    if pid == 0:
        array[1] = 8
        code = int(array[0] + array[1] + array[2])
        del array
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), array[:3].tolist()
if __name__ == "__main__":
    with mp.get_context("forkserver").Pool(1, initargs=(numpy.ones(50_000),), initializer=len) as pool:
        print(pool.apply(forked, (numpy.ones(50_000),)))
"""
        flags = ["-W", "ignore::DeprecationWarning"]
        assert run_script(tmp_path, program, *flags) == ("(18, [9.0, 1.0, 1.0])\n", "", 0)

    def test_each_call_in_a_fork_is_an_error(self, tmp_path):
        program = """
import multiproc as mp, numpy, os, sys
tasks, simple, typed = mp.JoinableQueue(), mp.SimpleQueue(), mp.TypedQueue("test/item/1(x:i64)")
tasks.put(1), tasks.put(2)
tasks.get()
here, there = mp.Pipe()
there.send(1)
array, value, raw = mp.Array("q", 3), mp.Value("d", 1.5), mp.RawArray("q", 3)
lock, rlock, semaphore, event = mp.Lock(), mp.RLock(), mp.Semaphore(), mp.Event()
condition, barrier = mp.Condition(), mp.Barrier(2)
shared = mp.zeros(1000)
calls = {
    "task_done": tasks.task_done, "join": tasks.join, "get": tasks.get, "qsize": tasks.qsize,
    "empty": tasks.empty, "full": tasks.full, "fileno": tasks.fileno, "get_ack": tasks.get_ack,
    "get_many": lambda: tasks.get_many(2), "put_many": lambda: tasks.put_many([1]),
    "dead_letter": tasks.dead_letter, "shutdown": tasks.shutdown,
    "simple get": simple.get, "simple put": lambda: simple.put(1), "simple empty": simple.empty,
    "typed get": typed.get, "typed put": lambda: typed.put({"x": 1}), "typed qsize": typed.qsize,
    "recv": here.recv, "send": lambda: here.send(1), "poll": here.poll,
    "send_bytes": lambda: here.send_bytes(b"1"), "Array": lambda: array[0], "Array slice": lambda: array[:],
    "Array write": lambda: array.__setitem__(0, 1),
    "Value": lambda: value.value, "lock": lock.acquire, "rlock": rlock.acquire, "release": lock.release,
    "semaphore": semaphore.acquire, "get_value": semaphore.get_value, "event": event.wait, "set": event.set,
    "is_set": event.is_set, "condition": condition.acquire, "barrier": barrier.wait,
    "n_waiting": lambda: barrier.n_waiting,
    "zeros": lambda: mp.zeros(3), "share": lambda: mp.share(shared), "new Value": lambda: mp.Value("q"),
    "new RawArray": lambda: mp.RawArray("q", 3), "new Lock": mp.Lock, "Pool": lambda: mp.Pool(1),
    "Pipe": mp.Pipe,
}
pid = os.fork()
if pid == 0:
    wrong = []
    for name, call in calls.items():
        try:
            found = f"returned {call()!r}"
        except RuntimeError as error:
            if "os.fork" in str(error):
                continue
            found = repr(error)
        except BaseException as error:
            found = repr(error)
        wrong.append((name, found))
    for each in [tasks, simple, typed, here, lock, rlock, semaphore, event, condition, barrier, array, value]:
        repr(each)
    for each in [tasks, here]:
        each.close()
    print(wrong, flush=True)
    del calls, tasks, simple, typed, here, there, array, value, raw, lock, rlock, semaphore, event, condition
    del barrier, shared
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
tasks.task_done()
assert (tasks.qsize(), tasks.get(), here.recv(), value.value) == (1, 2, 1, 1.5) and lock.acquire(timeout=0)
"""
        flags = ["-W", "ignore::DeprecationWarning"]
        assert run_script(tmp_path, program, *flags) == ("[]\n7\n", "", 0)

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


def test_daemon_that_starts_at_exit_is_ended(tmp_path):
    program = """
import atexit, time
@atexit.register
def late():
    # Runs after the exit functions of multiprocessing, which end the daemons that they know.
    process = mp.get_context("forkserver").Process(target=time.sleep, args=(60,), daemon=True)
    process.start()
    print("late", flush=True)
import multiproc as mp
"""
    out, err, code = run_script(tmp_path, program, timeout=20)
    assert (out, code) == ("late\n", 0)
