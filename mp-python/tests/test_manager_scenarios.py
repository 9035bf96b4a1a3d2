"""Managers: further scenarios of CPython's ``_test_multiprocessing.py``."""

import collections.abc
import gc
import multiprocessing.managers
import os
import queue
import signal
import sys
import weakref

import pytest

import multiproc as mp
from manager_tasks import WAIT
from multiproc import shared_memory
from multiproc.managers import BaseManager, RemoteError, SharedMemoryManager, SyncManager
from programs import run_script

# CPython has sets of managers since 3.14.
needs_set = pytest.mark.skipif(not hasattr(SyncManager, "set"), reason="CPython's managers have no set")


@pytest.fixture(scope="module")
def manager():
    """A manager for the tests of this file."""
    with SyncManager(ctx=mp.get_context("forkserver")) as manager:
        yield manager


@pytest.fixture
def no_collection():
    """Switches the collection of cycles off."""
    gc.disable()
    yield
    gc.enable()


def change_set(obj):
    assert obj | {"d"} == {"a", "b", "c", "d"} and obj & {"b", "z"} == {"b"}
    assert obj - {"a"} == {"b", "c"} and obj ^ {"c", "d"} == {"a", "b", "d"}
    obj.add("d")
    obj.discard("a")
    obj |= {"e"}


def run(target, *args):
    process = mp.get_context("forkserver").Process(target=target, args=args)
    process.start()
    process.join(WAIT)
    assert process.exitcode == 0


class TestCPythonContainers:
    """Scenarios of ``_TestContainers`` and ``TestSyncManagerTypes``."""

    def check_isinstance(self, proxy, theirs, base, names):
        # The abstract classes of a proxy depend on CPython's version.
        assert isinstance(proxy, base) is issubclass(theirs, base)
        assert all(callable(getattr(proxy, name)) for name in names)

    def test_list_isinstance(self, manager):
        names = "__contains__ __delitem__ __getitem__ __iadd__ __len__ __reversed__ __setitem__ append count "
        names += "extend index insert pop remove reverse"
        theirs = multiprocessing.managers.ListProxy
        self.check_isinstance(manager.list(), theirs, collections.abc.MutableSequence, names.split())

    def test_dict_isinstance(self, manager):
        names = "__contains__ __delitem__ __eq__ __getitem__ __iter__ __len__ __ne__ __setitem__ clear get "
        names += "items keys pop popitem setdefault update values"
        theirs = multiprocessing.managers.DictProxy
        self.check_isinstance(manager.dict(), theirs, collections.abc.MutableMapping, names.split())

    @needs_set
    def test_set(self, manager):
        obj = manager.set("abc")
        run(change_set, obj)
        assert set(obj) == {"b", "c", "d", "e"}
        assert obj.issubset("bcdef") and obj >= {"b", "c"} and obj.isdisjoint("xyz")

    @needs_set
    def test_set_init(self, manager):
        for items in ({"a", "b"}, ["a", "b"], {"a": 1, "b": 2}):
            assert manager.set(items) == {"a", "b"}
        with pytest.raises(RemoteError):
            manager.set(1234)

    @needs_set
    def test_set_contain_all_method(self, manager):
        names = {name for name in dir(set) if name[0] != "_"} | {"__and__", "__ior__", "__xor__", "__len__"}
        assert names <= set(dir(manager.set()))


class QueueManager(BaseManager):
    pass


QueueManager.register("get_queue", callable=queue.Queue)


class TestCPythonRemoteManager:
    def test_remote(self, ctx):
        # The serializer is xmlrpclib, which turns tuples into lists, and refuses functions.
        values = ["hello world", None, True, 2.25, "hall\u00e5 v\u00e4rlden", b"bytes"]
        manager = QueueManager(("localhost", 0), b"key", serializer="xmlrpclib", ctx=ctx)
        manager.start()
        made = manager.get_queue()
        made.put(tuple(values))
        assert made.get() == values
        with pytest.raises(TypeError):
            made.put(os.getpid)
        manager.shutdown()


class TestCPythonManagerExceptions:
    @pytest.mark.skipif(sys.version_info < (3, 13), reason="CPython's proxies make such cycles before 3.13")
    def test_queue_get(self, manager, no_collection):
        # The exception is in no cycle of references.
        empty = manager.Queue()
        try:
            empty.get_nowait()
        except queue.Empty as error:
            alive = weakref.ref(error)
        assert alive() is None


class TestCPythonSharedMemoryManager:
    """Scenarios of ``_TestSharedMemory``."""

    def test_shared_memory_SharedMemoryServer_ignores_sigint(self, ctx):
        with SharedMemoryManager(ctx=ctx) as manager:
            manager.ShareableList(range(10)).shm.close()
            os.kill(manager._process.pid, signal.SIGINT)
            manager.ShareableList(range(10)).shm.close()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    def test_shared_memory_SharedMemoryManager_reuses_resource_tracker(self, tmp_path):
        # No tracker complains of memory that the manager has removed.
        program = """
from multiproc.managers import SharedMemoryManager
if __name__ == "__main__":
    manager = SharedMemoryManager()
    manager.start()
    items = manager.ShareableList(range(10))
    manager.shutdown()
"""
        assert run_script(tmp_path, program) == ("", "", 0)

    def test_shared_memory_SharedMemoryManager_basics(self, ctx):
        manager = SharedMemoryManager(ctx=ctx)
        with pytest.raises(ValueError):
            manager.SharedMemory(size=9)
        manager.start()
        lists = [manager.ShareableList(range(i)) for i in range(5, 8)]
        blocks = [manager.SharedMemory(size=size) for size in range(32, 80, 16)]
        other = shared_memory.ShareableList(name=lists[0].shm.name)
        assert len(other) == 5
        block = shared_memory.SharedMemory(name=blocks[0].name)
        assert len(block.buf) >= 32
        name = block.name
        for memory in [block, other.shm, *blocks, *(items.shm for items in lists)]:
            memory.close()
        manager.shutdown()
        with pytest.raises(FileNotFoundError):
            shared_memory.SharedMemory(name=name)
        with SharedMemoryManager(ctx=ctx) as manager:
            items = manager.ShareableList("howdy")
            name = items.shm.name
            items.shm.close()
        with pytest.raises(FileNotFoundError):
            shared_memory.ShareableList(name=name)
