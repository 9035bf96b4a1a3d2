"""Functions of processes, for the tests of queues."""

import signal

WAIT = 20


def start(ctx, target, *args):
    process = ctx.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def kill(process):
    process.kill()
    process.join(WAIT)
    assert process.exitcode == -signal.SIGKILL
