"""Contexts: the package's functions with a start method."""

import multiprocessing.context as _context
from multiprocessing.context import AuthenticationError, BufferTooShort, ProcessError, TimeoutError

from . import process

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


class Context(_context.BaseContext):
    """The package's functions, with a start method."""

    AuthenticationError = AuthenticationError
    BufferTooShort = BufferTooShort
    ProcessError = ProcessError
    TimeoutError = TimeoutError

    def __init__(self, name, process_class):
        self._name = name
        self.Process = process_class

    def get_context(self, method=None):
        return get_context(method or self._name)

    def get_start_method(self, allow_none=False):
        return self._name or get_start_method(allow_none)

    def set_start_method(self, method, force=False):
        if self._name is not None:
            raise ValueError("cannot set start method of concrete context")
        set_start_method(method, force)

    def set_forkserver_preload(self, module_names):
        process.set_forkserver_preload(module_names)

    def Queue(self, maxsize=0, *, bytes=None, deliveries=5):
        from ._multiproc import Queue

        return Queue(maxsize, bytes=bytes, deliveries=deliveries)

    def JoinableQueue(self, maxsize=0, *, bytes=None):
        from ._multiproc import JoinableQueue

        return JoinableQueue(maxsize, bytes=bytes)

    def SimpleQueue(self):
        from ._multiproc import SimpleQueue

        return SimpleQueue()

    def Pool(self, processes=None, initializer=None, initargs=(), maxtasksperchild=None, **options):
        """Returns a pool of processes: see ``multiproc.pool.Pool``."""
        from .pool import Pool

        return Pool(processes, initializer, initargs, maxtasksperchild, self, **options)


_contexts = {
    None: Context(None, process.Process),
    "spawn": Context("spawn", process.SpawnProcess),
    "forkserver": Context("forkserver", process.ForkServerProcess),
}
default = _contexts[None]


def get_context(method=None):
    """Returns the context of a start method."""
    if method == "fork":
        raise ValueError(
            "multiproc has no start method 'fork', which copies a process with its threads, locks and shared "
            "memory: use 'forkserver', which is as fast"
        )
    try:
        return _contexts[method]
    except KeyError:
        raise ValueError(f"cannot find context for {method!r}") from None
