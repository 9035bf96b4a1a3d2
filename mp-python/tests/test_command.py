"""The command ``mp``."""

import subprocess
import sys
import time

import pytest

PROGRAM = """
import sys
import multiproc as mp

jobs = mp.Queue(4)
jobs.put("a text that is longer than a slot")
print("ready", flush=True)
sys.stdin.read()
"""


def mp(*arguments):
    command = [sys.executable, "-m", "multiproc.command", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def program():
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.stdin.close()


def test_show_lists_the_queues_of_a_program(program):
    shown = mp("show", str(program.pid))
    assert shown.returncode == 0, shown.stderr
    line = next(line for line in shown.stdout.splitlines() if " queue " in line)
    assert "1/4" in line and str(program.pid) in line


def test_wrong_arguments_are_exit_code_2():
    assert mp("whx").returncode == 2


def test_process_without_shared_memory_is_an_error():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        shown = mp("why", str(process.pid))
        process.stdin.close()
    assert shown.returncode == 1 and "has no shared memory" in shown.stderr


def test_interrupt_ends_a_repeated_command(program):
    command = [sys.executable, "-m", "multiproc.command", "ls", "--watch", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as repeated:
        assert b"PID" in repeated.stdout.readline()
        repeated.send_signal(2)
        deadline = time.monotonic() + 30
        while repeated.poll() is None and time.monotonic() < deadline:
            repeated.stdout.read(64)
        assert repeated.returncode == -2
