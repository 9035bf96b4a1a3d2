"""``JoinableQueue``: cost of ``task_done`` with many tasks."""

import threading
import time

import pytest

import multiproc as mp
from queue_tasks import WAIT


def check_linear(seconds, count):
    """Checks that eight times the tasks take less than 24 times the time. If it is quadratic, they take 64
    times as long."""
    few = min(seconds(count) for _ in range(3))
    many = min(seconds(8 * count) for _ in range(3))
    assert many < 24 * few, (few, many)


def test_task_done_before_get_is_linear():
    def seconds(count):
        tasks = mp.JoinableQueue()
        tasks.put_many(range(count))
        begin = time.perf_counter()
        for _ in range(count):
            tasks.task_done()
        assert [tasks.get() for _ in range(count)] == list(range(count))
        assert tasks.join(timeout=WAIT)
        took = time.perf_counter() - begin
        with pytest.raises(ValueError, match="too many times"):
            tasks.task_done()
        return took

    check_linear(seconds, 2000)


def test_task_done_for_another_thread_is_linear():
    def seconds(count):
        tasks = mp.JoinableQueue()
        tasks.put_many(range(2 * count))
        thread = threading.Thread(target=tasks.get_many, args=(count,))
        thread.start()
        thread.join(WAIT)
        assert len(tasks.get_many(count)) == count
        begin = time.perf_counter()
        for _ in range(2 * count):
            tasks.task_done()
        took = time.perf_counter() - begin
        assert tasks.join(timeout=WAIT)
        return took

    check_linear(seconds, 4000)


def test_task_done_after_lost_tasks_is_exact():
    tasks = mp.JoinableQueue()
    tasks.put_many(range(6))
    for _ in range(3):
        tasks.task_done()
    lease = tasks.get_ack()
    lease.give_back()
    assert [tasks.get() for _ in range(5)] == [1, 2, 3, 4, 5]
    # The calls finished one of these, and count for the lost task, which was taken twice.
    for _ in range(4):
        tasks.task_done()
    assert tasks.join(timeout=WAIT)
    with pytest.raises(ValueError, match="too many times"):
        tasks.task_done()
    assert tasks.dead_letter() == 0
    with pytest.raises(ValueError, match="too many times"):
        tasks.task_done()
