"""Subclasses of queues and locks, as programs written for ``multiprocessing`` have them."""

import pytest

import multiproc as mp
from multiproc import pool, queues, synchronize


class CountingQueue(queues.Queue):
    """Queue that counts its objects: the usual recipe for ``qsize`` on macOS."""

    def __init__(self, name, maxsize=0):
        super().__init__(maxsize, ctx=mp.get_context())
        self.name, self.size = name, mp.Value("i", 0)

    def __getstate__(self):
        return {"parent": super().__getstate__(), "name": self.name, "size": self.size}

    def __setstate__(self, state):
        super().__setstate__(state["parent"])
        self.name, self.size = state["name"], state["size"]

    def put(self, *args, **kwargs):
        super().put(*args, **kwargs)
        with self.size.get_lock():
            self.size.value += 1


class Plain(queues.SimpleQueue):
    def __init__(self, note):
        super().__init__(ctx=mp.get_context())
        self.note = note


class Tasks(queues.JoinableQueue):
    def __init__(self, note):
        super().__init__(3, ctx=mp.get_context())
        self.note = note


def use(counting, plain, tasks):
    counting.put(counting.name)
    plain.put(hasattr(plain, "note"))
    assert type(tasks) is Tasks
    tasks.get()
    tasks.task_done()


def test_queue_subclass_state_reaches_a_worker():
    counting, plain, tasks = CountingQueue("jobs", maxsize=2), Plain("here"), Tasks("here")
    tasks.put(1)
    worker = mp.Process(target=use, args=(counting, plain, tasks))
    worker.start()
    assert counting.get() == "jobs"
    # As in `multiprocessing`, only `__getstate__` sends attributes of the subclass.
    assert plain.get() is False
    assert tasks.join() is True
    worker.join()
    assert worker.exitcode == 0 and counting.size.value == 1


def test_queue_without_init_raises():
    class Lazy(queues.Queue):
        def __init__(self):
            pass

    with pytest.raises(RuntimeError, match=r"Queue.__init__\(\) was not called"):
        Lazy().put(1)


def test_wrong_queue_arguments_raise():
    with pytest.raises(TypeError):
        queues.Queue(1, unknown=2)
    with pytest.raises(TypeError):
        queues.SimpleQueue(1)


@pytest.mark.parametrize("base", [synchronize.Lock, synchronize.RLock, synchronize.Event])
def test_lock_subclass_takes_arguments_of_its_own(base):
    class Named(base):
        def __init__(self, name):
            super().__init__(ctx=mp.get_context())
            self.name = name

    assert Named("one").name == "one"
    with pytest.raises(TypeError):
        base(1)


@pytest.mark.parametrize("base", [synchronize.Semaphore, synchronize.BoundedSemaphore])
def test_semaphore_subclass_takes_arguments_of_its_own(base):
    class Named(base):
        def __init__(self, name):
            super().__init__(3, ctx=mp.get_context())
            self.name = name

    named = Named("one")
    assert named.get_value() == 3 and named.acquire() and named.name == "one"
    with pytest.raises(ValueError):
        base(-1)


def test_classes_are_generic():
    for kind in [queues.SimpleQueue, queues.Queue, queues.JoinableQueue]:
        assert kind[int].__origin__ is kind and type(kind[int]()) is kind
    assert pool.ApplyResult[int].__origin__ is pool.AsyncResult


def test_value_of_unknown_type_raises():
    with pytest.raises(TypeError, match="bad typecode 'zz'"):
        mp.Value("zz")
    with pytest.raises(TypeError, match="this type has no size"):
        mp.Value(object)
