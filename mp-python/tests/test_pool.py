"""Pool: CPython's scenarios by their names, objects and threads."""

import gc
import itertools
import multiprocessing
import os
import pickle
import threading
import time
import weakref

import pytest

import multiproc as mp
from multiproc.pool import MaybeEncodingError, PoolError, RemoteTraceback, ThreadPool
from pool_tasks import (
    LONG,
    CountedObject,
    SayWhenError,
    Unpicklable,
    Unreadable,
    at_exit,
    get_here,
    identity,
    inner,
    inner_in_process,
    mul,
    process_of,
    put,
    raise_error,
    raise_large_valueerror,
    raising,
    rows,
    set_here,
    sqr,
    throwing,
    unpickleable_error,
    unpickleable_result,
    wait_until,
    worker,
    write,
)


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

    def test_context_of_multiprocessing(self):
        with mp.pool.Pool(1, context=multiprocessing.get_context("spawn")) as pool:
            assert pool.apply(sqr, (3,)) == 9
        with pytest.raises(ValueError, match="no start method 'fork'"):
            mp.pool.Pool(1, context=multiprocessing.get_context("fork"))

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

    def test_tuples_of_numbers_arrive_as_they_are(self, pool):
        pairs = [(-(2**63), 0.5), (2**63 - 1, -0.0), (0, float("inf"))] * 6
        singles, triples = [(x,) for x, _ in pairs], [(x, y, x) for x, y in pairs]
        subclass = os.terminal_size((0, 0.5))
        others = (2**63, 0.5), (0, 1), (True, 0.5), (0.5, 0), (0,), (0, 0.5, 0), [0, 0.5], subclass, (), 0
        mixed = [[*pairs, other] for other in others]
        for items in (pairs, singles, triples, *mixed, [()] * 20, [subclass] * 20):
            results = pool.map(repr, items, chunksize=len(items))
            assert results == [repr(x) for x in items]
        assert pool.apply(identity, (pairs,)) == pairs
        assert pool.starmap(identity, singles, len(singles)) == [x for x, in singles]

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


def test_close_lets_imap_take_all_items(one):
    # More items than may wait for their results.
    results = one.imap(sqr, iter(range(1000)))
    wait_until(lambda: results._room._value == 0)
    one.close()
    joined = threading.Thread(target=one.join, daemon=True)
    joined.start()
    joined.join(30)
    assert not joined.is_alive()
    assert list(results) == [x * x for x in range(1000)]


def test_exception_is_that_of_the_first_item(one):
    # The second exception is raised before the first task has begun.
    with pytest.raises(TypeError):
        one.map(sqr, ["text", Unpicklable()], chunksize=1)


def test_subclasses_of_numbers_keep_their_class(pool):
    np = pytest.importorskip("numpy")
    floats = [np.float64(i) for i in range(20)]
    assert {type(x) for x in pool.map(identity, floats, chunksize=20)} == {np.float64}
    assert {type(x) for x in pool.map(float, floats, chunksize=20)} == {float}
    assert {type(x) for x in pool.map(np.float64, [0.5] * 20, chunksize=20)} == {np.float64}


def test_exception_of_a_callback_is_reported(one, monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_type))
    one.apply_async(int, callback=lambda _: 1 // 0).wait(30)
    assert reported == [ZeroDivisionError]


def test_float_after_integers_arrives(pool):
    items = [0, -1, 2**63 - 1] * 5 + [0.5]
    results = pool.map(identity, items, chunksize=len(items))
    assert [repr(x) for x in results] == [repr(x) for x in items]
