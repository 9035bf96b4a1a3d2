"""Pipes, listeners and waits: further scenarios of CPython's ``_test_multiprocessing.py``."""

import os
import signal
import socket
import time
from multiprocessing import resource_sharer

import pytest

import multiproc as mp
from multiproc import connection, reduction

WAIT = 20
# A pipe of the kernel could not hold a message of this size without a reader.
LONG_MESSAGE = bytes(5 << 20)


def start(ctx, target, *args):
    process = ctx.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def join(*processes):
    for process in processes:
        process.join(WAIT)
        assert process.exitcode == 0


def send_ten(conn):
    for i in range(10):
        # sleep: the reader waits meanwhile.
        time.sleep(0.02)
        conn.send((i, os.getpid()))
    conn.close()


def send_ten_lines(address, pause):
    with socket.create_connection(address) as conn:
        for i in range(10):
            # sleep: the reader waits meanwhile.
            time.sleep(pause)
            conn.sendall(b"%d\n" % i)


def echo_despite_signals(conn):
    received = []
    signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    conn.send("ready")
    conn.send(conn.recv())
    conn.send_bytes(LONG_MESSAGE)
    conn.send(len(received))


def accept_despite_signals(conn):
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    with connection.Listener(allow_pickle=True) as listener:
        conn.send(listener.address)
        with listener.accept() as accepted:
            accepted.send("welcome")


def send_late(conn, address):
    # sleep: longer than the time limit of sockets.
    time.sleep(0.3)
    conn.send(123)
    with connection.Client(address, allow_pickle=True) as client:
        client.send(456)


def write_to(conn, data):
    fd = conn.recv().detach()
    os.write(fd, data)
    os.close(fd)


class TestCPythonWait:
    """Scenarios of ``TestWait``."""

    def test_wait_slow(self, ctx):
        readers, processes, found = [], [], []
        for _ in range(4):
            reader, writer = ctx.Pipe(duplex=False)
            processes.append(start(ctx, send_ten, writer))
            writer.close()
            readers.append(reader)
        while readers:
            for reader in connection.wait(readers, WAIT):
                try:
                    found.append(reader.recv())
                except EOFError:
                    readers.remove(reader)
                    reader.close()
        join(*processes)
        assert sorted(found) == sorted((i, process.pid) for i in range(10) for process in processes)

    def read_all_sockets(self, ctx, pause):
        with socket.create_server(("localhost", 0)) as server:
            address = server.getsockname()
            processes = [start(ctx, send_ten_lines, address, pause) for _ in range(4)]
            lines = {server.accept()[0]: b"" for _ in processes}
        readers = list(lines)
        while readers:
            for reader in connection.wait(readers, WAIT):
                data = reader.recv(32)
                lines[reader] += data
                if not data:
                    readers.remove(reader)
                    reader.close()
        join(*processes)
        assert list(lines.values()) == [b"".join(b"%d\n" % i for i in range(10))] * 4

    def test_wait_socket(self, ctx):
        self.read_all_sockets(ctx, 0)

    def test_wait_socket_slow(self, ctx):
        self.read_all_sockets(ctx, 0.02)


class TestCPythonIgnoreEINTR:
    """Scenarios of ``TestIgnoreEINTR``."""

    def test_ignore(self, ctx):
        conn, child = ctx.Pipe()
        process = start(ctx, echo_despite_signals, child)
        child.close()
        assert conn.recv() == "ready"
        # sleep: the process waits in recv and in send_bytes when the signals come.
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.1)  # sleep: so that the signal comes before the message
        conn.send(1234)
        assert conn.recv() == 1234
        os.kill(process.pid, signal.SIGUSR1)
        assert conn.recv_bytes() == LONG_MESSAGE
        assert conn.recv() >= 1
        join(process)

    def test_ignore_listener(self, ctx):
        conn, child = ctx.Pipe()
        process = start(ctx, accept_despite_signals, child)
        child.close()
        address = conn.recv()
        # sleep: the process waits in accept when the signal comes.
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.1)  # sleep: so that the signal comes before the client
        with connection.Client(address, allow_pickle=True) as client:
            assert client.recv() == "welcome"
        join(process)


class TestCPythonAddresses:
    """Scenarios of ``TestInvalidFamily``, ``TestInvalidHandle`` and ``TestTimeouts``."""

    def test_invalid_family(self):
        with pytest.raises(ValueError):
            connection.Listener(r"\\.\test")

    def test_invalid_handles(self):
        # A connection is not made from the number of a descriptor.
        for handle in (44977608, -1):
            with pytest.raises(TypeError):
                connection.Connection(handle)

    def test_timeout(self, ctx):
        old = socket.getdefaulttimeout()
        socket.setdefaulttimeout(0.1)
        try:
            conn, child = ctx.Pipe()
            with connection.Listener(family="AF_INET", allow_pickle=True) as listener:
                process = start(ctx, send_late, child, listener.address)
                child.close()
                assert conn.recv() == 123
                with listener.accept() as accepted:
                    assert accepted.recv() == 456
            join(process)
        finally:
            socket.setdefaulttimeout(old)


class Peer:
    """Connection whose other end gives certain answers."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def recv_bytes(self, size):
        return self.answers.pop(0) if self.answers else b""

    def send_bytes(self, data):
        pass


class TestCPythonChallenge:
    """Scenarios of ``OtherTest``."""

    def test_deliver_challenge_auth_failure(self):
        with pytest.raises(mp.AuthenticationError):
            connection.deliver_challenge(Peer(b"something bogus"), b"abc")

    def test_answer_challenge_auth_failure(self):
        with pytest.raises(mp.AuthenticationError):
            connection.answer_challenge(Peer(b"#CHALLENGE#", b"something bogus"), b"abc")


class TestCPythonDescriptors:
    """Scenarios of ``_TestConnection`` and ``_TestPicklingConnections`` that send descriptors."""

    def send_file(self, ctx, path, fd, data):
        conn, child = ctx.Pipe()
        process = start(ctx, write_to, child, data)
        conn.send(reduction.DupFd(fd))
        join(process)
        assert path.read_bytes() == data

    def test_fd_transfer(self, ctx, tmp_path):
        with open(tmp_path / "file", "wb") as file:
            self.send_file(ctx, tmp_path / "file", file.fileno(), b"foo")

    def test_large_fd_transfer(self, ctx, tmp_path):
        with open(tmp_path / "file", "wb") as file:
            os.dup2(file.fileno(), 300, inheritable=False)
            try:
                self.send_file(ctx, tmp_path / "file", 300, b"bar")
            finally:
                os.close(300)

    def test_pickling(self, ctx):
        left, right = socket.socketpair()
        queue = ctx.Queue()
        with left, right:
            queue.put(left)
            with queue.get() as other:
                other.sendall(b"through")
                assert right.recv(100) == b"through"
        # CPython's thread that served the descriptor is stopped.
        resource_sharer.stop(WAIT)
