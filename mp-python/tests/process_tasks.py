"""Functions of processes, for the tests of processes."""

import os
import time

LIMIT = 20


def wait_for(event_queue):
    event_queue.get(timeout=LIMIT)


def block(ready=None):
    if ready is not None:
        ready.put(os.getpid())
    while True:
        # sleep: CPython ignores a signal that comes right before a sleep until its end.
        time.sleep(0.05)


def run_process(ctx, target, *args, **options):
    process = ctx.Process(target=target, args=args, **options)
    process.start()
    process.join(LIMIT)
    return process
