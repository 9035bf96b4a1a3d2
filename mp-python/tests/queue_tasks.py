"""Functions of processes, for the tests of queues."""

import signal
import threading
import time

WAIT = 20


def start(ctx, target, *args):
    process = ctx.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def kill(process):
    process.kill()
    process.join(WAIT)
    assert process.exitcode == -signal.SIGKILL


def reprs(objects):
    return [repr(obj) for obj in objects]


def timed_get(queue, times):
    begun = time.monotonic()
    queue.get()
    times.put(time.monotonic() - begun)


def wait_at(objects):
    threads = [threading.Thread(target=_wait_at, args=(obj,)) for obj in objects]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _wait_at(obj):
    if hasattr(obj, "notify"):
        with obj:
            obj.wait()
    obj = obj.get_lock() if hasattr(obj, "get_lock") else obj
    name = next(name for name in ("join", "get", "recv", "acquire", "wait") if hasattr(obj, name))
    getattr(obj, name)()
