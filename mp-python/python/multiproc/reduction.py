"""Reducers that users have registered, and descriptors in messages."""

from __future__ import annotations

import functools
import io
import operator
import pickle
import sys
import time
import types
from multiprocessing import reduction as _reduction
from multiprocessing.reduction import dump, recvfds, sendfds

from . import _multiproc

__all__ = [
    "DupFd",
    "ForkingPickler",
    "dump",
    "init_reductions",
    "recvfds",
    "register",
    "sendfds",
]

ForkingPickler = _reduction.ForkingPickler
register = ForkingPickler.register


class DupFd:
    """Descriptor in the pickled arguments of a process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self):
        return _received, (_multiproc.Fd(self.fd),)


class _Received:
    def __init__(self, fd):
        self.fd = fd

    def detach(self):
        return self.fd


def _received(fd):
    return _Received(fd)


@functools.cache
def pickler(has_main):
    """Returns a class of picklers that write functions by value, or ``None`` if cloudpickle is not installed.

    Functions and classes of the main module are pickled by reference if ``has_main``.
    """
    try:
        import cloudpickle
    except ImportError:
        return None

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj):
            if isinstance(obj, io.IOBase) and type(obj).__module__ == "_io" and hasattr(obj, "buffer"):
                # cloudpickle would send a copy of the file's contents.
                raise TypeError(f"cannot pickle {type(obj).__name__!r} object")
            if has_main and isinstance(obj, (type, types.FunctionType)) and _is_in_main(obj):
                return NotImplemented
            return super().reducer_override(obj)

    return Pickler


def _is_in_main(obj):
    """Returns ``True`` if the main module has the function or class under its name."""
    if obj.__module__ not in ("__main__", "__mp_main__"):
        return False
    try:
        return operator.attrgetter(obj.__qualname__)(sys.modules["__main__"]) is obj
    except AttributeError:
        return False


def init_reductions() -> None:
    """Does nothing: the package's objects and tensors need no registration."""


def dumps(obj):
    """Returns the pickled bytes of a plain object, without arrays and handles."""
    return pickle.dumps(obj, protocol=5)


def explain(error, obj, make):
    """Adds a note to the error of an object that can't be pickled: the path of the part that is the cause."""
    if isinstance(error, MemoryError) or not isinstance(error, Exception):
        return
    path, end = "value", time.monotonic() + 0.2
    for _ in range(50):
        for step, part in _parts(obj):
            if time.monotonic() > end:
                return
            if not _multiproc._can_pickle(part, make):
                path, obj = path + step, part
                break
        else:
            break
    error.add_note(f"{path}: {type(obj).__qualname__}")


def _parts(obj):
    if isinstance(obj, dict):
        for key, part in obj.items():
            yield f"[{key!r:.40}]", part
    elif isinstance(obj, (list, tuple)):
        for i, part in enumerate(obj):
            yield f"[{i}]", part
    elif type(obj).__reduce_ex__ is object.__reduce_ex__ and type(obj).__reduce__ is object.__reduce__:
        for name, part in getattr(obj, "__dict__", {}).items():
            yield f".{name}", part
