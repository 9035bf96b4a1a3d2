"""Programs under low limits, without directories and after deaths: success, or an error with the cause.

Each program runs in an interpreter of its own, so that a hang is a failed test.
"""

import signal
import subprocess
import sys

import pytest

import multiproc as mp
from programs import run_command, run_script

BEGIN = """
import os, resource, sys
import multiproc as mp
from multiproc import connection, shared_memory

def echo(inbox, outbox):
    for obj in iter(inbox.get, None):
        outbox.put(obj)

def queue():
    queue = mp.Queue()
    queue.put(bytes(100_000))
    return len(queue.get())

def process(method):
    inbox, outbox = mp.Queue(), mp.Queue()
    process = mp.get_context(method).Process(target=echo, args=(inbox, outbox))
    process.start()
    inbox.put(5)
    found = outbox.get(timeout=20)
    inbox.put(None)
    process.join()
    return found, process.exitcode

def pool():
    with mp.get_context("forkserver").Pool(2) as pool:
        return pool.map(abs, range(-3, 0))

def named(size=100):
    memory = shared_memory.SharedMemory(create=True, size=size)
    memory.unlink()
    return memory.size

def error_of(call, *args):
    try:
        return call(*args)
    except Exception as error:
        print(type(error).__name__, error, sep=": ")

def limit(name, most):
    resource.setrlimit(getattr(resource, name), (most, most))

def fill_descriptors(left):
    files = []
    try:
        while True:
            files.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for _ in range(left):
            os.close(files.pop())

def main():
"""
END = """
if __name__ == "__main__":
    main()
"""
UNPRIVILEGED = """
import json
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
"""


def run(folder, body, *before):
    """Runs the body of ``main``, by a command that begins with ``before``. Returns its output."""
    program = BEGIN + "".join(f"    {line}\n" for line in body.strip().splitlines()) + END
    (folder / "program.py").write_text(program)
    out, err, code = run_command([*before, sys.executable, str(folder / "program.py")], timeout=60)
    assert (err, code) == ("", 0)
    return out


def run_mounted(folder, mount, body):
    """The same with other mounted file systems. Skips the test where these are refused."""
    before = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    try:
        tried = subprocess.run([*before, "true"], capture_output=True, timeout=20)
    except OSError as error:
        pytest.skip(f"unshare can't be run: {error}")
    if tried.returncode != 0:
        pytest.skip(f"no file system can be mounted: {tried.stderr.decode()}")
    return run(folder, body, *before)


class TestDescriptors:
    @pytest.mark.parametrize("most", [32, 64])
    def test_queues_and_processes_need_few_descriptors(self, tmp_path, most):
        body = f"""
limit("RLIMIT_NOFILE", {most})
queues = [mp.Queue() for _ in range(200)]
for number, each in enumerate(queues):
    each.put(number)
objects = [(mp.Lock(), mp.Event(), mp.Value("i", 1), mp.Pipe()) for _ in range(100)]
print(sum(each.get() for each in queues), process("spawn"), process("forkserver"), pool())
"""
        assert run(tmp_path, body) == "19900 (5, 0) (5, 0) [3, 2, 1]\n"

    def test_filenos_beyond_the_limit_name_it(self, tmp_path):
        body = """
limit("RLIMIT_NOFILE", 32)
queues = [mp.Queue() for _ in range(200)]
error_of(lambda: [each.fileno() for each in queues])
"""
        expected = "OSError: [Errno 24] eventfd (see RLIMIT_NOFILE): Too many open files"
        assert run(tmp_path, body).startswith(expected)

    @pytest.mark.parametrize("most", [32, 64])
    def test_tensors_need_no_descriptors(self, tmp_path, most):
        pytest.importorskip("torch")
        body = f"""
import torch
limit("RLIMIT_NOFILE", {most})
queue, tensors = mp.Queue(), []
for number in range(200):
    queue.put(torch.full((100,), number))
    tensors.append(queue.get())
print(sum(int(tensor[99]) for tensor in tensors))
"""
        assert run(tmp_path, body) == "19900\n"

    def test_tensors_that_torch_shares_name_the_limit(self, tmp_path):
        # torch has one descriptor for each of these.
        pytest.importorskip("torch")
        body = """
import torch
limit("RLIMIT_NOFILE", 64)
queue, tensors = mp.Queue(), []
def send():
    while True:
        queue.put(torch.zeros(100).share_memory_())
        tensors.append(queue.get())
error_of(send)
"""
        out = run(tmp_path, body)
        assert "OSError: [Errno 24] " in out and "64 descriptors" in out and "`ulimit -n`" in out

    @pytest.mark.parametrize("method", mp.get_all_start_methods())
    def test_start_without_free_descriptors_names_the_limit(self, tmp_path, method):
        body = f"""
import json
queue()
limit("RLIMIT_NOFILE", 40)
fill_descriptors(left=3)
error_of(process, {method!r})
print(queue())
"""
        out, count = run(tmp_path, body).splitlines()
        assert out.startswith("OSError: [Errno 24] ") and "40 descriptors" in out and "`ulimit -n`" in out
        assert count == "100000"


class TestMemory:
    def test_address_space_too_small_for_the_arena_is_named(self, tmp_path):
        body = """
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit("RLIMIT_AS", size + (48 << 20))
error_of(queue)
error_of(process, "spawn")
"""
        for line in run(tmp_path, body).splitlines():
            assert line.startswith("MemoryError: ") and "left under RLIMIT_AS (ulimit -v)" in line

    def test_address_space_of_one_gigabyte_suffices(self, tmp_path):
        body = """
limit("RLIMIT_AS", 1 << 30)
print(queue(), process("spawn"), process("forkserver"), pool())
"""
        assert run(tmp_path, body) == "100000 (5, 0) (5, 0) [3, 2, 1]\n"

    @pytest.mark.parametrize("most", [1 << 10, 1 << 20, 20 << 20])
    def test_file_size_too_small_for_the_arena_is_named(self, tmp_path, most):
        # The result is an error, not the signal SIGXFSZ, which would end the process.
        body = f"""
limit("RLIMIT_FSIZE", {most})
error_of(queue)
error_of(named, 64 << 20)
error_of(process, "forkserver")
print(named(100))
"""
        *errors, size = run(tmp_path, body).splitlines()
        assert size == "100" and len(errors) == 3
        for line in errors:
            assert line.startswith("MemoryError: ") and "left under RLIMIT_FSIZE (ulimit -f)" in line

    def test_array_beyond_the_file_size_is_refused(self, tmp_path):
        pytest.importorskip("numpy")
        body = """
limit("RLIMIT_FSIZE", 100 << 20)
error_of(lambda: mp.zeros(200 << 20, dtype="u1"))
print(queue(), process("spawn"))
"""
        error, rest = run(tmp_path, body).splitlines()
        assert error.startswith("MemoryError: ") and "200 MiB asked" in error
        assert rest == "100000 (5, 0)"


class TestProcesses:
    # A privileged user has no such limit.
    DROP = UNPRIVILEGED + 'limit("RLIMIT_NPROC", 1)\n'

    def test_limit_of_processes_is_named(self, tmp_path):
        out = run(tmp_path, self.DROP + 'error_of(process, "spawn")\nprint(queue())')
        error, count = out.splitlines()
        assert error.startswith("RuntimeError: could not start a process: ")
        assert "The limit is RLIMIT_NPROC = 1 (processes, ulimit -u)" in error and count == "100000"

    def test_limit_is_named_for_the_resource_tracker(self, tmp_path):
        body = "import multiprocessing.resource_tracker" + self.DROP + 'error_of(process, "spawn")\n'
        error = run(tmp_path, body)
        assert error.startswith("RuntimeError: could not start the resource tracker of multiprocessing: ")
        assert "The limit is RLIMIT_NPROC = 1 (processes, ulimit -u)" in error

    def test_pool_without_a_thread_raises(self, tmp_path):
        error = run(tmp_path, "import multiproc.pool" + self.DROP + "error_of(pool)")
        assert error.startswith("OSError: ") and "the thread of the pool" in error
        assert "RLIMIT_NPROC = " in error or "pids.max" in error


class TestDirectories:
    WORKS = 'print(queue(), process("spawn"), process("forkserver"), pool())\n'
    WORKED = "100000 (5, 0) (5, 0) [3, 2, 1]"

    def test_only_names_need_dev_shm(self, tmp_path):
        body = self.WORKS + "error_of(named)"
        out, error = run_mounted(tmp_path, "mount -t tmpfs none /dev", body).splitlines()
        assert out == self.WORKED
        assert error.startswith("FileNotFoundError: ") and "a file in /dev/shm" in error

    def test_full_dev_shm_is_named(self, tmp_path):
        mount = "mount -t tmpfs -o size=4k none /dev/shm"
        out, error = run_mounted(tmp_path, mount, self.WORKS + "error_of(named, 1 << 22)").splitlines()
        assert out == self.WORKED
        assert error.startswith("MemoryError: ") and "df /dev/shm" in error

    def test_forbidden_dev_shm_is_named(self, tmp_path):
        mount = "mount -t tmpfs -o mode=000 none /dev/shm"
        body = UNPRIVILEGED + "error_of(named)\nprint(queue())"
        error, count = run_mounted(tmp_path, mount, body).splitlines()
        assert error.startswith("PermissionError: ") and "a file in /dev/shm" in error and count == "100000"

    def test_read_only_dev_shm_is_named(self, tmp_path):
        error = run_mounted(tmp_path, "mount -t tmpfs -o ro none /dev/shm", "error_of(named)")
        assert error.startswith("OSError: [Errno 30] Read-only file system: ") and "a file in /dev/shm" in error

    def test_only_unnamed_listeners_need_a_temporary_directory(self, tmp_path):
        mount = "mount -o bind,ro /tmp /tmp && mount -t tmpfs -o ro none /var/tmp && cd /proc"
        body = self.WORKS + """
os.environ.pop("TMPDIR", None)
error_of(lambda: connection.Listener(family="AF_UNIX"))
with connection.Listener(family="AF_INET") as listener:
    print(listener.address[0])
"""
        out, error, address = run_mounted(tmp_path, mount, body).splitlines()
        assert (out, address) == (self.WORKED, "127.0.0.1")
        assert "No usable temporary directory" in error


CREATOR = """
import os, select, signal, subprocess, sys
import multiproc as mp
from multiproc import connection

def survive(path, creator):
    ended = os.pidfd_open(int(creator))
    with connection.Client(path, allow_pickle=True) as there:
        queue, back, array = there.accept_invitation(timeout=20)
    back.put(queue.get(timeout=20))
    select.select([ended], [], [], 20)
    for call in (queue.get, lambda: [queue.put(number) for number in range(9)]):
        try:
            call()
        except mp.PeerLost as error:
            print(f"process {creator} " in str(error))
    own = mp.Queue()
    own.put("own")
    print(queue.get_many(9), bytes(array), own.get())

if __name__ == "__main__" and len(sys.argv) == 3:
    survive(*sys.argv[1:])
elif __name__ == "__main__":
    queue, back = mp.Queue(5), mp.Queue()
    with connection.Listener(sys.argv[1], allow_pickle=True) as listener:
        subprocess.Popen([sys.executable, __file__, sys.argv[1], str(os.getpid())])
        with listener.accept() as here:
            here.invite((queue, back, memoryview(mp.RawArray("B", b"abc"))))
            queue.put("hello")
            assert back.get(timeout=20) == "hello"
            os.kill(os.getpid(), signal.SIGKILL)
"""

LAST = """
import multiproc as mp, os, signal
def wait(queue, ready):
    ready.put(None)
    queue.get()
if __name__ == "__main__":
    for method in mp.get_all_start_methods():
        queue, ready = mp.Queue(1), mp.Queue()
        processes = [mp.get_context(method).Process(target=wait, args=(queue, ready)) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            ready.get(timeout=20)
        for process in processes:
            process.kill()
        for call in (queue.get, lambda: [queue.put(number) for number in range(2)]):
            try:
                call()
            except mp.PeerLost as error:
                print("is gone" in str(error))
        print(queue.get(), mp.Value("i", 7).value)
"""


class TestDeadPrograms:
    def test_survivor_of_a_killed_creator_continues(self, tmp_path):
        (tmp_path / "program.py").write_text(CREATOR)
        out, err, code = run_command([sys.executable, str(tmp_path / "program.py"), str(tmp_path / "socket")])
        assert (out, err, code) == ("True\nTrue\n[0, 1, 2, 3, 4] b'abc' own\n", "", -signal.SIGKILL)

    def test_last_process_of_a_program_continues(self, tmp_path):
        assert run_script(tmp_path, LAST) == ("True\nTrue\n0 7\n" * 2, "", 0)
