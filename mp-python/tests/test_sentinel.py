"""Sentinels of processes: reported after the last message."""

import selectors
import time

import pytest

from multiproc import connection
from test_connection import WAIT, join, start


def wait_by_epoll(objects):
    with selectors.EpollSelector() as selector:
        for item in objects:
            selector.register(item, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(WAIT)]


def start_sender(ctx, kind):
    # Returns a process that sends one message and ends, and what receives it. The process doesn't import
    # this file, whose modules would delay its end.
    if kind == "queue":
        queue = ctx.SimpleQueue()
        return start(ctx, queue.put, 1), queue._reader
    reader, writer = ctx.Pipe(False)
    process = start(ctx, writer.send, 1)
    writer.close()
    return process, reader


@pytest.mark.parametrize("wait", [connection.wait, wait_by_epoll])
@pytest.mark.parametrize("kind", ["pipe", "queue"])
def test_last_message_is_ready_before_the_sentinel(forkserver, kind, wait):
    end = time.monotonic() + 5
    for _ in range(200):
        process, reader = start_sender(forkserver, kind)
        got = None
        # A queue may be readable without a message once, and returns `None`.
        while got is None:
            assert reader in wait([reader, process.sentinel])
            got = reader.recv()
        assert got == 1
        join(process)
        if time.monotonic() > end:
            break


@pytest.mark.parametrize("kind", ["pipe", "queue"])
def test_all_objects_are_ready_after_join(forkserver, kind):
    end = time.monotonic() + 3
    for _ in range(100):
        process, reader = start_sender(forkserver, kind)
        both = [reader, process.sentinel]
        connection.wait(both, 0)
        join(process)
        assert connection.wait(both, 0) == both
        assert reader.recv() == 1
        if time.monotonic() > end:
            break
