"""Functions of the tests of pools, most for workers. Imports little, so that workers start fast."""

import os
import signal
import sys
import threading
import time

import multiproc as mp

LONG = 600
here = {}


class SayWhenError(ValueError):
    pass


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("cannot pickle")


class Unreadable:
    def __reduce__(self):
        return refuse, ()


class CountedObject:
    pass


def refuse():
    raise LookupError("cannot unpickle")


def sqr(x, wait=0.0):
    time.sleep(wait)
    return x * x


def mul(x, y):
    return x * y


def identity(x):
    return x


def raising():
    raise KeyError("key")


def raise_error():
    raise RuntimeError(123)  # some comment


def raise_large_valueerror(wait):
    time.sleep(wait)
    raise ValueError("x" * 1024**2)


def unpickleable_result():
    return lambda: 42


def unpickleable_error():
    error = ValueError("no")
    error.lock = threading.Lock()
    raise error


def throwing(total, when):
    if when == -1:
        raise SayWhenError("Somebody said when")
    for i in range(total):
        if i == when:
            raise SayWhenError("Somebody said when")
        yield i


def set_here(value):
    here["value"] = value


def get_here(_):
    return here["value"]


def at_exit(path):
    from multiprocessing import util

    util.Finalize(None, write, args=(path,), exitpriority=1)


def write(path):
    with open(path, "a") as file:
        file.write("end\n")


def worker(_=None):
    return os.getpid()


def kill_at(x, at):
    if x == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def kill_five(x):
    return kill_at(x, 5)


def kill_once(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return os.getpid()
    os.kill(os.getpid(), signal.SIGKILL)


def kill_me():
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    raise OSError("no device")


def leave(code):
    sys.exit(code)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(LONG)


def signalled(path):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(path, "w").close()
    time.sleep(LONG)


def inner(items):
    with mp.get_context("forkserver").Pool(2) as pool:
        return pool.map(sqr, items)


def inner_in_process(queue):
    queue.put(inner([1, 2, 3]))


def put(queue, x):
    queue.put(x)


def rows(row):
    return int(row.sum())


def process_of(wait):
    time.sleep(wait)
    current = mp.current_process()
    return current.name, current._identity, current.daemon, mp.parent_process().pid


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
