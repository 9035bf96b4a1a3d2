"""Contexts: the package's functions with a start method."""

from multiprocessing.context import (
    AuthenticationError,
    BaseContext,
    BufferTooShort,
    ProcessError,
    TimeoutError,
)

from . import _multiproc, process, synchronize

__all__ = ["get_context", "get_start_method", "set_start_method", "get_all_start_methods"]

_METHODS = ["spawn", "forkserver"]
_method = None


def get_all_start_methods():
    """Returns the names of the start methods, the default first."""
    return list(_METHODS)


def get_start_method(allow_none=False):
    """Returns the name of the start method of this process."""
    if _method is None and not allow_none:
        set_start_method(_METHODS[0])
    return _method


def set_start_method(method, force=False):
    """Sets the start method, once."""
    global _method
    if _method is not None and not force:
        raise RuntimeError("context has already been set")
    if method is not None:
        get_context(method)
    _method = method


class Context(BaseContext):
    """The package's functions, with a start method."""

    AuthenticationError = AuthenticationError
    BufferTooShort = BufferTooShort
    ProcessError = ProcessError
    TimeoutError = TimeoutError

    _name = None
    Process = process.Process

    def get_context(self, method=None):
        return get_context(method or self._name)

    def get_start_method(self, allow_none=False):
        return self._name or get_start_method(allow_none)

    def get_all_start_methods(self):
        return get_all_start_methods()

    def set_start_method(self, method, force=False):
        if self._name is not None:
            raise ValueError("cannot set start method of concrete context")
        set_start_method(method, force)

    def freeze_support(self):
        """Does nothing: for frozen programs on Windows."""

    def set_forkserver_preload(self, module_names):
        process.set_forkserver_preload(module_names)

    def Lock(self):
        """Returns a lock between processes."""
        return _multiproc.Lock(ctx=self)

    def RLock(self):
        """Returns a recursive lock between processes."""
        return _multiproc.RLock(ctx=self)

    def Semaphore(self, value=1):
        """Returns a semaphore between processes."""
        return _multiproc.Semaphore(value, ctx=self)

    def BoundedSemaphore(self, value=1):
        """Returns a semaphore between processes that can't be released more often than acquired."""
        return _multiproc.BoundedSemaphore(value, ctx=self)

    def Condition(self, lock=None):
        """Returns a condition variable between processes."""
        return synchronize.Condition(lock, ctx=self)

    def Event(self):
        """Returns an event between processes."""
        return _multiproc.Event(ctx=self)

    def Barrier(self, parties, action=None, timeout=None):
        """Returns a barrier between processes."""
        return synchronize.Barrier(parties, action, timeout, ctx=self)

    def Value(self, typecode_or_type, *args, lock=True):
        """Returns a ctypes object in shared memory, with a lock."""
        from . import sharedctypes

        return sharedctypes.Value(typecode_or_type, *args, lock=lock, ctx=self)

    def Array(self, typecode_or_type, size_or_initializer, *, lock=True):
        """Returns a ctypes array in shared memory, with a lock."""
        from . import sharedctypes

        return sharedctypes.Array(typecode_or_type, size_or_initializer, lock=lock, ctx=self)

    def RawValue(self, typecode_or_type, *args):
        """Returns a ctypes object in shared memory."""
        from . import sharedctypes

        return sharedctypes.RawValue(typecode_or_type, *args)

    def RawArray(self, typecode_or_type, size_or_initializer):
        """Returns a ctypes array in shared memory."""
        from . import sharedctypes

        return sharedctypes.RawArray(typecode_or_type, size_or_initializer)

    def Queue(self, maxsize=0, *, bytes=None, deliveries=5):
        from ._multiproc import Queue

        return Queue(maxsize, bytes=bytes, deliveries=deliveries)

    def JoinableQueue(self, maxsize=0, *, bytes=None):
        from ._multiproc import JoinableQueue

        return JoinableQueue(maxsize, bytes=bytes)

    def Pipe(self, duplex=True):
        from ._multiproc import Pipe

        return Pipe(duplex)

    def SimpleQueue(self):
        from ._multiproc import SimpleQueue

        return SimpleQueue()

    def Manager(self):
        """Returns a manager whose server is started: see ``multiproc.managers.SyncManager``."""
        from .managers import SyncManager

        manager = SyncManager(ctx=self.get_context())
        manager.start()
        return manager

    def Pool(self, processes=None, initializer=None, initargs=(), maxtasksperchild=None, **options):
        """Returns a pool of processes: see ``multiproc.pool.Pool``."""
        from .pool import Pool

        return Pool(processes, initializer, initargs, maxtasksperchild, self, **options)


SpawnProcess = process.SpawnProcess


class SpawnContext(Context):
    """The package's functions. Processes are executed."""

    _name = "spawn"
    Process = SpawnProcess


class ForkServerContext(Context):
    """The package's functions. Processes are copied from a server."""

    _name = "forkserver"
    Process = process.ForkServerProcess


_contexts = {"spawn": SpawnContext(), "forkserver": ForkServerContext()}
default = Context()
allow_connection_pickling = default.allow_connection_pickling
cpu_count = default.cpu_count
freeze_support = default.freeze_support
get_logger = default.get_logger
log_to_stderr = default.log_to_stderr
reducer = default.reducer
set_executable = default.set_executable


def get_context(method=None):
    """Returns the context of a start method: of this process's, which is fixed by this call, for ``None``."""
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
