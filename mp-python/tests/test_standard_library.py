"""Classes of the standard library that are given this package's contexts and queues."""

import concurrent.futures
import os
import signal
import time

import pytest

import multiproc as mp


def square(number):
    return number * number


def kill_itself(_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_process_pool_executor_maps(ctx):
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=ctx) as executor:
        assert list(executor.map(square, range(20), chunksize=3)) == [n * n for n in range(20)]
        assert executor.submit(square, 9).result(30) == 81


def test_executor_reports_a_killed_worker(ctx):
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=ctx) as executor:
        future = executor.submit(kill_itself, 0)
        with pytest.raises(concurrent.futures.process.BrokenProcessPool):
            future.result(30)


def test_process_pool_executor_gets_the_results_of_workers_that_end(forkserver):
    # Each worker ends after one task, at once after its result.
    end = time.monotonic() + 5
    for _ in range(60):
        with concurrent.futures.ProcessPoolExecutor(
            1, mp_context=forkserver, max_tasks_per_child=1
        ) as executor:
            assert [executor.submit(abs, n).result(30) for n in range(3)] == [0, 1, 2]
        if time.monotonic() > end:
            break


class Unsendable(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")


def fail(_):
    raise Unsendable(7, "seven")


def test_pool_reports_unrebuildable_exceptions():
    with mp.Pool(1) as pool:
        with pytest.raises(mp.pool.MaybeEncodingError, match="Unsendable") as raised:
            pool.apply(fail, (0,))
        assert "in fail" in str(raised.value.__cause__)
        assert pool.apply(square, (3,)) == 9


def read(file):
    return file.read()


def test_open_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("text")
    with open(tmp_path / "text") as file, pytest.raises(TypeError, match="TextIOWrapper"):
        mp.Process(target=read, args=(file,)).start()


def test_submodules_are_found_without_import():
    assert mp.connection.wait and mp.queues.Queue is mp.Queue and mp.shared_memory.SharedMemory
