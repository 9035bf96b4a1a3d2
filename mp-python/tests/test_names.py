"""Names of shared objects, in this process, other processes and the command ``mp``."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest
from programs import run_program
from queue_tasks import WAIT, kill, reprs, start, timed_get, wait_at

import multiproc as mp

KINDS = {
    "queue": lambda: mp.Queue(4),
    "simple queue": mp.SimpleQueue,
    "tasks": mp.JoinableQueue,
    "typed queue": lambda: mp.TypedQueue("job(id:i64)", 4),
    "lock": mp.Lock,
    "rlock": mp.RLock,
    "semaphore": mp.Semaphore,
    "bounded": mp.BoundedSemaphore,
    "condition": mp.Condition,
    "event": mp.Event,
    "barrier": lambda: mp.Barrier(2),
    "value": lambda: mp.Value("i", 3),
    "array": lambda: mp.Array("d", 3),
}


def command(*arguments):
    words = [sys.executable, "-m", "multiproc.command", "--json", *map(str, arguments)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def waits_of(snapshot, process):
    return [wait for found in snapshot["processes"] if found["pid"] == process.pid for wait in found["waits"]]


def named_objects(suffix):
    """Returns an object of each kind by its name, of a pipe the other end, and the named end."""
    objects = {f"{kind}{suffix}": make() for kind, make in KINDS.items()}
    for name, obj in objects.items():
        assert mp.named(obj, name) is obj
    here, objects[f"pipe{suffix}"] = mp.Pipe()
    return objects, mp.named(here, f"pipe{suffix}")


def test_name_reaches_other_processes(one):
    objects, _end = named_objects(1)
    # Values have classes of CPython, which don't print their lock.
    shown = [obj.get_lock() if hasattr(obj, "get_lock") else obj for obj in objects.values()]
    for seen in (reprs(shown), one.apply(reprs, (shown,))):
        assert [name for name, text in zip(objects, seen) if repr(name) not in text] == []


def test_command_shows_names_of_waits(forkserver):
    objects, _end = named_objects(2)
    for obj in objects.values():
        if not hasattr(obj, "wait") and hasattr(obj, "acquire"):
            obj.acquire()
    objects["tasks2"].put("a task that is never done")
    worker = start(forkserver, wait_at, list(objects.values()))
    end, seen = time.monotonic() + WAIT, set()
    while seen != {*objects}:
        assert time.monotonic() < end, {*objects} - seen
        snapshot = command("show", os.getpid())["snapshot"]
        names = {entry["block"]: entry["name"] for entry in snapshot["queues"] + snapshot["objects"]}
        seen = {names[wait["object"]] for wait in waits_of(snapshot, worker)}
    kill(worker)


def test_repr_has_a_name_only_if_it_was_given():
    lock, rlock, event, barrier = mp.Lock(), mp.RLock(), mp.Event(), mp.Barrier(2)
    condition, permits = mp.Condition(), mp.BoundedSemaphore(3)
    for obj, before, after in [
        (lock, "<Lock(owner=None)>", "<Lock('x', owner=None)>"),
        (rlock, "<RLock(None, 0)>", "<RLock('x', None, 0)>"),
        (condition, "<Condition(<RLock(None, 0)>, 0)>", "<Condition('x', <RLock('x', None, 0)>, 0)>"),
        (permits, "<BoundedSemaphore(value=3, maxvalue=3)>", "<BoundedSemaphore('x', value=3, maxvalue=3)>"),
        (event, f"<Event at {id(event):#x} unset>", f"<Event 'x' at {id(event):#x} unset>"),
    ]:
        assert repr(obj) == before
        assert repr(mp.named(obj, "x")) == after
    assert "'" not in repr(barrier) and "Barrier 'x' at" in repr(mp.named(barrier, "x"))
    assert repr(mp.named(mp.Queue(2), "x")) == "<multiproc.Queue 'x': 0 of 2 objects>"
    assert repr(mp.named(mp.Pipe()[0], "x")) == "<multiproc.Connection 'x': pipe, disconnected>"


def test_long_name_is_cut():
    assert repr(mp.named(mp.SimpleQueue(), "a" + 20 * "é")).startswith(f"<multiproc.SimpleQueue 'a{15 * 'é'}':")


def test_later_name_replaces_the_first():
    queue = mp.named(mp.named(mp.Queue(2), "a longer one"), "x")
    assert repr(queue) == "<multiproc.Queue 'x': 0 of 2 objects>"


def test_condition_leaves_the_name_of_its_lock():
    lock = mp.named(mp.Lock(), "lock")
    condition = mp.named(mp.Condition(lock), "condition")
    assert repr(condition) == "<Condition('condition', <Lock('lock', owner=None)>, 0)>"


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: mp.Queue,
        threading.Lock,
        threading.Condition,
        multiprocessing.Lock,
        mp.Process,
        lambda: mp.Value("i", lock=False),
        lambda: mp.Value("i", lock=multiprocessing.Lock()),
    ],
)
def test_other_objects_are_refused(make):
    with pytest.raises(TypeError, match="can't be named"):
        mp.named(make(), "x")


def test_name_must_be_a_text():
    with pytest.raises(TypeError):
        mp.named(mp.Queue(), 5)


def test_closed_queue_has_no_name():
    queue = mp.Queue()
    queue.close()
    with pytest.raises(ValueError):
        mp.named(queue, "x")


def test_forked_copy_names_nothing():
    program = """
import os, multiproc as mp
event = mp.named(mp.Event(), "event")
if not (pid := os.fork()):
    try:
        mp.named(event, "child")
    except RuntimeError:
        os._exit("'" in repr(event))
    os._exit(2)
assert os.waitpid(pid, 0)[1] == 0 and "'event'" in repr(event)
"""
    assert run_program(program)[2] == 0


def test_socket_is_named_without_shared_memory():
    program = """
import multiproc as mp
with mp.connection.Listener() as listener, mp.connection.Client(listener.address) as client:
    print(mp.named(client, "client"))
"""
    assert run_program(program)[0] == "<multiproc.Connection 'client': socket, open>\n"


def test_long_get_is_one_wait(forkserver):
    jobs, times = mp.named(mp.Queue(4), f"jobs of {os.getpid()}"), mp.Queue()
    consumer = start(forkserver, timed_get, jobs, times)
    end, waited = time.monotonic() + WAIT, 0
    while waited < 1000:
        assert time.monotonic() < end
        waits = waits_of(command("show", os.getpid())["snapshot"], consumer)
        waited = max((wait["waited_ms"] for wait in waits), default=0)
    jobs.put(None)
    elapsed = times.get(timeout=WAIT)
    consumer.join(WAIT)
    (queue,) = command("queue", f"jobs of {os.getpid()}", "--program", os.getpid())
    waits = queue["get_waits"]
    assert sum(waits["counts"]) == 1
    assert waited / 1000 <= waits["total_us"] / 1e6 <= elapsed
