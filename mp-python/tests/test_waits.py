"""Waits of Python programs, as reports and other processes see them."""

import re
import subprocess
import sys
import threading

import pytest

# Threads that wait in all kinds of calls, each in a line of its own.
PROGRAM = """\
import threading
import multiproc as mp

def main():
    ctx = mp.get_context("spawn")
    queue, full, tasks = ctx.Queue(), ctx.Queue(1), ctx.JoinableQueue()
    full.put(0)
    tasks.put(0)
    lock, event, barrier, condition = ctx.Lock(), ctx.Event(), ctx.Barrier(2), ctx.Condition()
    lock.acquire()
    here, there = ctx.Pipe()
    child = ctx.Process(target=event.wait, daemon=True)
    child.start()

    def notified():
        with condition:
            condition.wait()

    waits = [
        lambda: queue.get(),
        lambda: full.put(1),
        lambda: tasks.join(),
        lambda: lock.acquire(),
        lambda: event.wait(),
        lambda: barrier.wait(),
        notified,
        lambda: here.recv(),
    ]
    for wait in waits:
        threading.Thread(target=wait, daemon=True).start()
    child.join()

if __name__ == "__main__":
    main()
"""

# Calls, with the names of their waits.
CALLS = {
    "queue.get()": "Queue::get",
    "full.put(1)": "Queue::put",
    "tasks.join()": "JoinableQueue::join",
    "lock.acquire()": "Semaphore::acquire",
    "event.wait()": "Event::wait",
    "barrier.wait()": "Barrier::wait",
    "condition.wait()": "Condition::wait",
    "here.recv()": "Connection::recv",
    "child.join()": "join",
}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The program, which ends with the test."""
    monkeypatch.setenv("MP_STALL", "1")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py")]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    timer = threading.Timer(60, running.kill)
    timer.start()
    yield running
    timer.cancel()
    running.kill()
    running.communicate()


def test_long_waits_are_reported_with_their_lines(program):
    missing, said = dict(CALLS), []
    for text in program.stderr:
        said.append(text)
        waits = re.search(r"has waited .* in (\w+(?:::\w+)?).* \[(.*)program\.py:(\d+)\]$", text)
        if waits:
            line = PROGRAM.splitlines()[int(waits[3]) - 1]
            for call in [call for call in missing if call in line]:
                assert missing.pop(call) == waits[1], text
        if not missing:
            return
    pytest.fail(f"no report of {missing} in:\n" + "".join(said))
