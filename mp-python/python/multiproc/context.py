"""Contexts: the package's functions with a start method."""

from __future__ import annotations

from multiprocessing.context import (
    AuthenticationError,
    BaseContext,
    BufferTooShort,
    ProcessError,
    TimeoutError,
)

from . import _multiproc, process, synchronize

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from . import managers, pool

    _Type = str | type[ctypes._CData]
    _Lock = _multiproc.Lock | _multiproc.RLock

__all__ = ["get_context", "get_start_method", "set_start_method", "get_all_start_methods"]

_METHODS = ["spawn", "forkserver"]
_method = None


def get_all_start_methods() -> list[str]:
    """Returns the names of the start methods, the default first."""
    return list(_METHODS)


def get_start_method(allow_none: bool = False) -> str | None:
    """Returns the name of the start method of this process."""
    if _method is None and not allow_none:
        set_start_method(_METHODS[0])
    return _method


def set_start_method(method: str | None, force: bool = False) -> None:
    """Sets the start method, once. ``None`` selects the default, or with ``force`` removes the setting."""
    global _method
    if _method is not None and not force:
        raise RuntimeError("context has already been set")
    if method is not None or not force:
        method = get_context(_METHODS[0] if method is None else method)._name
    _method = method


class Context(BaseContext):
    """The package's functions, with a start method."""

    AuthenticationError = AuthenticationError
    BufferTooShort = BufferTooShort
    ProcessError = ProcessError
    TimeoutError = TimeoutError

    _name = None
    Process = process.Process

    def get_context(self, method: str | None = None) -> Context:
        return get_context(method or self._name)

    def get_start_method(self, allow_none: bool = False) -> str | None:
        return self._name or get_start_method(allow_none)

    def get_all_start_methods(self) -> list[str]:
        return get_all_start_methods()

    def set_start_method(self, method: str | None, force: bool = False) -> None:
        if self._name is not None:
            raise ValueError("cannot set start method of concrete context")
        set_start_method(method, force)

    def freeze_support(self) -> None:
        """Does nothing. ``multiprocessing`` needs it for frozen programs on Windows."""

    def set_forkserver_preload(self, module_names: Iterable[str]) -> None:
        process.set_forkserver_preload(module_names)

    def Lock(self) -> _multiproc.Lock:
        """Returns a lock between processes."""
        return _multiproc.Lock(ctx=self)

    def RLock(self) -> _multiproc.RLock:
        """Returns a recursive lock between processes."""
        return _multiproc.RLock(ctx=self)

    def Semaphore(self, value: int = 1) -> _multiproc.Semaphore:
        """Returns a semaphore between processes."""
        return _multiproc.Semaphore(value, ctx=self)

    def BoundedSemaphore(self, value: int = 1) -> _multiproc.BoundedSemaphore:
        """Returns a semaphore between processes that can't be released more often than acquired."""
        return _multiproc.BoundedSemaphore(value, ctx=self)

    def Condition(self, lock: _Lock | None = None) -> synchronize.Condition:
        """Returns a condition variable between processes."""
        return synchronize.Condition(lock, ctx=self)

    def Event(self) -> _multiproc.Event:
        """Returns an event between processes."""
        return _multiproc.Event(ctx=self)

    def Barrier(
        self, parties: int, action: Callable[[], object] | None = None, timeout: float | None = None
    ) -> synchronize.Barrier:
        """Returns a barrier between processes."""
        return synchronize.Barrier(parties, action, timeout, ctx=self)

    def Value(self, typecode_or_type: _Type, *args: Any, lock: Any = True) -> Any:
        """Returns a ctypes object in shared memory, with a lock."""
        from . import sharedctypes

        return sharedctypes.Value(typecode_or_type, *args, lock=lock, ctx=self)

    def Array(
        self, typecode_or_type: _Type, size_or_initializer: int | Sequence[Any], *, lock: Any = True
    ) -> Any:
        """Returns a ctypes array in shared memory, with a lock."""
        from . import sharedctypes

        return sharedctypes.Array(typecode_or_type, size_or_initializer, lock=lock, ctx=self)

    def RawValue(self, typecode_or_type: _Type, *args: Any) -> Any:
        """Returns a ctypes object in shared memory."""
        from . import sharedctypes

        return sharedctypes.RawValue(typecode_or_type, *args)

    def RawArray(self, typecode_or_type: _Type, size_or_initializer: int | Sequence[Any]) -> Any:
        """Returns a ctypes array in shared memory."""
        from . import sharedctypes

        return sharedctypes.RawArray(typecode_or_type, size_or_initializer)

    def Queue(
        self, maxsize: int = 0, *, bytes: int | None = None, deliveries: int = 5
    ) -> _multiproc.Queue[Any]:
        from ._multiproc import Queue

        return Queue(maxsize, bytes=bytes, deliveries=deliveries)

    def JoinableQueue(
        self, maxsize: int = 0, *, bytes: int | None = None
    ) -> _multiproc.JoinableQueue[Any]:
        from ._multiproc import JoinableQueue

        return JoinableQueue(maxsize, bytes=bytes)

    def Pipe(self, duplex: bool = True) -> tuple[_multiproc.Connection, _multiproc.Connection]:
        from ._multiproc import Pipe

        return Pipe(duplex)

    def SimpleQueue(self) -> _multiproc.SimpleQueue[Any]:
        from ._multiproc import SimpleQueue

        return SimpleQueue()

    def Manager(self) -> managers.SyncManager:
        """Returns a manager whose server is started: see ``multiproc.managers.SyncManager``."""
        from .managers import SyncManager

        manager = SyncManager(ctx=self.get_context())
        manager.start()
        return manager

    def Pool(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        **options: Any,
    ) -> pool.Pool:
        """Returns a pool of processes: see ``multiproc.pool.Pool``."""
        from .pool import Pool

        return Pool(processes, initializer, initargs, maxtasksperchild, self, **options)


SpawnProcess = process.SpawnProcess
ForkServerProcess = process.ForkServerProcess


class SpawnContext(Context):
    """The package's functions. Each process is a new interpreter."""

    _name = "spawn"
    Process = SpawnProcess


class ForkServerContext(Context):
    """The package's functions. Processes are copies of a server process."""

    _name = "forkserver"
    Process = ForkServerProcess


_contexts = {"spawn": SpawnContext(), "forkserver": ForkServerContext()}
default = Context()
allow_connection_pickling = default.allow_connection_pickling
cpu_count = default.cpu_count
freeze_support = default.freeze_support
get_logger = default.get_logger
log_to_stderr = default.log_to_stderr
reducer = default.reducer
set_executable = default.set_executable


def get_context(method: str | None = None) -> Context:
    """Returns the context of a start method. For ``None``, this is the start method of this process, which
    can't be changed afterwards."""
    if method is None:
        method = get_start_method()
    if method == "fork":
        raise ValueError(
            "multiproc has no start method 'fork', which copies a process with its threads, locks and shared "
            "memory: use 'forkserver', which is as fast"
        )
    try:
        return _contexts[method]
    except KeyError:
        raise ValueError(f"cannot find context for {method!r}") from None
