"""Pipes, listeners and clients: CPython's scenarios, and additional features."""

import array
import multiprocessing
import os
import select
import signal
import threading
import time
from multiprocessing import connection as stdlib

import pytest

import multiproc as mp
from multiproc import connection

WAIT = 20
END = b""


def start(ctx, target, *args):
    process = ctx.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def kill(process):
    process.kill()
    process.join(WAIT)
    assert process.exitcode == -signal.SIGKILL


def join(*processes):
    for process in processes:
        process.join(WAIT)
        assert process.exitcode == 0


# Functions of processes.


def echo(conn):
    for message in iter(conn.recv_bytes, END):
        conn.send_bytes(message)
    conn.close()


def send_each(conn, messages):
    for message in messages:
        conn.send_bytes(message)
    conn.close()


def poll_once(conn, ready):
    ready.send(True)
    assert conn.poll(WAIT)


def access(conn):
    with conn.recv() as writer:
        writer.send("all is well")
    with conn.recv() as reader:
        conn.send(reader.recv() * 2)
    conn.close()


def send_hello(address):
    with connection.Client(address, allow_pickle=True) as conn:
        conn.send("hello")


def touch_and_wait(conn, ready):
    ready.send(True)
    signal.pause()


def send_range(conn, count):
    for i in range(count):
        conn.send(i)
    signal.pause()


def send_and_close(conn, obj):
    conn.send(obj)
    conn.close()


class TestCPythonConnection:
    def test_connection(self, ctx):
        conn, child = ctx.Pipe()
        process = start(ctx, echo, child)
        seq, msg = [1, 2.25, None], b"hello world"
        numbers = array.array("i", range(4))
        assert type(conn.fileno()) is int
        assert conn.send(seq) is None
        assert conn.recv() == seq
        assert conn.send_bytes(msg) is None
        assert conn.recv_bytes() == msg
        buffer = array.array("i", [0] * 10)
        conn.send_bytes(numbers)
        assert conn.recv_bytes_into(buffer) == len(numbers) * buffer.itemsize
        assert list(buffer) == list(numbers) + [0] * 6
        buffer = array.array("i", [0] * 10)
        conn.send_bytes(numbers)
        assert conn.recv_bytes_into(buffer, 3 * buffer.itemsize) == len(numbers) * buffer.itemsize
        assert list(buffer) == [0] * 3 + list(numbers) + [0] * 3
        conn.send_bytes(msg * 10)
        with pytest.raises(multiprocessing.BufferTooShort) as caught:
            conn.recv_bytes_into(bytearray(40))
        assert caught.value.args == (msg * 10,)
        assert conn.poll() is False
        assert conn.poll(-1) is False
        begun = time.monotonic()
        assert conn.poll(0.1) is False
        assert time.monotonic() - begun >= 0.1
        conn.send(None)
        assert conn.poll(WAIT) is True
        assert conn.recv() is None
        big = os.urandom(1024) * (16 * 1024)
        conn.send_bytes(big)
        assert conn.recv_bytes() == big
        conn.send_bytes(END)
        child.close()
        assert conn.readable and conn.writable
        with pytest.raises(EOFError):
            conn.recv()
        with pytest.raises(EOFError):
            conn.recv_bytes()
        join(process)

    def test_duplex_false(self):
        reader, writer = mp.Pipe(duplex=False)
        assert writer.send(1) is None
        assert reader.recv() == 1
        assert (reader.readable, reader.writable) == (True, False)
        assert (writer.readable, writer.writable) == (False, True)
        with pytest.raises(OSError):
            reader.send(2)
        with pytest.raises(OSError):
            writer.recv()
        with pytest.raises(OSError):
            writer.poll()

    def test_spawn_close(self, ctx):
        conn, child = ctx.Pipe()
        process = start(ctx, echo, child)
        child.close()
        conn.send_bytes(b"hello")
        assert conn.recv_bytes() == b"hello"
        conn.send_bytes(END)
        conn.close()
        join(process)

    def test_sendbytes(self):
        msg = b"abcdefghijklmnopqrstuvwxyz"
        a, b = mp.Pipe()
        for arguments, expected in [
            ((), msg),
            ((5,), msg[5:]),
            ((7, 8), msg[7:15]),
            ((26,), b""),
            ((26, 0), b""),
        ]:
            a.send_bytes(msg, *arguments)
            assert b.recv_bytes() == expected
        for arguments in [(27,), (22, 5), (26, 1), (-1,), (4, -1)]:
            with pytest.raises(ValueError):
                a.send_bytes(msg, *arguments)

    def test_context(self):
        a, b = mp.Pipe()
        with a, b:
            a.send(1729)
            assert b.recv() == 1729
            assert not a.closed and not b.closed
        assert a.closed and b.closed
        with pytest.raises(OSError):
            a.recv()
        with pytest.raises(OSError):
            b.recv()


class TestCPythonPoll:
    def test_empty_string(self):
        a, b = mp.Pipe()
        assert a.poll() is False
        b.send_bytes(b"")
        assert a.poll() is True
        assert a.poll() is True

    def test_strings(self, ctx):
        strings = (b"hello", b"", b"a", b"b", b"", b"bye", b"", b"lop")
        a, b = ctx.Pipe()
        process = start(ctx, send_each, b, strings)
        for expected in strings:
            assert a.poll(WAIT)
            assert a.recv_bytes() == expected
        join(process)

    def test_boundaries(self, ctx):
        reader, writer = ctx.Pipe(False)
        ready, there = ctx.Pipe(False)
        process = start(ctx, poll_once, reader, there)
        ready.recv()
        messages = [b"first", b"second"]
        for message in messages:
            writer.send_bytes(message)
        writer.close()
        join(process)
        # A poll takes no part of a message.
        assert [reader.recv_bytes(), reader.recv_bytes()] == messages

    def test_dont_merge(self, ctx):
        a, b = ctx.Pipe()
        assert a.poll(0.0) is False
        assert a.poll(0.05) is False
        process = start(ctx, send_each, b, (b"a", b"b", b"cd"))
        assert a.recv_bytes() == b"a"
        assert a.poll(WAIT) and a.poll(WAIT)
        assert a.recv_bytes() == b"b"
        assert a.poll(WAIT) and a.poll(WAIT) and a.poll(0.0)
        assert a.recv_bytes() == b"cd"
        join(process)


class TestCPythonListener:
    def test_multiple_bind(self):
        for family in connection.families:
            with connection.Listener(family=family) as listener:
                with pytest.raises(OSError):
                    connection.Listener(listener.address, family)

    def test_context(self):
        with connection.Listener(allow_pickle=True) as listener:
            with connection.Client(listener.address, allow_pickle=True) as client:
                with listener.accept() as server:
                    client.send(1729)
                    assert server.recv() == 1729
        with pytest.raises(OSError):
            listener.accept()

    def test_empty_authkey(self):
        with connection.Listener(authkey=b"") as listener:
            with connection.Client(listener.address, authkey=b"") as client, listener.accept() as server:
                client.send_bytes(b"1729")
                assert server.recv_bytes() == b"1729"
        with pytest.raises(OSError):
            listener.accept()

    def test_abstract_socket(self):
        name = f"\0multiproc-test-{os.getpid()}"
        with connection.Listener(name) as listener:
            with connection.Client(listener.address) as client, listener.accept() as server:
                client.send_bytes(b"1729")
                assert server.recv_bytes() == b"1729"
        with pytest.raises(OSError):
            listener.accept()


class TestCPythonListenerClient:
    def test_listener_client(self, ctx):
        for family in connection.families:
            with connection.Listener(family=family, allow_pickle=True) as listener:
                process = start(ctx, send_hello, listener.address)
                with listener.accept() as conn:
                    assert conn.recv() == "hello"
                join(process)

    def test_issue14725(self, ctx):
        # The client has connected, sent and closed before it is accepted.
        with connection.Listener(allow_pickle=True) as listener:
            process = start(ctx, send_hello, listener.address)
            join(process)
            with listener.accept() as conn:
                assert conn.recv() == "hello"

    def test_issue16955(self):
        for family in connection.families:
            with connection.Listener(family=family) as listener:
                client = connection.Client(listener.address)
                server = listener.accept()
                server.send_bytes(b"hello")
                assert client.poll(WAIT)
                server.close()
                assert client.recv_bytes() == b"hello"
                with pytest.raises(EOFError):
                    client.recv_bytes()
                client.close()


class TestCPythonPicklingConnections:
    def test_access(self, ctx):
        conn, child = ctx.Pipe()
        process = start(ctx, access, child)
        child.close()
        reader, writer = ctx.Pipe(duplex=False)
        conn.send(writer)
        writer.close()
        assert reader.recv() == "all is well"
        reader.close()
        reader, writer = ctx.Pipe(duplex=False)
        conn.send(reader)
        reader.close()
        writer.send("foobar")
        writer.close()
        assert conn.recv() == "foobarfoobar"
        with pytest.raises(EOFError):
            conn.recv()
        join(process)


class TestCPythonWait:
    def test_wait(self, ctx):
        readers, processes = [], []
        for i in range(4):
            reader, writer = ctx.Pipe(duplex=False)
            processes.append(start(ctx, send_and_close, writer, i))
            writer.close()
            readers.append(reader)
        got = []
        while readers:
            for reader in connection.wait(readers, WAIT):
                try:
                    got.append(reader.recv())
                except EOFError:
                    readers.remove(reader)
                    reader.close()
        assert sorted(got) == [0, 1, 2, 3]
        join(*processes)

    def test_wait_timeout(self):
        a, b = mp.Pipe()
        begun = time.monotonic()
        assert connection.wait([a, b], 0.1) == []
        assert time.monotonic() - begun >= 0.1
        b.send(None)
        assert connection.wait([a, b], WAIT) == [a]

    def test_wait_integer(self, ctx):
        # With a sentinel of a process, and a connection of the standard library.
        a, b = ctx.Pipe()
        c, d = multiprocessing.Pipe()
        process = start(ctx, send_and_close, b, 1)
        b.close()
        assert process.sentinel in connection.wait([process.sentinel], WAIT)
        ready = stdlib.wait([a, c, process.sentinel], WAIT)
        assert process.sentinel in ready and c not in ready
        assert a in stdlib.wait([a], WAIT)
        assert a.recv() == 1
        d.close()
        assert stdlib.wait([c], WAIT) == [c]
        join(process)

    def test_neg_timeout(self):
        a, _b = mp.Pipe()
        assert connection.wait([a], timeout=-1) == []


class TestPipe:
    def test_send_and_recv_mix_objects_and_bytes(self):
        a, b = mp.Pipe()
        a.send({"a": [1, bytes(50_000)]})
        b.send_bytes(b.recv_bytes())
        assert a.recv() == {"a": [1, bytes(50_000)]}

    @pytest.mark.parametrize("size", [0, 1, 16_383, 16_384, 1 << 20])
    def test_bytes_of_any_size_arrive(self, size):
        a, b = mp.Pipe()
        data = os.urandom(size)
        a.send_bytes(memoryview(data))
        assert b.recv_bytes() == data
        a.send_bytes(bytearray(data))
        into = bytearray(size)
        assert b.recv_bytes_into(into) == size
        assert into == data

    def test_too_long_message_closes_the_end(self):
        a, b = mp.Pipe()
        a.send_bytes(b"123456")
        with pytest.raises(OSError, match="bad message length"):
            b.recv_bytes(5)
        assert b.closed
        with pytest.raises(ValueError):
            a.recv_bytes(-1)

    def test_offset_beyond_the_buffer_takes_nothing(self):
        a, b = mp.Pipe()
        a.send_bytes(b"123")
        with pytest.raises(ValueError):
            b.recv_bytes_into(bytearray(5), 6)
        with pytest.raises(ValueError):
            b.recv_bytes_into(bytearray(5), -1)
        assert b.recv_bytes() == b"123"

    def test_closed_peer_ends_both_ways(self):
        a, b = mp.Pipe()
        b.send(1)
        b.close()
        assert a.poll() and a.recv() == 1
        assert a.poll()
        with pytest.raises(EOFError):
            a.recv()
        with pytest.raises(BrokenPipeError):
            a.send(1)
        assert repr(a) == "<multiproc.Connection: pipe, disconnected>"

    def test_killed_peer_ends_the_wait(self, ctx):
        conn, child = ctx.Pipe()
        ready, there = ctx.Pipe(False)
        process = start(ctx, touch_and_wait, child, there)
        child.close()
        ready.recv()
        failed = []

        def receive():
            try:
                conn.recv()
            except EOFError:
                failed.append(True)

        thread = threading.Thread(target=receive)
        thread.start()
        kill(process)
        thread.join(WAIT)
        assert failed == [True]

    def test_messages_of_a_killed_sender_arrive(self, ctx):
        reader, writer = ctx.Pipe(False)
        process = start(ctx, send_range, writer, 1000)
        writer.close()
        assert reader.recv() == 0
        kill(process)
        expected = 1
        with pytest.raises(EOFError):
            while True:
                assert reader.recv() == expected
                expected += 1
        assert expected <= 1000

    def test_fileno_follows_messages(self, ctx):
        a, b = mp.Pipe()
        assert select.select([a], [], [], 0)[0] == []
        b.send(1)
        assert select.select([a], [], [], WAIT)[0] == [a]
        a.recv()
        assert select.select([a], [], [], 0)[0] == []
        b.close()
        assert select.select([a], [], [], WAIT)[0] == [a]

    def test_pipe_in_a_queue_works(self):
        queue = mp.Queue()
        a, b = mp.Pipe()
        queue.put(b)
        b.close()
        received = queue.get()
        received.send("through")
        assert a.recv() == "through"


class TestSocket:
    @pytest.mark.parametrize("family", connection.families)
    def test_objects_are_refused_unless_allowed(self, family):
        with connection.Listener(family=family) as listener:
            with connection.Client(listener.address, allow_pickle=True) as client:
                with listener.accept() as server:
                    client.send([1])
                    with pytest.raises(PermissionError, match="allow_pickle=True"):
                        server.recv()
                    with pytest.raises(PermissionError, match="allow_pickle=True"):
                        server.send([1])
                    assert server.recv_bytes()

    def test_write_to_a_waiting_buffer_changes_no_message(self):
        received, buffer = [], bytearray(1)

        def receive():
            received.extend(server.recv_bytes()[-1] for _ in range(2))

        def write(number, frame):
            buffer[0] = 1
            receiver.start()

        receiver = threading.Thread(target=receive)
        with connection.Listener() as listener, connection.Client(listener.address) as client:
            with listener.accept() as server:
                # More bytes than a socket holds, so that the next message waits while signals are handled.
                client.send_bytes(bytes(16 << 20))
                before = signal.signal(signal.SIGALRM, write)
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                client.send_bytes(buffer)
                signal.signal(signal.SIGALRM, before)
                receiver.join(WAIT)
        assert (buffer, received) == (b"\1", [0, 0])

    @pytest.mark.parametrize("family", connection.families)
    def test_wrong_key_is_an_authentication_error(self, family):
        with connection.Listener(family=family, authkey=b"right") as listener:
            errors = []

            def connect(key):
                try:
                    connection.Client(listener.address, authkey=key).close()
                except Exception as error:
                    errors.append(error)

            for key in b"wrong", None:
                thread = threading.Thread(target=connect, args=(key,))
                thread.start()
                with pytest.raises(mp.AuthenticationError):
                    listener.accept()
                thread.join(WAIT)
            assert isinstance(errors[0], (mp.AuthenticationError, EOFError))

    def test_right_key_connects(self):
        with connection.Listener(authkey=b"right") as listener:
            clients = []
            connect = threading.Thread(
                target=lambda: clients.append(connection.Client(listener.address, authkey=b"right"))
            )
            connect.start()
            with listener.accept() as server:
                connect.join(WAIT)
                assert listener.last_accepted[0] == "127.0.0.1"
                server.send_bytes(bytes(1 << 20))
                assert len(clients[0].recv_bytes()) == 1 << 20
                clients[0].close()

    def test_missing_listener_is_an_os_error(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            connection.Client(str(tmp_path / "nobody"))
        with connection.Listener() as listener:
            address = listener.address
        with pytest.raises(ConnectionRefusedError):
            connection.Client(address)

    def test_bad_arguments_are_refused(self):
        with pytest.raises(TypeError):
            connection.Listener(authkey="text")
        with pytest.raises(ValueError):
            connection.Listener(family="AF_PIPE")
        with pytest.raises(ValueError):
            connection.Client(("localhost", 1), "AF_UNIX")

    @pytest.mark.parametrize("port", [-1, 65536, 1 << 70])
    def test_port_out_of_range_raises(self, port):
        for call in connection.Listener, connection.Client:
            with pytest.raises(OverflowError, match="port must be 0-65535"):
                call(("localhost", port))

    @pytest.mark.parametrize("address", [("localhost", "80"), ("localhost", None), ("localhost",), (1, 80)])
    def test_address_of_other_types_raises(self, address):
        for call in connection.Listener, connection.Client:
            with pytest.raises(TypeError, match="integer|pair of a host name and a port number"):
                call(address)

    def test_socket_cannot_be_sent(self):
        with connection.Listener() as listener:
            with connection.Client(listener.address) as client:
                with pytest.raises(TypeError, match="connect there instead"):
                    mp.Queue().put(client)

    def test_shared_objects_cannot_be_sent_on_a_socket(self):
        with connection.Listener() as listener:
            with connection.Client(listener.address, allow_pickle=True) as client:
                with pytest.raises(RuntimeError, match="processes of one program"):
                    client.send(mp.Queue())

    def test_close_ends_accept_of_a_thread(self):
        listener, errors = connection.Listener(), []

        def accept():
            try:
                listener.accept()
            except OSError as error:
                errors.append(error)

        thread = threading.Thread(target=accept)
        thread.start()
        listener.close()
        thread.join(WAIT)
        assert len(errors) == 1


def test_wait_returns_to_the_interpreter(monkeypatch):
    times = []

    def noted(objects, timeout):
        times.append(timeout)
        return wait(objects, timeout)

    wait = stdlib.wait
    monkeypatch.setattr(stdlib, "wait", noted)
    a, b = mp.Pipe()
    assert connection.wait([a], 0.25) == [] and len(times) >= 3 and max(times) <= 0.1
    b.send(1)
    assert connection.wait(iter([a])) == [a] and connection.wait([a], 0) == [a]
