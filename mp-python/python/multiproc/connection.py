"""Connections between processes, and to other programs: the same as ``multiprocessing.connection``.

A ``Pipe`` connects processes of one program, and transfers objects without copies, as queues do. A
``Listener`` and a ``Client`` connect programs that share no memory. They exchange bytes, and objects only
with ``allow_pickle=True``: unpickling an object runs code that its sender chooses.
"""

from __future__ import annotations

import os
import tempfile
import time
from multiprocessing import connection as _connection
from multiprocessing import util as _util
from multiprocessing.connection import answer_challenge, deliver_challenge

from ._multiproc import Connection, Pipe, SocketListener, connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Any, Self

    _Address = str | os.PathLike[str] | tuple[str, int]

__all__ = ["Client", "Connection", "Listener", "Pipe", "answer_challenge", "deliver_challenge", "wait"]

families = ["AF_INET", "AF_UNIX"]
_SLICE = 0.1


def wait(object_list: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Waits until one of the objects is ready. Returns the list of ready objects, which is empty if the time
    limit has expired.

    CPython's own wait is repeated every 100 ms, because a signal that arrives just before the wait begins
    doesn't interrupt it.
    """
    objects = list(object_list)
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE if end is None else min(_SLICE, end - time.monotonic())
        ready = _connection.wait(objects, left)
        if ready or left < _SLICE:
            return ready


def _checked(address, family, authkey):
    if family is None and isinstance(address, str):
        family = address_type(address)
    if family is not None and family not in families:
        raise ValueError(f"family {family} is not recognized: use one of {', '.join(families)}")
    if address is not None and family is not None and address_type(address) != family:
        raise ValueError(f"{address!r} is not an address of {family}")
    if authkey is not None and not isinstance(authkey, bytes):
        raise TypeError("authkey should be a byte string")


def address_type(address: _Address) -> str:
    """Returns the family of an address: a tuple of host and port, or the path or name of a socket."""
    return _connection.address_type(address)


class Listener:
    """A socket at which clients connect.

    Without ``address``, a free one is chosen. Programs of this user that know ``authkey`` can connect, and
    over AF_INET all programs that know it. Without a key, all programs of this user can connect, and over
    AF_INET all programs of this machine.
    """

    def __init__(
        self,
        address: _Address | None = None,
        family: str | None = None,
        backlog: int = 1,
        authkey: bytes | None = None,
        *,
        allow_pickle: bool = False,
    ) -> None:
        _checked(address, family, authkey)
        family = family or (address_type(address) if address else "AF_INET")
        if address is None:
            address = ("localhost", 0) if family == "AF_INET" else _free_path()
        self._listener = SocketListener(address, backlog, authkey)
        self._address = self._listener.host or address
        self._allow_pickle = allow_pickle
        self._last_accepted = None

    def accept(self) -> Connection:
        """Waits for the next connection, and returns it."""
        if self._listener is None:
            raise OSError("listener is closed")
        connection, self._last_accepted = self._listener.accept(self._allow_pickle)
        return connection

    def fileno(self) -> int:
        """Returns a descriptor that is readable when a client connects."""
        if self._listener is None:
            raise OSError("listener is closed")
        return self._listener.fileno()

    def close(self) -> None:
        """Closes the socket. Accepted connections stay open."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    @property
    def address(self) -> Any:
        """Address for clients."""
        return self._address

    @property
    def last_accepted(self) -> tuple[str, int] | None:
        """Address of the last accepted client, or ``None`` for AF_UNIX."""
        return self._last_accepted

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.close()


def _free_path():
    return tempfile.mktemp(prefix="listener-", dir=_util.get_temp_dir())


def Client(
    address: _Address,
    family: str | None = None,
    authkey: bytes | None = None,
    *,
    allow_pickle: bool = False,
) -> Connection:
    """Connects to a ``Listener``, and returns the connection."""
    _checked(address, family, authkey)
    return connect(os.fspath(address) if isinstance(address, os.PathLike) else address, authkey, allow_pickle)
