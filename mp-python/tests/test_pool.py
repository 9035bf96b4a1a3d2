"""Pool: CPython's scenarios by their names, kills, time-outs, and the end of pools and programs."""

import gc
import itertools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

import multiproc as mp
from multiproc.pool import MaybeEncodingError, PoolError, RemoteTraceback, TaskTimeout, ThreadPool, WorkerLost
from pool_tasks import (
    CountedObject,
    LONG,
    SayWhenError,
    Unpicklable,
    Unreadable,
    at_exit,
    fail,
    get_here,
    identity,
    inner,
    inner_in_process,
    interrupt,
    kill_five,
    kill_me,
    kill_once,
    leave,
    mul,
    process_of,
    put,
    raise_error,
    raise_large_valueerror,
    raising,
    rows,
    set_here,
    signalled,
    sqr,
    throwing,
    unpickleable_error,
    unpickleable_result,
    worker,
    write,
)

@pytest.fixture(scope="module", params=["spawn", "forkserver"])
def pool(request):
    with mp.get_context(request.param).Pool(2) as pool:
        yield pool
    pool.join()


@pytest.fixture
def one():
    """A pool of one worker that starts fast."""
    with mp.get_context("forkserver").Pool(1) as pool:
        yield pool


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class TestCPythonPool:
    def test_apply(self, pool):
        assert pool.apply(sqr, (5,)) == 25
        assert pool.apply(sqr, (), {"x": 3}) == 9

    def test_map(self, pool):
        assert pool.map(sqr, list(range(10))) == [x * x for x in range(10)]
        assert pool.map(sqr, range(100), chunksize=20) == [x * x for x in range(100)]
        assert pool.map(sqr, {3: 0, 4: 0}) == [9, 16]
        assert pool.map(sqr, iter((1, 2))) == [1, 4]

    def test_starmap(self, pool):
        tuples = list(zip(range(100), range(99, -1, -1)))
        assert pool.starmap(mul, tuples[:10]) == list(itertools.starmap(mul, tuples[:10]))
        assert pool.starmap(mul, tuples, chunksize=20) == list(itertools.starmap(mul, tuples))

    def test_starmap_async(self, pool):
        tuples = list(zip(range(100), range(99, -1, -1)))
        assert pool.starmap_async(mul, tuples).get() == list(itertools.starmap(mul, tuples))

    def test_map_async(self, pool):
        result = pool.map_async(sqr, list(range(10)))
        result.wait()
        assert result.ready() and result.successful()
        assert result.get() == result.get() == [x * x for x in range(10)]

    def test_map_async_callbacks(self, pool):
        calls = []
        pool.map_async(int, ["1"], callback=calls.append, error_callback=calls.append).wait()
        assert calls == [[1]]
        failed = pool.map_async(int, ["a"], callback=calls.append, error_callback=calls.append)
        failed.wait()
        assert isinstance(calls[1], ValueError) and not failed.successful()
        pool.map_async(int, [], callback=calls.append).wait()
        assert calls[2:] == [[]]

    def test_map_unplicklable(self, pool):
        with pytest.raises(RuntimeError, match="cannot pickle"):
            pool.map(sqr, [Unpicklable()] * 10)
        assert pool.map(sqr, [2]) == [4]

    def test_map_chunksize(self, pool):
        assert pool.map_async(sqr, [], chunksize=1).get(timeout=10) == []

    def test_map_handle_iterable_exception(self, pool):
        for total, when in [(1, -1), (1, -1), (10, 3)]:
            with pytest.raises(SayWhenError):
                pool.map(sqr, throwing(total, when), 1)

    def test_async(self, pool):
        result = pool.apply_async(sqr, (7, 0.2))
        assert not result.ready()
        with pytest.raises(ValueError, match="not ready"):
            result.successful()
        assert result.get() == 49

    def test_async_timeout(self, one):
        result = one.apply_async(sqr, (6, LONG))
        begin = time.monotonic()
        with pytest.raises(mp.TimeoutError):
            result.get(timeout=0.2)
        assert 0.2 <= time.monotonic() - begin < 10

    def test_imap(self, pool):
        assert list(pool.imap(sqr, list(range(10)))) == [x * x for x in range(10)]
        results = pool.imap(sqr, list(range(1000)), chunksize=100)
        for x in range(1000):
            assert next(results) == x * x
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(results)

    @pytest.mark.parametrize("size, before", [(1, 7), (2, 6), (4, 4)])
    def test_imap_handle_iterable_exception(self, pool, size, before):
        results = pool.imap(sqr, throwing(1, -1), size)
        with pytest.raises(SayWhenError):
            next(results)
        results = pool.imap(sqr, throwing(20, 7), size)
        assert [next(results) for _ in range(before)] == [x * x for x in range(before)]
        with pytest.raises(SayWhenError):
            next(results)

    def test_imap_unordered(self, pool):
        assert sorted(pool.imap_unordered(sqr, range(10))) == [x * x for x in range(10)]
        assert sorted(pool.imap_unordered(sqr, range(1000), chunksize=100)) == [x * x for x in range(1000)]

    def test_imap_unordered_handle_iterable_exception(self, pool):
        results, got = pool.imap_unordered(sqr, throwing(20, 7), 2), []
        with pytest.raises(SayWhenError):
            got.extend(iter(lambda: next(results), None))
        assert sorted(got) in [[x * x for x in range(n)] for n in (0, 2, 4, 6)]

    def test_make_pool(self):
        for count in (-1, 0):
            with pytest.raises(ValueError):
                mp.Pool(count)
        with pytest.raises(TypeError, match="callable"):
            mp.Pool(1, initializer=5)

    def test_terminate(self):
        pool = mp.get_context("forkserver").Pool(3)
        result = pool.map_async(time.sleep, [LONG] * 10_000, chunksize=1)
        begin = time.monotonic()
        pool.terminate()
        pool.join()
        assert time.monotonic() - begin < 5
        with pytest.raises(PoolError):
            result.get(timeout=10)

    def test_empty_iterable(self, one):
        assert one.map(sqr, []) == []
        assert list(one.imap(sqr, [])) == []
        assert list(one.imap_unordered(sqr, [])) == []

    def test_context(self):
        with mp.get_context("forkserver").Pool(2) as pool:
            assert pool.map_async(sqr, range(10)).get() == [x * x for x in range(10)]
        pool.join()
        for call in (pool.map_async, pool.map, pool.imap, pool.imap_unordered, pool.starmap):
            with pytest.raises(ValueError, match="Pool not running"):
                call(sqr, [1])

    def test_traceback(self, one):
        with pytest.raises(RuntimeError) as caught:
            one.apply(raise_error)
        cause = caught.value.__cause__
        assert caught.value.args == (123,) and type(cause) is RemoteTraceback
        assert "raise RuntimeError(123)  # some comment" in str(cause)
        with pytest.raises(SayWhenError) as caught:
            one.map(sqr, throwing(1, -1), 1)
        assert caught.value.__cause__ is None

    def test_map_no_failfast(self):
        begin = time.monotonic()
        with pytest.raises(ValueError), mp.get_context("forkserver").Pool(2) as pool:
            try:
                pool.map(raise_large_valueerror, [0, 0.5])
            finally:
                pool.close()
                pool.join()
        assert time.monotonic() - begin > 0.4

    def test_release_task_refs(self, pool):
        objects = [CountedObject() for _ in range(10)]
        refs = [weakref.ref(object) for object in objects]
        pool.map(identity, objects)
        del objects
        gc.collect()
        assert {ref() for ref in refs} == {None}
        assert not [o for o in gc.get_objects() if type(o) is CountedObject]

    def test_enter(self):
        pool = mp.get_context("forkserver").Pool(1)
        with pool:
            pass
        with pytest.raises(ValueError), pool:
            pass
        pool.join()

    def test_resource_warning(self):
        pool = mp.get_context("forkserver").Pool(1)
        pids = pool.pids()
        with pytest.warns(ResourceWarning, match="unclosed running multiprocessing pool"):
            del pool
            gc.collect()
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


class TestCPythonPoolWorkerErrors:
    def test_async_error_callback(self, pool):
        errors = []
        result = pool.apply_async(raising, error_callback=errors.append)
        with pytest.raises(KeyError):
            result.get()
        assert isinstance(errors[0], KeyError)

    def test_unpickleable_result(self, pool):
        wait_until(lambda: len(pool.pids()) == 2)
        pids = pool.pids()
        for call in [unpickleable_result, unpickleable_error] * 5:
            errors = []
            result = pool.apply_async(call, error_callback=errors.append)
            with pytest.raises(MaybeEncodingError):
                result.get()
            assert errors[0].exc and errors[0].value
        assert pool.pids() == pids


class TestCPythonPoolWorkerLifetime:
    def test_pool_worker_lifetime(self):
        with mp.get_context("forkserver").Pool(3, maxtasksperchild=10) as pool:
            pids = pool.pids()
            results = [pool.apply_async(sqr, (i,)) for i in range(100)]
            assert [result.get() for result in results] == [i * i for i in range(100)]
            assert len(pids) == 3 and set(pool.pids()) != set(pids)

    def test_pool_worker_lifetime_early_close(self):
        pool = mp.get_context("forkserver").Pool(3, maxtasksperchild=1)
        results = [pool.apply_async(sqr, (i, 0.05)) for i in range(6)]
        pool.close()
        pool.join()
        assert [result.get() for result in results] == [i * i for i in range(6)]

    @pytest.mark.parametrize("value", [0, -1, 0.5, "12"])
    def test_pool_maxtasksperchild_invalid(self, value):
        with pytest.raises(ValueError):
            mp.Pool(3, maxtasksperchild=value)

    def test_worker_finalization_via_atexit_handler_of_multiprocessing(self, ctx, tmp_path):
        pool = ctx.Pool(1, at_exit, (str(tmp_path / "ends"),))
        pool.apply(worker)
        pool.close()
        pool.join()
        assert (tmp_path / "ends").read_text() == "end\n"


class TestCPythonPoolNotLeakOnFailure:
    def test_release_unused_processes(self):
        with pytest.raises(OSError):
            _pool_without_executable()
        assert mp.active_children() == []


def _pool_without_executable():
    from multiprocessing import spawn

    known = spawn.get_executable()
    spawn.set_executable("/no/such/python")
    try:
        return mp.get_context("spawn").Pool(3)
    finally:
        spawn.set_executable(known)


class TestKills:
    def test_killed_worker_names_item_and_signal(self, pool):
        results = [pool.apply_async(sqr, (i, 0.01)) for i in range(20)]
        with pytest.raises(WorkerLost) as caught:
            pool.map(kill_five, range(10), chunksize=4)
        lost = caught.value
        assert (lost.signal, lost.exitcode, lost.index, lost.task) == (9, -9, 5, "kill_five")
        assert lost.chunk == range(4, 8) and lost.pid > 0
        assert "item 5 of kill_five" in str(lost) and str(lost.pid) in str(lost) and "SIGKILL" in str(lost)
        copy = pickle.loads(pickle.dumps(lost))
        assert (str(copy), copy.signal, copy.index) == (str(lost), 9, 5)
        # The others have not noticed.
        assert [result.get() for result in results] == [i * i for i in range(20)]

    def test_killed_worker_costs_imap_one_item(self, pool):
        results, got = pool.imap(kill_five, range(10)), []
        for _ in range(10):
            try:
                got.append(next(results))
            except WorkerLost as lost:
                got.append((lost.index, lost.signal))
        assert got == [0, 1, 2, 3, 4, (5, 9), 6, 7, 8, 9]
        with pytest.raises(StopIteration):
            next(results)

    def test_killed_worker_reaches_error_callback(self, pool):
        calls = []
        pool.apply_async(kill_me, callback=calls.append, error_callback=calls.append).wait(30)
        assert isinstance(calls[0], WorkerLost) and calls[0].index is None

    def test_retries_repeat_lost_task(self, pool, tmp_path):
        assert pool.apply(kill_once, (str(tmp_path / "a"),), retries=2) in pool.pids()
        paths = [str(tmp_path / f"{i}") for i in range(3)]
        assert len(pool.map(kill_once, paths, retries=2)) == 3
        with pytest.raises(WorkerLost) as caught:
            pool.apply(kill_me, retries=2)
        assert caught.value.attempts == 3 and "attempt 3" in str(caught.value)

    def test_idle_workers_killed_calls_go_on(self, pool):
        for pid in pool.pids():
            os.kill(pid, signal.SIGKILL)
        assert pool.map(sqr, range(100)) == [x * x for x in range(100)]

    def test_kills_under_load_lose_nothing(self):
        with mp.get_context("forkserver").Pool(2, retries=100) as pool:
            results = pool.map_async(sqr, [3] * 300, chunksize=3)
            for _ in range(10):
                for pid in pool.pids()[:1]:
                    _kill(pid)
            assert results.get(timeout=50) == [9] * 300

    @pytest.mark.parametrize("function, text", [(kill_me, "SIGKILL"), (fail, "no device")])
    def test_failed_initializer_breaks_pool(self, ctx, function, text):
        with ctx.Pool(1, function) as pool, pytest.raises(PoolError, match=text):
            pool.apply_async(sqr, (1,)).get(timeout=50)

    def test_slow_initializer_is_ended(self):
        with mp.get_context("forkserver").Pool(1, time.sleep, (LONG,), start_timeout=0.05) as pool:
            with pytest.raises(PoolError, match="not ready within"):
                pool.apply_async(sqr, (1,)).get(timeout=50)

    def test_exit_in_task_is_lost_worker(self, one):
        for code, exitcode in [(3, 3), (None, 0), ("text", 1)]:
            with pytest.raises(WorkerLost) as caught:
                one.apply(leave, (code,))
            assert caught.value.exitcode == exitcode and caught.value.signal is None

    def test_parent_killed_workers_end(self, tmp_path):
        program = run_program(
            """
            import os, signal, sys, time
            import multiproc as mp
            if __name__ == "__main__":
                pool = mp.Pool(2)
                pool.apply(int)
                pool.map_async(time.sleep, [600] * 4, chunksize=1)
                print(*pool.pids(), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            """,
            tmp_path,
        )
        assert program.returncode == -signal.SIGKILL
        pids = program.stdout.split()
        assert len(pids) == 2
        wait_until(lambda: not any(is_alive(pid) for pid in pids))


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def run_program(text, tmp_path, **options):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=50, cwd=tmp_path, **options
    )


class TestTimeouts:
    def test_timeout_replaces_worker(self, one):
        before = one.apply(worker)
        with pytest.raises(TaskTimeout) as caught:
            one.apply(time.sleep, (LONG,), timeout=0.05)
        assert caught.value.pid == before and isinstance(caught.value, mp.TimeoutError)
        assert one.apply(worker) != before

    def test_timeout_names_item(self, pool):
        with pytest.raises(TaskTimeout) as caught:
            pool.map(time.sleep, [0, 0, LONG, 0], timeout=0.2)
        assert (caught.value.index, caught.value.task) == (2, "sleep")

    def test_timeout_of_pool_is_default(self):
        with mp.get_context("forkserver").Pool(1, timeout=0.05) as pool, pytest.raises(TaskTimeout):
            pool.apply(time.sleep, (LONG,))

    def test_max_waiting_blocks_calls(self):
        with mp.get_context("forkserver").Pool(1, max_waiting=2) as pool:
            pool.apply(worker)
            begin = time.monotonic()
            results = [pool.apply_async(sqr, (i, 0.1)) for i in range(4)]
            assert time.monotonic() - begin > 0.15
            assert [result.get() for result in results] == [0, 1, 4, 9]

    def test_next_times_out(self, one):
        results = one.imap(time.sleep, [0.2])
        with pytest.raises(mp.TimeoutError):
            results.next(0.01)
        assert results.next(30) is None


class TestObjects:
    def test_unreadable_arguments_raise(self, pool):
        wait_until(lambda: len(pool.pids()) == 2)
        pids = pool.pids()
        with pytest.raises(LookupError, match="cannot unpickle"):
            pool.apply(identity, (Unreadable(),))
        assert pool.pids() == pids

    def test_unpicklable_item_leaves_others(self, pool):
        results, got = pool.imap(sqr, [1, Unpicklable(), 3]), []
        for _ in range(3):
            try:
                got.append(next(results))
            except RuntimeError:
                got.append(None)
        assert got == [1, None, 9]

    def test_initializer_sets_globals_in_worker(self, ctx):
        with ctx.Pool(1, set_here, (17,)) as pool:
            assert pool.map(get_here, [0]) == [17]

    def test_functions_by_value_need_cloudpickle(self, pool):
        pytest.importorskip("cloudpickle")
        factor = 3
        assert pool.map(lambda x: factor * x, [1, 2]) == [3, 6]
        assert pool.apply(lambda: factor) == 3

    def test_numbers_arrive_as_they_are(self, pool):
        extremes = [0, -1, 2**63 - 1, -(2**63)] * 5
        floats = [0.5, -0.0, float("inf"), 5e-324] * 5
        mixed = [*extremes, 2**63], [*extremes, True], [*floats, 1], [True] * 20
        for items in (extremes, floats, *mixed):
            results = pool.map(identity, items, chunksize=len(items))
            assert [(type(x), repr(x)) for x in results] == [(type(x), repr(x)) for x in items]
        assert pool.apply(identity, (extremes,)) == extremes

    def test_queue_in_task_is_same_queue(self, pool):
        queue = mp.Queue()
        pool.starmap(put, [(queue, 1), (queue, 2)])
        assert sorted([queue.get(timeout=30), queue.get(timeout=30)]) == [1, 2]

    def test_arrays_are_not_copied_back(self, pool):
        numpy = pytest.importorskip("numpy")
        assert pool.map(rows, numpy.ones((6, 3), "i4")) == [3] * 6
        assert pool.apply(identity, (numpy.arange(1000),)).sum() == 499500

    def test_pool_is_not_pickled(self, pool):
        with pytest.raises(NotImplementedError):
            pickle.dumps(pool)

    def test_repr_shows_state(self):
        pool = mp.get_context("forkserver").Pool(1)
        assert "state=RUN pool_size=1" in repr(pool)
        pool.close()
        assert "state=CLOSE" in repr(pool)
        pool.join()

    def test_worker_is_numbered_process(self, pool):
        names = set(pool.map(process_of, [0.05] * 4, chunksize=1))
        assert {identity for _, identity, _, _ in names} <= {(1,), (2,)}
        assert all("PoolWorker-" in name and daemon for name, _, daemon, _ in names)
        assert {parent for *_, parent in names} == {os.getpid()}

    def test_thread_pool_is_python_s(self):
        with ThreadPool(2) as pool:
            assert pool.map(sqr, [2, 3]) == [4, 9]


class TestThreads:
    def test_threads_share_pool(self, pool):
        done = []

        def use(i):
            for _ in range(10):
                assert pool.map(sqr, [i] * 5) == [i * i] * 5
                assert pool.apply(sqr, (i,)) == i * i
            done.append(i)

        threads = [threading.Thread(target=use, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
        assert sorted(done) == [0, 1, 2, 3]

    def test_threads_share_result(self, one):
        result, got = one.apply_async(sqr, (3, 0.1)), []
        threads = [threading.Thread(target=lambda: got.append(result.get(30))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
        assert got == [9] * 4

    def test_callbacks_run_in_one_thread_in_order(self, pool):
        calls = []

        def called(value):
            calls.append((threading.get_ident(), value))

        results = [pool.apply_async(sqr, (i,), callback=called) for i in range(20)]
        for result in results:
            result.wait(30)
        assert sorted(value for _, value in calls) == [i * i for i in range(20)]
        assert len({thread for thread, _ in calls} | {threading.get_ident()}) == 2

    def test_callback_can_call_pool(self, one):
        got = []
        one.apply_async(sqr, (2,), callback=lambda x: got.append(one.apply_async(sqr, (x,)))).wait(30)
        assert got[0].get(30) == 16

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_callback_that_raises_leaves_others(self, one):
        calls = []
        one.apply_async(sqr, (2,), callback=lambda _: 1 / 0).wait(30)
        one.apply_async(sqr, (2,), callback=calls.append).wait(30)
        assert calls == [4]

    def test_imap_takes_items_that_come_late(self, one):
        import queue

        items = queue.Queue()
        results = one.imap(sqr, iter(items.get, None))
        for i in range(5):
            items.put(i)
            assert results.next(30) == i * i
        items.put(None)
        with pytest.raises(StopIteration):
            next(results)

    def test_imap_of_endless_items_is_bounded(self, one):
        taken = []
        results = one.imap(sqr, (taken.append(i) or i for i in itertools.count()))
        assert [next(results) for _ in range(10)] == [i * i for i in range(10)]
        assert len(taken) < 10_000

    def test_close_runs_tasks_nobody_waits_for(self, tmp_path):
        pool = mp.get_context("forkserver").Pool(2)
        path = str(tmp_path / "lines")
        results = pool.imap(write, [path] * 1000, chunksize=2)
        pool.imap_unordered(write, [path] * 500)
        pool.apply_async(write, (path,))
        pool.close()
        pool.join()
        assert os.path.getsize(path) == 1501 * len("end\n")
        assert len(list(results)) == 1000

    def test_forgotten_results_are_freed(self, one):
        for _ in range(300):
            one.apply_async(worker)
            one.apply(worker)
        assert len(one._cache) < 200

    def test_nested_pool_in_task_and_process(self, pool, ctx):
        assert pool.apply(inner, ([1, 2, 3],)) == [1, 4, 9]
        queue = mp.Queue()
        process = ctx.Process(target=inner_in_process, args=(queue,))
        process.start()
        assert queue.get(timeout=50) == [1, 4, 9]
        process.join(50)
        assert process.exitcode == 0

    def test_join_needs_close(self, one):
        with pytest.raises(ValueError, match="still running"):
            one.join()


class TestEnds:
    def test_interrupted_map_raises_soon(self, one):
        pids = one.pids()
        ends = []

        def later():
            ends.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.2, later)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            one.map(time.sleep, [LONG])
        assert time.monotonic() - ends[0] < 0.5
        assert one.pids() == pids

    def test_interrupt_in_worker_is_exception(self, one):
        one.apply(worker)
        pids = one.pids()
        with pytest.raises(KeyboardInterrupt):
            one.apply(interrupt)
        # One that arrives between tasks is for none of them.
        os.kill(pids[0], signal.SIGINT)
        assert one.apply(worker) == pids[0]

    def test_terminate_ends_stubborn_worker(self, tmp_path):
        pool = mp.get_context("forkserver").Pool(1)
        path = tmp_path / "begun"
        pool.apply_async(signalled, (str(path),))
        wait_until(path.exists)
        begin = time.monotonic()
        pool.terminate()
        pool.join()
        assert time.monotonic() - begin < 5

    def test_terminate_silences_callbacks(self, tmp_path):
        calls = []
        pool = mp.get_context("forkserver").Pool(1)
        result = pool.apply_async(time.sleep, (LONG,), callback=calls.append, error_callback=calls.append)
        pool.terminate()
        with pytest.raises(PoolError):
            result.get(30)
        assert calls == []

    @pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "pool.close()", "del pool", "1 / 0"])
    def test_program_ends_with_live_pool(self, tmp_path, end):
        program = run_program(
            f"""
            import sys, time
            import multiproc as mp
            if __name__ == "__main__":
                mp.set_start_method("forkserver")
                pool = mp.Pool(2)
                pool.apply(int)
                busy = pool.map_async(time.sleep, [600] * 4, chunksize=1, callback=print)
                results = pool.imap(time.sleep, iter([600] * 9))
                print(*pool.pids(), flush=True)
                {end}
            """,
            tmp_path,
        )
        assert program.returncode == (1 if end == "1 / 0" else 0), program.stderr
        assert not any(is_alive(pid) for pid in program.stdout.split())

    def test_interactive_functions_need_no_file(self):
        pytest.importorskip("cloudpickle")
        text = "import multiproc as mp\ndef f(x): return x + 1\nwith mp.Pool(1) as p: print(p.map(f, [1, 2]))"
        run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=50)
        assert run.stdout == "[2, 3]\n", run.stderr

    def test_forked_child_gets_error(self, one):
        result = one.apply_async(sqr, (3, 0.2))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                result.get(5)
            except PoolError:
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert result.get(30) == 9
