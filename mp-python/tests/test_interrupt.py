"""Handlers that raise in a wait, and interrupts of the group of processes."""

import os
import signal
import subprocess
import sys

import pytest

import multiproc as mp
from programs import run_program

LIMIT = 20
METHODS = mp.get_all_start_methods()


class TestInterrupt:
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
    # Short sleeps: the interpreter notices a signal that arrives just before a sleep only after it.
    for _ in range(1200):
        time.sleep(0.05)
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

    @pytest.mark.parametrize("call", ["map", "starmap", "imap"])
    def test_group_is_interrupted_in_a_map(self, tmp_path, call):
        program = f"""
import multiproc as mp, os, time
def sleep(number):
    os.write(1, b"ready\\n")
    for _ in range(1200):
        time.sleep(0.05)
if __name__ == "__main__":
    items = [(0,)] * 4 if {call!r} == "starmap" else range(4)
    with mp.Pool(2) as pool:
        list(pool.{call}(sleep, items))
"""
        (tmp_path / "program.py").write_text(program)
        running = subprocess.Popen(
            [sys.executable, tmp_path / "program.py"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )
        assert [running.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        # The workers' exceptions may arrive before this process has handled its own signal.
        os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=LIMIT)
        assert running.returncode == -signal.SIGINT and err.rstrip().endswith("KeyboardInterrupt")
