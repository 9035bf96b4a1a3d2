"""Invitations over a connection: programs that were not started by one another share memory."""

import contextlib
import signal
import subprocess
import sys

import numpy
import pytest

import multiproc as mp
from multiproc import connection

WAIT = 20
JOB = "test/job/1(jobs:queue<test/item/1(x:i64)>,sums:queue<test/sum/1(x:i64)>)"
BEGIN = """
import sys
from multiproc import connection
there = connection.Client(sys.argv[1], allow_pickle=sys.argv[2] == "True")
"""


@contextlib.contextmanager
def connected(tmp_path, program, allow_pickle=True):
    """Runs another program, and yields the connection to it and its process."""
    with connection.Listener(str(tmp_path / "socket"), allow_pickle=allow_pickle) as listener:
        words = [sys.executable, "-c", BEGIN + program, listener.address, str(allow_pickle)]
        process = subprocess.Popen(words)
        try:
            with listener.accept() as here:
                yield here, process
        finally:
            process.kill()
            process.wait(WAIT)


def test_invited_program_shares_queues_and_arrays(tmp_path):
    program = """
jobs, sums, counts = there.accept_invitation(timeout=20)
while (job := jobs.get(timeout=20)) is not None:
    counts[0] += 1
    sums.put(float(job.sum()))
"""
    with connected(tmp_path, program) as (here, process):
        jobs, sums = mp.Queue(), mp.Queue()
        counts = mp.share(numpy.zeros(4))
        invitation = here.invite((jobs, sums, counts))
        for i in range(5):
            jobs.put(numpy.full(5000, i))
            assert sums.get(timeout=WAIT) == 5000 * i
        assert invitation.wait(WAIT)
        assert "Accepted" in repr(invitation)
        assert counts[0] == 5
        jobs.put(None)
        assert process.wait(WAIT) == 0


def test_lock_of_a_killed_guest_is_released(tmp_path):
    program = """
lock, ready = there.accept_invitation(timeout=20)
lock.acquire()
ready.set()
import signal
signal.pause()
"""
    with connected(tmp_path, program) as (here, process):
        lock, ready = mp.Lock(), mp.Event()
        here.invite((lock, ready))
        assert ready.wait(WAIT)
        assert not lock.acquire(block=False)
        process.send_signal(signal.SIGKILL)
        assert lock.acquire(timeout=WAIT)


def test_invitation_with_a_schema_needs_no_pickle(tmp_path):
    program = f"""
job = there.accept_invitation({JOB!r}, timeout=20)
job["sums"].put({{"x": sum(item["x"] for item in job["jobs"])}})
"""
    with connected(tmp_path, program, allow_pickle=False) as (here, process):
        jobs, sums = mp.TypedQueue("test/item/1(x:i64)"), mp.TypedQueue("test/sum/1(x:i64)")
        here.invite({"jobs": jobs, "sums": sums}, JOB)
        for i in range(10):
            jobs.put({"x": i})
        jobs.shutdown()
        assert sums.get(timeout=WAIT)["x"] == 45
        assert process.wait(WAIT) == 0


def test_invitation_without_pickle_is_refused(tmp_path):
    program = """
try:
    there.accept_invitation(timeout=20)
except PermissionError:
    sys.exit(3)
"""
    with connected(tmp_path, program, allow_pickle=False) as (here, process):
        with pytest.raises(PermissionError, match="allow_pickle"):
            here.invite(1)
        assert process.wait(WAIT) == 3


def test_accept_with_own_memory_raises(tmp_path):
    program = """
import multiproc
queue = multiproc.Queue()
try:
    there.accept_invitation(timeout=20)
except RuntimeError as error:
    there.send(str(error))
"""
    with connected(tmp_path, program) as (here, _):
        invitation = here.invite(mp.Queue())
        assert "memory" in here.recv()
        assert not invitation.wait(WAIT)


def test_invitation_to_an_ended_program_lapses(tmp_path):
    with connected(tmp_path, "there.send('begun'); import signal; signal.pause()") as (here, process):
        assert here.recv() == "begun"
        invitation = here.invite(mp.Queue())
        process.kill()
        assert not invitation.wait(WAIT)
        with pytest.raises(BrokenPipeError):
            here.invite(mp.Queue())


def test_wait_for_an_invitation_ends_in_time(tmp_path):
    program = """
try:
    there.accept_invitation(timeout=0.01)
except TimeoutError:
    there.send("late")
    print(there.accept_invitation(timeout=20)["x"])
"""
    with connected(tmp_path, program) as (here, process):
        assert here.recv() == "late"
        invitation = here.invite({"x": 1})
        assert invitation.wait(WAIT)
        assert process.wait(WAIT) == 0


def test_pipe_carries_no_invitation():
    here, there = mp.Pipe()
    with pytest.raises(RuntimeError, match="pipe are in one memory"):
        here.invite(1)
    with pytest.raises(RuntimeError, match="pipe are in one memory"):
        there.accept_invitation(timeout=0)


def test_accept_ends_when_the_other_program_ends(tmp_path):
    from test_invitations import connected

    with connected(tmp_path, "there.recv()") as (here, process):
        here.send(None)
        with pytest.raises(EOFError):
            here.accept_invitation(timeout=WAIT)
