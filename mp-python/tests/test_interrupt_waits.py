"""Signals in every call that waits."""

import importlib.util
import os
import select
import signal
import subprocess
import sys
import time

import pytest

LIMIT = 20
# Calls in which a thread waits: poll, select, futex, epoll_wait, pselect6, ppoll, epoll_pwait, futex_waitv.
SLEEPS = {"7", "23", "202", "232", "270", "271", "281", "449"}

PROGRAM = """
import multiproc as mp, os, signal, sys, threading, time
from queue import Empty, Full
from multiproc import connection

class Waiting:
    def __init__(self, event):
        self.event = event
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return self.event.wait(50)

def thread(target, *args):
    threading.Thread(target=target, args=args, daemon=True).start()

def wait_in(index, event):
    event.wait(50)

def notify(condition):
    with condition:
        condition.notify()

def hold(lock, held, end):
    with lock:
        held.set()
        end.wait(50)

def sockets():
    clients = []
    listener = connection.Listener(sys.argv[1] + "/socket", allow_pickle=True)
    client = threading.Thread(
        target=lambda: clients.append(connection.Client(listener.address, allow_pickle=True))
    )
    client.start()
    end = listener.accept()
    client.join(20)
    return end, clients[0]

def main(setup, call, wake, expected, mode):
    names = dict(globals(), T=0.6 if mode == "limit" else 50)
    exec(setup, names)
    def wait():
        return eval(call, names)
    def begin():
        os.write(1, b"wait\\n")
        return time.monotonic()
    if mode == "interrupt":
        try:
            begin()
            print("ended with", wait())
        except KeyboardInterrupt:
            print(time.monotonic(), flush=True)
        # The object works as before.
        exec(wake, names)
        found = wait()
    elif mode == "wake":
        signal.signal(signal.SIGUSR1, lambda number, frame: exec(wake, names))
        begin()
        found = wait()
    else:
        signals = []
        signal.signal(signal.SIGALRM, lambda number, frame: signals.append(number))
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        before = begin()
        try:
            wait()
        except (mp.TimeoutError, Empty, Full, threading.BrokenBarrierError):
            pass
        print(time.monotonic() - before, len(signals), flush=True)
        return
    names["found"] = found
    assert eval(expected, names), found
    print("ended", flush=True)

if __name__ == "__main__":
    main(*sys.argv[2:])
"""

POOL = "event = mp.Event(); pool = mp.get_context('forkserver').Pool(1); "
TASK = POOL + "result = pool.apply_async(event.wait, (50,))"
PIPE = "a, b = mp.Pipe()"
CHILD = "event = mp.Event(); process = mp.get_context('forkserver').Process(target=event.wait, daemon=True); "
FULL = "queue = mp.{}; queue.put(0)"
# A fork server that imports a module until a file exists.
SLOW = (
    "go = sys.argv[1] + '/go'; sys.path.insert(0, sys.argv[1]); "
    "open(sys.argv[1] + '/slow.py', 'w').write("
    "f'import os, time\\nend = time.monotonic() + 60\\n'"
    "f'while not os.path.exists({go!r}) and time.monotonic() < end: time.sleep(0.01)'); "
    "context = mp.get_context('forkserver'); context.set_forkserver_preload(['slow']); "
)
ITEM = "test/item/1(x:i64)"
# For each name: the setup, the call, the action that ends the call, and a condition that holds afterwards.
WAITS = {
    "Queue.get": ("queue = mp.Queue()", "queue.get(timeout=T)", "queue.put(1)", "found == 1"),
    "Queue.get for ever": ("queue = mp.Queue()", "queue.get()", "queue.put(1)", "found == 1"),
    "Queue.put": (
        FULL.format("Queue(1)"), "queue.put(1, timeout=T)", "queue.get()",
        "queue.get() == 1 and queue.empty()",
    ),
    "Queue.put for ever": (
        FULL.format("Queue(1)"), "queue.put(1)", "queue.get()", "queue.get() == 1 and queue.empty()",
    ),
    "Queue.put_many": (
        FULL.format("Queue(1)"), "queue.put_many([1], timeout=T)", "queue.get()",
        "found == 1 == queue.get() and queue.empty()",
    ),
    "Queue.get_many": ("queue = mp.Queue()", "queue.get_many(2, T)", "queue.put(1)", "found == [1]"),
    "Queue.get_ack": (
        "queue = mp.Queue()", "queue.get_ack(timeout=T)", "queue.put(1)",
        "found.value == 1 and found.ack() is None",
    ),
    "SimpleQueue.get": ("queue = mp.SimpleQueue()", "queue.get()", "queue.put(1)", "found == 1"),
    "JoinableQueue.join": (
        FULL.format("JoinableQueue()") + "; queue.get()", "queue.join()", "queue.task_done()",
        "queue.empty()",
    ),
    "TypedQueue.get": (
        f"queue = mp.TypedQueue({ITEM!r})", "queue.get(timeout=T)", "queue.put({'x': 1})", "found['x'] == 1",
    ),
    "TypedQueue.put": (
        f"queue = mp.TypedQueue({ITEM!r}, 1); queue.put({{'x': 0}})", "queue.put({'x': 1}, timeout=T)",
        "queue.get()", "queue.get()['x'] == 1 and queue.empty()",
    ),
    "Connection.recv": (PIPE, "a.recv()", "b.send(1)", "found == 1"),
    "Connection.poll": (PIPE, "a.poll(T)", "b.send(1)", "found and a.recv() == 1"),
    "socket send_bytes": (
        "a, b = sockets(); big = bytes(16 << 20); got = mp.Queue(); a.send_bytes(big)", "a.send_bytes(b'1')",
        "thread(lambda: got.put(b.recv_bytes() == big))",
        "got.get(timeout=20) and b.recv_bytes() == b'1' and not b.poll(0.01)",
    ),
    "socket recv": ("a, b = sockets()", "a.recv()", "b.send(1)", "found == 1"),
    "socket poll": ("a, b = sockets()", "a.poll(T)", "b.send(1)", "found and a.recv() == 1"),
    "connection.wait": (PIPE, "connection.wait([a], T)", "b.send(1)", "found == [a] and a.recv() == 1"),
    "Listener.accept": (
        "listener = connection.Listener(sys.argv[1] + '/socket')", "listener.accept()",
        "thread(connection.Client, listener.address)", "found",
    ),
    "Client": (
        "listener = connection.Listener(sys.argv[1] + '/socket', backlog=5, authkey=b'key')",
        "connection.Client(listener.address, authkey=b'key')",
        # Both threads accept, also the thread whose wait was interrupted.
        "thread(listener.accept); thread(listener.accept)", "found",
    ),
    "Lock.acquire": (
        "lock = mp.Lock(); lock.acquire()", "lock.acquire(timeout=T)", "lock.release()", "found",
    ),
    "RLock.acquire": (
        "lock = mp.RLock(); held = threading.Event(); end = threading.Event(); "
        "thread(hold, lock, held, end); held.wait(50)",
        "lock.acquire(timeout=T)", "end.set()", "found",
    ),
    "Semaphore.acquire": ("lock = mp.Semaphore(0)", "lock.acquire(timeout=T)", "lock.release()", "found"),
    "Condition.wait": (
        "lock = mp.Condition(); lock.acquire()", "lock.wait(T)", "thread(notify, lock)",
        "found and lock.release() is None",
    ),
    "Event.wait": ("event = mp.Event()", "event.wait(T)", "event.set()", "found"),
    "Barrier.wait": (
        "barrier = mp.Barrier(2)", "barrier.wait(T)",
        "barrier.broken and barrier.reset(); thread(barrier.wait)", "found in (0, 1)",
    ),
    "Process.start": (
        SLOW + "process = context.Process(target=int)", "process.start()", "open(go, 'w').close()",
        "process.join(20) is None and process.exitcode == 0",
    ),
    "Pool": (SLOW, "context.Pool(1)", "open(go, 'w').close()", "found.apply(int) == 0"),
    "Process.join": (CHILD + "process.start()", "process.join(T)", "event.set()", "process.exitcode == 0"),
    "ProcessContext.join": (
        "event = mp.Event(); context = mp.start_processes(wait_in, (event,), join=False, daemon=True)",
        "context.join()", "event.set()", "found",
    ),
    "AsyncResult.get": (TASK, "result.get(T)", "event.set()", "found"),
    "AsyncResult.wait": (TASK, "result.wait(T)", "event.set()", "result.get(0)"),
    "Pool.join": (TASK + "; pool.close()", "pool.join()", "event.set()", "result.get(0)"),
    "imap next": (POOL + "results = pool.imap(event.wait, [50])", "results.next(T)", "event.set()", "found"),
    "DataLoader next": (
        "event = mp.Event(); results = iter(mp.DataLoader(Waiting(event), num_workers=1, batch_size=None))",
        "next(results)", "event.set()", "found",
    ),
}
if importlib.util.find_spec("torch") is None:
    del WAITS["DataLoader next"]
LIMITED = [name for name, (_, call, _, _) in WAITS.items() if "T)" in call]


class Program:
    """A program whose main thread waits."""

    def __init__(self, folder, name, mode):
        path = folder / "program.py"
        path.write_text(PROGRAM)
        command = [sys.executable, path, folder, *WAITS[name], mode]
        self.running = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        self.expect("wait")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.running.kill()
        self.running.communicate(timeout=LIMIT)

    def line(self):
        assert select.select([self.running.stdout], [], [], LIMIT)[0], "no line"
        return self.running.stdout.readline().decode().strip()

    def expect(self, line):
        if (found := self.line()) != line:
            self.running.kill()
            pytest.fail(f"{found!r} {self.running.communicate(timeout=LIMIT)[1].decode()}")

    def signal(self, number):
        """Sends a signal to the main thread when it sleeps. Returns the time."""
        end = time.monotonic() + LIMIT
        while True:
            with open(f"/proc/{self.running.pid}/syscall") as file:
                if file.read().split()[0] in SLEEPS:
                    break
            assert time.monotonic() < end, "the main thread does not sleep"
        sent = time.monotonic()
        os.kill(self.running.pid, number)
        return sent

    def end(self):
        self.expect("ended")
        _, err = self.running.communicate(timeout=LIMIT)
        assert (err.decode(), self.running.returncode) == ("", 0)


@pytest.mark.parametrize("name", WAITS)
def test_interrupt_ends_the_wait_and_loses_nothing(tmp_path, name):
    with Program(tmp_path, name, "interrupt") as program:
        sent = program.signal(signal.SIGINT)
        assert float(program.line()) - sent < 0.5
        program.end()


@pytest.mark.parametrize("name", WAITS)
def test_handler_that_returns_continues_the_wait(tmp_path, name):
    with Program(tmp_path, name, "wake") as program:
        program.signal(signal.SIGUSR1)
        program.end()


@pytest.mark.parametrize("name", LIMITED)
def test_handler_that_returns_keeps_the_time_limit(tmp_path, name):
    with Program(tmp_path, name, "limit") as program:
        # A limit that began again with each signal would have no end.
        time, signals = map(float, program.line().split())
        assert 0.59 < time < 1.5 and signals >= 5
