"""ctypes objects in shared memory: ``Value`` and ``Array`` with a lock, ``RawValue`` and ``RawArray``
without.

They can be arguments of processes and tasks, and parts of any message. A field of a shared structure can also
be sent: the receiver gets the same memory.
"""

from __future__ import annotations

import ctypes
from multiprocessing import reduction as _reduction
from multiprocessing import sharedctypes as _sharedctypes

from . import _multiproc
from ._names import named
from .synchronize import RLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeVar

    _Type = str | type[ctypes._CData]
    _T = TypeVar("_T")

__all__ = ["RawValue", "RawArray", "Value", "Array", "copy", "synchronized"]

typecode_to_type = _sharedctypes.typecode_to_type

_CData = ctypes._SimpleCData.__base__
_synchronized_classes = {}


def _new(type_):
    """Returns an object of a type of ctypes, whose bytes are zeros in shared memory."""
    memory = _multiproc.Buffer(ctypes.sizeof(type_))
    return type_.from_buffer(memory)


def _type_of(typecode_or_type):
    type_ = typecode_to_type.get(typecode_or_type, typecode_or_type)
    if isinstance(type_, str):
        known = ", ".join(typecode_to_type)
        raise TypeError(f"bad typecode {type_!r}: use one of {known}, or a type of ctypes")
    return type_


def RawValue(typecode_or_type: _Type, *args: Any) -> Any:
    """Returns a ctypes object in shared memory."""
    obj = _new(_type_of(typecode_or_type))
    obj.__init__(*args)
    return obj


def RawArray(typecode_or_type: _Type, size_or_initializer: int | Sequence[Any]) -> Any:
    """Returns a ctypes array in shared memory: of zeros if a size is given, else of the given items."""
    type_ = _type_of(typecode_or_type)
    if isinstance(size_or_initializer, int):
        return _new(type_ * size_or_initializer)
    obj = _new(type_ * len(size_or_initializer))
    obj.__init__(*size_or_initializer)
    return obj


def Value(typecode_or_type: _Type, *args: Any, lock: Any = True, ctx: Any = None) -> Any:
    """Returns a ctypes object in shared memory, with a lock.

    ``lock`` is a lock to use, ``True`` for an ``RLock`` of its own, or ``False`` for none: the result is that
    of ``RawValue``.
    """
    return _with_lock(RawValue(typecode_or_type, *args), lock)


def Array(
    typecode_or_type: _Type, size_or_initializer: int | Sequence[Any], *, lock: Any = True, ctx: Any = None
) -> Any:
    """Returns a ctypes array in shared memory, with a lock, like ``Value``."""
    return _with_lock(RawArray(typecode_or_type, size_or_initializer), lock)


def _with_lock(obj, lock):
    if lock is False:
        return obj
    if lock is True or lock is None:
        lock = RLock()
    if not hasattr(lock, "acquire"):
        raise AttributeError(f"{lock!r} has no method 'acquire'")
    return synchronized(obj, lock)


def copy(obj: _T) -> _T:
    """Returns a copy of a ctypes object, in shared memory of its own."""
    new = _new(type(obj))
    ctypes.memmove(ctypes.addressof(new), ctypes.addressof(obj), ctypes.sizeof(obj))
    return new


def synchronized(obj: Any, lock: Any = None, ctx: Any = None) -> Any:
    """Returns a wrapper of a ctypes object that takes a lock for each access."""
    if isinstance(obj, _sharedctypes.SynchronizedBase):
        raise AssertionError("object already synchronized")
    lock = RLock() if lock is None else lock
    if isinstance(obj, ctypes._SimpleCData):
        return Synchronized(obj, lock)
    if isinstance(obj, ctypes.Array):
        return (SynchronizedString if obj._type_ is ctypes.c_char else SynchronizedArray)(obj, lock)
    cls = type(obj)
    if cls not in _synchronized_classes:
        names = [field[0] for base in reversed(cls.__mro__) for field in vars(base).get("_fields_", ())]
        fields = {name: _sharedctypes.make_property(name) for name in names}
        _synchronized_classes[cls] = type("Synchronized" + cls.__name__, (SynchronizedBase,), fields)
    return _synchronized_classes[cls](obj, lock)


class SynchronizedBase(_sharedctypes.SynchronizedBase):
    """A ctypes object in shared memory, and its lock."""

    def __init__(self, obj, lock=None, ctx=None):
        super().__init__(obj, RLock() if lock is None else lock)

    def _give_name(self, name):
        named(self._lock, name)

    def __reduce__(self):
        return synchronized, (self._obj, self._lock)


class Synchronized(SynchronizedBase, _sharedctypes.Synchronized):
    """A number in shared memory, and its lock."""


class SynchronizedArray(SynchronizedBase, _sharedctypes.SynchronizedArray):
    """An array in shared memory, and its lock."""


class SynchronizedString(SynchronizedArray, _sharedctypes.SynchronizedString):
    """An array of characters in shared memory, and its lock."""


def reduce_ctype(obj):
    """Reduces a ctypes object for a message: to a view of its memory if that is shared."""
    memory = _multiproc.Buffer.at(ctypes.addressof(obj), ctypes.sizeof(obj))
    if memory is not None:
        return _rebuild, (_described(type(obj)), memoryview(memory))
    # An object of `multiprocessing`, or an object in private memory, which is copied.
    registered = _reduction.ForkingPickler._extra_reducers.get(type(obj))
    if registered and hasattr(obj, "_wrapper"):
        return registered(obj)
    description = _described(type(obj))
    if not isinstance(description, tuple):
        return obj.__reduce_ex__(5)
    function, (_, state) = obj.__reduce_ex__(5)
    return _rebuild_private, (function, description, state)


def _described(type_):
    """Returns a type, or for an array, which has no name in a module, its description."""
    if issubclass(type_, ctypes.Array) and type_ is type_._type_ * type_._length_:
        return _described(type_._type_), type_._length_
    return type_


def _rebuild(description, memory):
    return _type(description).from_buffer(memory)


def _rebuild_private(function, description, state):
    return function(_type(description), state)


def _type(description):
    if isinstance(description, tuple):
        element, length = description
        return _type(element) * length
    return description
