"""Managers: the same as ``multiprocessing``'s, with servers that are started and watched by the library.

The objects are in the server's process, and proxies call their methods there. If the server has ended,
proxies raise ``ManagerLost``, which names the server. It is an ``EOFError`` and a ``ConnectionError``, like
the exceptions of ``multiprocessing``'s proxies without a server.
"""

from __future__ import annotations

from multiprocessing import connection as _connection
from multiprocessing import managers as _managers
from multiprocessing import util as _util
from multiprocessing.managers import (
    AcquirerProxy,
    ArrayProxy,
    AutoProxy,
    BarrierProxy,
    BaseListProxy,
    BaseProxy,
    ConditionProxy,
    DictProxy,
    EventProxy,
    IteratorProxy,
    ListProxy,
    MakeProxyType,
    Namespace,
    NamespaceProxy,
    PoolProxy,
    RemoteError,
    Server,
    SharedMemoryServer,
    Token,
    ValueProxy,
)

from . import _multiproc
from ._process_end import signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = [
    "AcquirerProxy",
    "ArrayProxy",
    "AutoProxy",
    "BarrierProxy",
    "BaseListProxy",
    "BaseManager",
    "BaseProxy",
    "ConditionProxy",
    "DictProxy",
    "EventProxy",
    "IteratorProxy",
    "ListProxy",
    "MakeProxyType",
    "ManagerLost",
    "Namespace",
    "NamespaceProxy",
    "PoolProxy",
    "RemoteError",
    "Server",
    "SharedMemoryManager",
    "SyncManager",
    "Token",
    "ValueProxy",
]

# Server processes of this process, by address.
_servers = {}


class ManagerLost(_multiproc.PeerLost, ConnectionError):
    """The server of a manager has ended, or has closed the connection."""


def _lost(address):
    """Returns the exception for a server that does not answer."""
    process = _servers.get(address)
    end = ""
    if process is not None:
        # The connection may be closed just before the process can be reaped.
        process.join(1)
        code = process.exitcode
        if code is None:
            end = f": process {process.pid} ({process.name}) closed the connection"
        elif code < 0:
            end = f": process {process.pid} ({process.name}) was killed by {signal_name(code)}"
        else:
            end = f": process {process.pid} ({process.name}) exited with code {code}"
    return ManagerLost(f"the manager's server at {address!r} is gone{end}")


class _Connection(_connection.Connection):
    """Connection whose errors name the server."""

    address = None

    def send(self, obj):
        try:
            super().send(obj)
        except (EOFError, ConnectionError) as error:
            raise _lost(self.address) from error

    def recv(self):
        try:
            return super().recv()
        except (EOFError, ConnectionError) as error:
            raise _lost(self.address) from error


def _client(address, family=None, authkey=None):
    """Like ``multiprocessing.connection.Client``, for proxies."""
    try:
        made = _connection.Client(address, family, authkey)
    except (EOFError, ConnectionError, FileNotFoundError) as error:
        raise _lost(address) from error
    try:
        made.__class__ = _Connection
        made.address = address
    except TypeError:
        pass
    return made


class _Serializer(str):
    """Name of a serializer. Unpickling it selects the connections of this module."""

    def __reduce__(self):
        return _Serializer, (str(self),)


_PICKLE = _Serializer("multiproc")
_managers.listener_client.setdefault(_PICKLE, (_connection.Listener, _client))


def _reduce_proxy(proxy):
    """Reduces a proxy in a message, together with its manager's authentication key."""
    reduced = proxy.__reduce__()
    if reduced[0] is _managers.RebuildProxy:
        options = reduced[1][-1]
        options["authkey"] = bytes(proxy._authkey)
    return reduced


_multiproc.register_base(BaseProxy, _reduce_proxy)


class BaseManager(_managers.BaseManager):
    """Base class of managers. ``register`` adds types of objects.

    ``allow_pickle=True`` is needed for ``connect`` and for a server at a network address: a program with
    ``authkey`` can run code in the other one. It is not needed with ``serializer="xmlrpclib"``.
    """

    def __init__(
        self,
        address: Any = None,
        authkey: bytes | None = None,
        serializer: str = "pickle",
        ctx: Any = None,
        *,
        shutdown_timeout: float = 1.0,
        allow_pickle: bool = False,
    ) -> None:
        from .context import get_context

        serializer = _PICKLE if serializer == "pickle" else serializer
        super().__init__(address, authkey, serializer, ctx or get_context())
        self._shutdown_timeout, self._allow_pickle = shutdown_timeout, allow_pickle

    def _check_pickle(self):
        if self._serializer == _PICKLE and not self._allow_pickle:
            raise PermissionError(
                f"{type(self).__name__} at {self._address!r}: a manager's server and its clients unpickle what "
                "any program that has authkey sends, and unpickling runs code that the sender chooses. Pass "
                "allow_pickle=True if you trust all of them"
            )

    def _check_server(self):
        if isinstance(self._address, tuple):
            self._check_pickle()

    def get_server(self) -> Server:
        """Returns a server for this process: ``get_server().serve_forever()``."""
        self._check_server()
        return super().get_server()

    def connect(self) -> None:
        """Connects to a server that another program or process has started."""
        self._check_pickle()
        try:
            super().connect()
        except ManagerLost as error:
            # There was no connection, so none was lost.
            raise error.__cause__ from None

    def start(
        self, initializer: Callable[..., object] | None = None, initargs: Iterable[Any] = ()
    ) -> None:
        """Starts the server's process, and waits until it listens."""
        self._check_server()
        # The server's socket is in the folder of this process, which removes it even if the server is killed.
        _util.get_temp_dir()
        try:
            super().start(initializer, initargs)
        except EOFError:
            process = self._process
            process.join()
            raise ManagerLost(
                f"the manager's server, process {process.pid} ({process.name}), ended with exit code "
                f"{process.exitcode} before it was ready"
            ) from None
        _servers[self._address] = self._process

    @staticmethod
    def _finalize_manager(process, address, *options):
        _managers.BaseManager._finalize_manager(process, address, *options)
        _servers.pop(address, None)


class SyncManager(BaseManager, _managers.SyncManager):
    """Manager of dicts, lists, queues and objects of ``threading``. ``Manager()`` returns a started one."""

    _registry = _managers.SyncManager._registry.copy()


def _pool(*args, **options):
    from .pool import Pool

    return Pool(*args, **options)


SyncManager.register("Pool", _pool, PoolProxy)


class SharedMemoryManager(BaseManager, _managers.SharedMemoryManager):
    """Manager of blocks of shared memory, which are freed when it ends."""

    _registry = _managers.SharedMemoryManager._registry.copy()
