"""Interrupts of waits, and of the group of processes."""

import os
import signal
import subprocess
import sys

import pytest

import multiproc as mp
from programs import run_program, run_script

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
