"""Values and arrays of ctypes in shared memory: CPython's scenarios, kills, messages, types."""

import array
import ctypes
import multiprocessing
import os
import pickle
import signal
import threading

import pytest

import multiproc as mp
from multiproc import sharedctypes

LONG = 20


class Inner(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int * 3)]


class Foo(ctypes.Structure):
    _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_double), ("z", ctypes.c_longlong), ("inner", Inner)]


class Derived(Foo):
    _fields_ = [("w", ctypes.c_short)]


def run(ctx, target, *args):
    process = ctx.Process(target=target, args=args, daemon=True)
    process.start()
    process.join(LONG)
    assert process.exitcode == 0


CODES = [
    ("i", 4343, 24234),
    ("d", 3.625, -4.25),
    ("h", -232, 234),
    ("q", 2**33, 2**34),
    ("c", b"x", b"y"),
    ("u", "ä", "€"),
    (ctypes.c_bool, True, False),
]


def set_values(values):
    for shared, (_, _, new) in zip(values, CODES):
        shared.value = new


def accumulate(seq):
    for i in range(1, len(seq)):
        seq[i] += seq[i - 1]


class TestCPythonValue:
    @pytest.mark.parametrize("kind", ["Value", "RawValue"])
    def test_value(self, ctx, kind):
        values = [getattr(ctx, kind)(code, value) for code, value, _ in CODES]
        assert [shared.value for shared in values] == [value for _, value, _ in CODES]
        run(ctx, set_values, values)
        assert [shared.value for shared in values] == [new for _, _, new in CODES]

    def test_getobj_getlock(self):
        for value in (mp.Value("i", 5), mp.Value("i", 5, lock=None)):
            assert isinstance(value.get_lock(), type(mp.RLock())) and value.get_obj().value == 5
        for lock in (mp.Lock(), mp.RLock()):
            assert mp.Value("i", 5, lock=lock).get_lock() is lock
        for raw in (mp.Value("i", 5, lock=False), mp.RawValue("i", 5)):
            assert not hasattr(raw, "get_lock") and not hasattr(raw, "get_obj")
        with pytest.raises(AttributeError, match="has no method 'acquire'"):
            mp.Value("i", 5, lock="navalue")

    def test_invalid_typecode(self):
        for make in (mp.Value, mp.RawValue):
            with pytest.raises(TypeError, match="bad typecode"):
                make("x", None)


class TestCPythonArray:
    @pytest.mark.parametrize("kind", ["Array", "RawArray"])
    def test_array(self, ctx, kind):
        seq = [680, 626, 934, 821, 150, 233, 548, 982, 714, 831]
        arr = getattr(ctx, kind)("i", seq)
        assert (len(arr), arr[3], list(arr[2:7])) == (len(seq), seq[3], seq[2:7])
        arr[4:8] = seq[4:8] = array.array("i", [1, 2, 3, 4])
        assert list(arr[:]) == seq
        accumulate(seq)
        run(ctx, accumulate, arr)
        assert list(arr[:]) == seq

    def test_array_from_size(self):
        for _ in range(3):
            arr = mp.Array("i", 10)
            assert list(arr) == [0] * 10
            arr[:] = range(10)
            assert list(arr) == list(range(10))
            del arr

    def test_getobj_getlock_obj(self):
        for arr in (mp.Array("i", range(10)), mp.Array("i", range(10), lock=None)):
            assert isinstance(arr.get_lock(), type(mp.RLock())) and list(arr.get_obj()) == list(range(10))
        lock = mp.Lock()
        assert mp.Array("i", range(10), lock=lock).get_lock() is lock
        for raw in (mp.Array("i", range(10), lock=False), mp.RawArray("i", range(10))):
            assert not hasattr(raw, "get_lock") and not hasattr(raw, "get_obj")
        with pytest.raises(AttributeError, match="has no method 'acquire'"):
            mp.Array("i", range(10), lock="notalock")

    def test_invalid_typecode(self):
        for make in (mp.Array, mp.RawArray):
            with pytest.raises(TypeError, match="bad typecode"):
                make("x", [])


def double(x, y, z, foo, arr, string):
    for value in (x, y, z, string):
        value.value *= 2
    foo.x *= 2
    foo.y *= 2
    for i in range(len(arr)):
        arr[i] *= 2


class TestCPythonSharedCTypes:
    @pytest.mark.parametrize("lock", [False, True])
    def test_sharedctypes(self, ctx, lock):
        x = ctx.Value("i", 7, lock=lock)
        y = ctx.Value(ctypes.c_double, 1.0 / 3.0, lock=lock)
        z = ctx.Value(ctypes.c_longlong, 2**33, lock=lock)
        foo = ctx.Value(Foo, 3, 2, lock=lock)
        arr = ctx.Array("d", list(range(10)), lock=lock)
        string = ctx.Array("c", 20, lock=lock)
        string.value = b"hello"
        run(ctx, double, x, y, z, foo, arr, string)
        assert (x.value, y.value, z.value) == (14, 2.0 / 3.0, 2**34)
        assert (foo.x, foo.y) == (6, 4.0)
        assert list(arr) == [2.0 * i for i in range(10)]
        assert string.value == b"hellohello" and string.raw == b"hellohello".ljust(20, b"\0")

    def test_copy(self):
        foo = Foo(2, 5.0, 2**33)
        bar = sharedctypes.copy(foo)
        foo.x = foo.y = foo.z = 0
        assert (bar.x, bar.y, bar.z) == (2, 5.0, 2**33)


def write_all(parts):
    field, matrix, derived, view, empty = parts
    field.n[2] = 77
    matrix[1][2] = 5
    derived.w, derived.x = 3, 4
    view[0] = 9
    assert len(empty) == 0


class TestMessages:
    def test_fields_and_nested_arrays_stay_shared(self, ctx):
        foo, matrix = ctx.RawValue(Foo), ctx.RawArray(ctypes.c_int * 4, 3)
        derived, arr = ctx.Value(Derived), ctx.RawArray("B", 8)
        run(ctx, write_all, [foo.inner, matrix, derived, memoryview(arr), ctx.RawArray("i", 0)])
        assert foo.inner.n[2] == 77 and matrix[1][2] == 5
        assert (derived.w, derived.x, arr[0]) == (3, 4, 9)

    def test_values_in_queues_stay_shared(self, ctx):
        queue = ctx.Queue()
        value, raw = ctx.Value("i", 1), ctx.RawArray("d", [0.5, 1.5])
        queue.put({"value": [value, value], "raw": raw})
        got = queue.get(timeout=LONG)
        assert got["value"][0] is got["value"][1]
        got["value"][0].value = 8
        got["raw"][1] = -1.0
        assert (value.value, list(raw)) == (8, [0.5, -1.0])
        with value.get_lock():
            acquired = []
            thread = threading.Thread(target=lambda: acquired.append(got["value"][0].acquire(False)))
            thread.start()
            thread.join(LONG)
        assert acquired == [False]

    def test_private_objects_are_copied(self, ctx):
        queue = ctx.Queue()
        private = Foo(1, 2.0)
        queue.put((private, ctypes.c_int(5), (ctypes.c_int * 2 * 2)((1, 2), (3, 4))))
        foo, number, array = queue.get(timeout=LONG)
        foo.x = 7
        assert (private.x, foo.y, number.value, list(array[1])) == (1, 2.0, 5, [3, 4])

    def test_pointers_are_refused(self):
        mp.RawValue("i")
        with pytest.raises(ValueError, match="pointers"):
            mp.Queue().put(ctypes.pointer(ctypes.c_int(5)))

    def test_value_outlives_its_sender(self, ctx):
        queue = ctx.Queue()
        run(ctx, make_value, queue)
        value = queue.get(timeout=LONG)
        assert value.value == 42
        value.value += 1
        assert value.value == 43

    def test_memoryviews_of_arrays_keep_their_format(self, ctx):
        queue, arr = ctx.Queue(), ctx.RawArray("d", [1, 2, 3])
        queue.put(memoryview(arr))
        view = queue.get(timeout=LONG)
        view[1] = -5
        assert (view.format, list(arr)) == ("d", [1, -5, 3])
        with pytest.raises(BufferError, match="can't be sent"):
            queue.put(memoryview(ctx.RawValue(Foo)))

    def test_multiprocessings_values_are_left_alone(self):
        theirs, ours = multiprocessing.RawValue("i", 5), mp.RawValue("i", 6)
        with pytest.raises(RuntimeError):
            mp.Queue().put(theirs)
        assert (theirs.value, ours.value) == (5, 6)

    def test_pickle_outside_of_messages_is_refused(self):
        with pytest.raises(RuntimeError, match="only as a part of a message"):
            pickle.dumps(mp.Value("i", 5))

    def test_numpy_array_shares_the_memory(self, forkserver):
        numpy = pytest.importorskip("numpy")
        arr = mp.Array("d", 6)
        view = numpy.frombuffer(arr.get_obj()).reshape(2, 3)
        run(forkserver, fill, view)
        assert list(arr) == [7.0] * 6


def make_value(queue):
    queue.put(mp.Value("i", 42))


def fill(view):
    view[:] = 7.0


def test_locked_array_refuses_a_second_wrapper():
    with pytest.raises(AssertionError):
        sharedctypes.synchronized(mp.Value("i", 1))


def hold(value, held):
    value.acquire()
    value.get_obj().value = 5
    held.set()
    signal.pause()


def add(value, n):
    for _ in range(n):
        with value.get_lock():
            value.value += 1


class TestKills:
    def test_owner_killed_value_is_usable(self, ctx):
        value, held = ctx.Value("i", 0), ctx.Event()
        process = ctx.Process(target=hold, args=(value, held), daemon=True)
        process.start()
        assert held.wait(LONG)
        os.kill(process.pid, signal.SIGKILL)
        value.value += 1
        assert value.value == 6
        process.join(LONG)

    def test_increments_of_killed_workers_are_whole(self, forkserver):
        value = mp.Value("q", 0)
        workers = [forkserver.Process(target=add, args=(value, 10**9), daemon=True) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            seen = value.value
            while value.value < seen + 100:
                pass
            os.kill(worker.pid, signal.SIGKILL)
        for worker in workers:
            worker.join(LONG)
        assert value.acquire(timeout=LONG)
        seen = value.value
        value.release()
        add(value, 10)
        assert value.value == seen + 10
