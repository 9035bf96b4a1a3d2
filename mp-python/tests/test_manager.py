"""Managers: CPython's scenarios by their names, proxies in messages, and servers that are killed."""

import functools
import multiprocessing.managers
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import multiproc as mp
from manager_tasks import (
    WAIT,
    MyManager,
    ShelfManager,
    append,
    append_all,
    connect_and_put,
    die,
    fail,
    fill,
    get_forwarded,
    notify,
    pass_barrier,
    put,
    report_lost,
    sqr,
    wait_event,
    wait_for_item,
    work,
)
from multiproc.managers import BaseManager, ManagerLost, RemoteError, SharedMemoryManager, SyncManager


@pytest.fixture(scope="module")
def manager():
    """A manager for tests that don't start processes of a certain method."""
    with SyncManager(ctx=mp.get_context("forkserver")) as manager:
        yield manager


def run(ctx, target, *args):
    process = ctx.Process(target=target, args=args)
    process.start()
    process.join(WAIT)
    assert process.exitcode == 0


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class TestCPythonContainers:
    def test_list(self, manager):
        a = manager.list(list(range(10)))
        assert a[:] == list(range(10)) and str(a) == str(list(range(10)))
        b = manager.list()
        b.extend(range(5))
        assert (b[2], b[2:10]) == (2, [2, 3, 4])
        b *= 2
        assert b + [5, 6] == [*range(5), *range(5), 5, 6]
        e = manager.list([a, b])
        assert [element[:] for element in e] == [a[:], b[:]]
        f = manager.list([a])
        a.append("hello")
        assert f[0][:] == [*range(10), "hello"]

    def test_list_iter(self, manager):
        assert list(iter(manager.list(range(10)))) == list(range(10))

    def test_list_proxy_in_list(self, manager):
        a = manager.list([manager.list(range(3)) for _ in range(3)])
        assert [inner[:] for inner in a] == [[0, 1, 2]] * 3
        a[0][-1] = 55
        assert [a[0][:], a[1][:]] == [[0, 1, 55], [0, 1, 2]]
        del a
        b = manager.list()
        b.append(b)
        assert b[0][0][0]._token.id == b._token.id

    def test_dict(self, manager):
        d = manager.dict()
        for i in range(65, 70):
            d[i] = chr(i)
        assert d.copy() == {i: chr(i) for i in range(65, 70)}
        assert sorted(d.keys()) == list(range(65, 70))
        assert sorted(d.items()) == [(i, chr(i)) for i in range(65, 70)]
        assert 65 in d and d.get(1) is None and len(d) == 5
        with pytest.raises(KeyError):
            d[1]

    def test_dict_iter(self, manager):
        assert sorted(manager.dict(a=1, b=2)) == ["a", "b"]

    def test_dict_proxy_nested(self, manager):
        pets = manager.dict(ferrets=2, hamsters=4)
        d = manager.dict(pets=pets)
        d["pets"]["blanket"] = 10
        assert pets["blanket"] == 10
        del pets
        assert d["pets"].copy() == {"ferrets": 2, "hamsters": 4, "blanket": 10}
        outer = manager.list([["a", "b"], d])
        assert outer[-1]["pets"]["hamsters"] == 4

    def test_nested_queue(self, manager):
        a = manager.list([queue_with(manager, 123), queue_with(manager, 4)])
        assert (a[0].get(timeout=WAIT), a[1].get(timeout=WAIT)) == (123, 4)

    def test_namespace(self, manager):
        n = manager.Namespace()
        n.name, n.job, n._hidden = "Bob", "Builder", "hidden"
        del n.job
        assert str(n) == "Namespace(name='Bob')"
        assert hasattr(n, "name") and not hasattr(n, "job")


def queue_with(manager, value):
    made = manager.Queue()
    made.put(value)
    return made


def common(manager):
    assert manager.Foo().f() == "f()"
    with pytest.raises(ValueError):
        manager.Foo().g()
    assert not hasattr(manager.Foo(), "_h")
    bar = manager.Bar()
    assert (bar.f(), bar._h(), bar._callmethod("f"), bar._callmethod("_h")) == ("f()", "_h()", "f()", "_h()")
    assert list(manager.baz()) == [i * i for i in range(10)]


class TestCPythonMyManager:
    def test_mymanager(self, ctx):
        manager = MyManager(ctx=ctx, shutdown_timeout=WAIT)
        manager.start()
        common(manager)
        manager.shutdown()
        assert manager._process.exitcode == 0

    def test_mymanager_context(self, ctx):
        with MyManager(ctx=ctx, shutdown_timeout=WAIT) as manager:
            common(manager)
        assert manager._process.exitcode == 0

    def test_mymanager_context_prestarted(self, ctx):
        manager = MyManager(ctx=ctx, shutdown_timeout=WAIT)
        manager.start()
        with manager:
            common(manager)
        assert manager._process.exitcode == 0


class QueueManager(SyncManager):
    pass


class QueueManager2(SyncManager):
    pass


class PlainManager(multiprocessing.managers.BaseManager):
    pass


_queue = queue.Queue()
QueueManager.register("get_queue", callable=lambda: _queue)
QueueManager2.register("get_queue")
PlainManager.register("get_queue")


class TestCPythonRemoteManager:
    VALUES = ["hello world", None, True, 2.25, "hall\u00e5 v\u00e4rlden", b"bytes"]

    @pytest.mark.parametrize("make", [functools.partial(QueueManager2, allow_pickle=True), PlainManager])
    def test_remote(self, make):
        key = os.urandom(32)
        server = QueueManager(address=("localhost", 0), authkey=key, allow_pickle=True).get_server()
        # The server's own loop has no end, and its thread would outlive the test.
        server.accepter = lambda: accept_until_stopped(server)
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        connect_and_put(make, server.address, key, self.VALUES)
        assert [_queue.get(timeout=WAIT) for _ in self.VALUES] == self.VALUES
        with pytest.raises(mp.AuthenticationError):
            make(address=server.address, authkey=b"wrong").connect()
        server.stop_event.set()
        thread.join(WAIT)
        socket.create_connection(server.address).close()
        wait_until(lambda: len(sys._current_frames()) == 1)
        server.listener.close()


def accept_until_stopped(server):
    while not server.stop_event.is_set():
        try:
            accepted = server.listener.accept()
        except (OSError, EOFError, mp.AuthenticationError):
            continue
        threading.Thread(target=server.handle_request, args=(accepted,), daemon=True).start()


def wait_until(condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def serve(server):
    with pytest.raises(SystemExit):
        server.serve_forever()
    del mp.current_process()._manager_server


class TestCPythonManagerRestart:
    def test_rapid_restart(self, ctx):
        key, address = os.urandom(32), ("localhost", 0)
        for _ in range(3):
            options = dict(authkey=key, serializer="xmlrpclib", ctx=ctx, shutdown_timeout=WAIT)
            manager = MyManager(address=address, **options)
            manager.start()
            address = manager.address
            assert manager.Foo().f() == "f()"
            manager.shutdown()
        with pytest.raises(ConnectionRefusedError):
            MyManager(address=address, authkey=key, serializer="xmlrpclib").connect()


class TestAllowPickle:
    """Permission to unpickle the data of any program that has the key."""

    @pytest.mark.parametrize("call", ["connect", "get_server", "start"])
    def test_network_needs_consent(self, call):
        manager = MyManager(address=("localhost", 0), authkey=b"key")
        with pytest.raises(PermissionError, match="allow_pickle=True"):
            getattr(manager, call)()

    def test_path_of_another_program_needs_consent(self, tmp_path):
        path = str(tmp_path / "socket")
        with MyManager(address=path, authkey=b"key") as manager:
            with pytest.raises(PermissionError, match="allow_pickle=True"):
                MyManager(address=path, authkey=b"key").connect()
            other = MyManager(address=path, authkey=b"key", allow_pickle=True)
            other.connect()
            assert other.Foo().f() == manager.Foo().f() == "f()"

    def test_bytes_of_another_serializer_pass(self):
        server = MyManager(("localhost", 0), b"key", serializer="xmlrpclib").get_server()
        server.listener.close()


class TestCPythonSyncManagerTypes:
    def test_event(self, ctx, manager):
        event, done = manager.Event(), manager.Queue()
        process = ctx.Process(target=wait_event, args=(event, done))
        process.start()
        assert not event.is_set()
        event.set()
        assert done.get(timeout=WAIT) == 1
        process.join(WAIT)

    @pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore", "BoundedSemaphore"])
    def test_lock(self, ctx, manager, kind):
        lock, count = getattr(manager, kind)(), manager.list([0])
        processes = [ctx.Process(target=append_all, args=(count, lock, 20)) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(WAIT)
        assert count[0] == 40
        assert lock.acquire(False)
        lock.release()

    def test_bounded_semaphore(self, manager):
        semaphore = manager.BoundedSemaphore(1)
        with pytest.raises(ValueError):
            semaphore.release()

    def test_condition(self, ctx, manager):
        condition, flags = manager.Condition(), manager.list()
        with condition:
            process = ctx.Process(target=notify, args=(condition, flags))
            process.start()
            assert condition.wait(WAIT)
        assert flags[:] == [1]
        process.join(WAIT)

    def test_barrier(self, ctx, manager):
        barrier, done = manager.Barrier(2), manager.Queue()
        process = ctx.Process(target=pass_barrier, args=(barrier, done))
        process.start()
        barrier.wait(WAIT)
        assert done.get(timeout=WAIT) == 1
        process.join(WAIT)
        assert barrier.parties == 2 and not barrier.broken

    def test_pool(self, manager):
        pool = manager.Pool(2)
        assert pool.map(sqr, [1, 2, 3]) == [1, 4, 9]
        assert pool.apply_async(sqr, (4,)).get(WAIT) == 16
        assert list(pool.imap(sqr, [5, 6])) == [25, 36]
        pool.close()
        pool.join()

    def test_queue(self, ctx, manager):
        made = manager.Queue(1)
        run(ctx, put, made, 5)
        assert made.full() and made.get(timeout=WAIT) == 5
        with pytest.raises(queue.Empty):
            made.get(False)

    def test_joinable_queue(self, ctx, manager):
        made, done = manager.JoinableQueue(), manager.list()
        process = ctx.Process(target=work, args=(made, done))
        process.start()
        for item in (1, 2, None):
            made.put(item)
        made.join()
        assert done[:] == [1, 2]
        process.join(WAIT)

    def test_all_types_in_process(self, ctx, manager):
        d, items, q, n = manager.dict(), manager.list(), manager.Queue(), manager.Namespace(y=7)
        value, array = manager.Value("i", 1), manager.Array("i", [1, 2])
        run(ctx, fill, d, items, q, n, value, array)
        assert (d["x"], items[0], q.get(timeout=WAIT), value.value, list(array)) == (1, 2, 7, 2, [9, 2])


class TestManager:
    def test_methods_return_proxies(self):
        with ShelfManager(ctx=mp.get_context("forkserver")) as manager:
            box = manager.Shelf().box()
            box.append(2)
            assert box[:] == [1, 2]

    def test_server_is_active_child(self, ctx):
        with ctx.Manager() as manager:
            process = manager._process
            assert process in mp.active_children() and process.name.startswith("SyncManager-")
            assert isinstance(manager, multiprocessing.managers.SyncManager)
        assert process not in mp.active_children() and process.exitcode == 0

    def test_exceptions_of_methods_arrive(self, manager):
        with pytest.raises(IndexError):
            manager.list().pop()
        with pytest.raises(RemoteError, match="not in exposed"):
            manager.list()._callmethod("__iter__")

    def test_bad_states_raise(self):
        manager = SyncManager(ctx=mp.get_context("forkserver"))
        with pytest.raises(TypeError):
            manager.start(initializer=5)
        with pytest.raises(AssertionError):
            manager.list()
        manager.start()
        with pytest.raises(mp.ProcessError):
            manager.start()
        manager.shutdown()
        with pytest.raises(mp.ProcessError):
            manager.start()

    def test_shared_memory_manager_frees_blocks(self, ctx):
        with SharedMemoryManager(ctx=ctx) as manager:
            block = manager.SharedMemory(100)
            items = manager.ShareableList([1, "two"])
            block.buf[0] = 7
            assert list(items) == [1, "two"]
            names = [block.name, items.shm.name]
            assert all(os.path.exists(f"/dev/shm/{name}") for name in names)
            block.close()
            items.shm.close()
        assert not any(os.path.exists(f"/dev/shm/{name}") for name in names)


class TestProxiesInMessages:
    def test_proxies_pass_queues_and_pools(self, ctx):
        # The manager's key differs from the key of the processes.
        with SyncManager(authkey=b"another key", ctx=ctx) as manager:
            items, inbox, outbox = manager.list(), mp.Queue(), mp.Queue()
            inbox.put(items)
            run(ctx, get_forwarded, inbox, outbox)
            back = outbox.get(timeout=WAIT)
            back.append("here")
            assert len(items) == 2 and items[1] == "here"
            with ctx.Pool(1) as pool:
                pool.apply(append, (items, "pool"))
            assert items[2] == "pool"
            run(ctx, append, items, "process")
            assert items[3] == "process"

    def test_pickle_itself_leaves_key_out(self, manager):
        data = pickle.dumps(manager.list())
        assert manager._authkey not in data

    def test_objects_are_freed_with_last_proxy(self, ctx):
        with ctx.Manager() as manager:
            items, inbox, outbox = manager.list(), mp.Queue(), mp.Queue()
            inbox.put(items)
            run(ctx, get_forwarded, inbox, outbox)
            back = outbox.get(timeout=WAIT)
            del items
            assert len(back) == 1 and manager._number_of_objects() == 1
            del back
            assert manager._number_of_objects() == 0


class TestKills:
    def test_killed_server_is_lost_to_callers(self, ctx):
        manager, started, lost = ctx.Manager(), mp.Queue(), mp.Queue()
        items, q = manager.list(), manager.Queue()
        processes = [
            ctx.Process(target=report_lost, args=(items, started, lost)),
            ctx.Process(target=wait_for_item, args=(q, started, lost)),
        ]
        for process in processes:
            process.start()
        assert len({started.get(timeout=WAIT) for _ in processes}) == 2
        items.append(1)
        os.kill(manager._process.pid, signal.SIGKILL)
        with pytest.raises(ManagerLost, match=rf"process {manager._process.pid} .*killed by SIGKILL") as caught:
            items.append(2)
        assert isinstance(caught.value, (EOFError, mp.PeerLost)) and isinstance(caught.value, ConnectionError)
        with pytest.raises(ManagerLost):
            manager.dict()
        got = [lost.get(timeout=WAIT) for _ in processes]
        assert "lost" in got and any(other[:2] == (True, True) for other in got if other != "lost")
        for process in processes:
            process.join(WAIT)
            assert process.exitcode == 0
        manager.shutdown()

    def test_thread_in_get_detects_a_kill(self, ctx):
        manager = ctx.Manager()
        q, got = manager.Queue(), []

        def wait():
            try:
                q.get()
            except ManagerLost as error:
                got.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: manager._debug_info().count("refcount=") >= 1)
        os.kill(manager._process.pid, signal.SIGKILL)
        thread.join(WAIT)
        assert len(got) == 1
        manager.shutdown()

    @pytest.mark.parametrize("initializer", [die, fail])
    def test_failed_start_raises(self, ctx, initializer):
        manager = SyncManager(ctx=ctx)
        with pytest.raises(ManagerLost, match="before it was ready"):
            manager.start(initializer)

    def test_killed_client_leaves_others(self, ctx, manager):
        items, started, lost = manager.list(), mp.Queue(), mp.Queue()
        process = ctx.Process(target=report_lost, args=(items, started, lost))
        process.start()
        started.get(timeout=WAIT)
        process.kill()
        process.join(WAIT)
        items.append(1)
        assert items[:] == [1]

    @pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit(0)", "os._exit(1)"])
    def test_server_ends_with_its_parent(self, tmp_path, method, end):
        path = tmp_path / "program.py"
        path.write_text(
            textwrap.dedent(
                f"""
                import os, sys
                import multiproc as mp
                if __name__ == "__main__":
                    mp.set_start_method({method!r})
                    manager = mp.Manager()
                    items = manager.list([1])
                    print(manager._process.pid, flush=True)
                    {end}
                """
            )
        )
        program = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=50)
        pid = int(program.stdout)
        wait_until(lambda: not is_alive(pid))
        assert program.stderr == ""


def test_ended_manager_is_forgotten():
    from multiproc import managers

    with mp.Manager() as manager:
        address = manager.address
        assert address in managers._servers
    assert address not in managers._servers
