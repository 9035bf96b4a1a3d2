"""Shared memory by name: ``SharedMemory`` and ``ShareableList``, compatible with ``multiprocessing``'s.

Processes of both packages can open each other's names. A name lives until ``unlink``: no resource tracker
removes it when a process that only opened it ends, as ``multiprocessing``'s does (cpython#82300). Pages are
reserved when memory is created or opened, so that a full ``/dev/shm`` is an exception, not a SIGBUS later.
"""

from __future__ import annotations

import errno
import struct
from types import GenericAlias

from ._multiproc import NamedMemory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Generic

    from typing_extensions import TypeVar

    _T = TypeVar("_T", default=Any)
else:
    # Avoids `typing`, which each worker would import.
    Generic, _T = {None: object}, None

__all__ = ["SharedMemory", "ShareableList"]


def _create(name, size):
    try:
        return NamedMemory.create(name, size)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        reason = "shared memory with a name is a file in /dev/shm, which this process can't write"
        raise type(error)(error.errno, f"{error.strerror}: {reason}", f"/dev/shm/{name or ''}") from None


class SharedMemory:
    """Bytes that processes share by a name.

    Creates them, or opens an existing name, for which ``size`` has no effect. ``track`` never has an effect:
    only ``unlink`` removes the name. The memory itself lives as long as any process has it open, which
    includes views of it.
    """

    _memory = None
    _buf = None

    def __init__(
        self, name: str | None = None, create: bool = False, size: int = 0, *, track: bool = True
    ) -> None:
        if not size >= 0:
            raise ValueError("'size' must be a positive integer")
        if create:
            if size == 0:
                raise ValueError("'size' must be a positive number different from zero")
            self._memory = _create(name, size)
        elif name is None:
            raise ValueError("'name' can only be None if create=True")
        else:
            self._memory = NamedMemory.open(name)
        self._name = "/" + self._memory.name
        self._size = len(self._memory)
        self._buf = memoryview(self._memory)

    def __reduce__(self):
        return type(self), (self.name, False, self.size)

    def __repr__(self):
        return f"{type(self).__name__}({self.name!r}, size={self.size})"

    @property
    def buf(self) -> memoryview:
        """A memoryview of the bytes, or ``None`` after ``close``."""
        return self._buf

    @property
    def name(self) -> str:
        """Name of the memory."""
        return self._name.removeprefix("/")

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._size

    def close(self) -> None:
        """Ends the use of the memory by this object.

        Raises ``BufferError`` if there are views of ``buf``, for example arrays.
        """
        if self._memory is None:
            return
        self._buf.release()
        if self._memory.exports:
            self._buf = memoryview(self._memory)
            raise BufferError("the memory can't be closed: there are views of it")
        self._buf = self._memory = None

    def unlink(self) -> None:
        """Removes the name. Processes that have the memory open keep it.

        Raises ``FileNotFoundError`` if the name is removed already.
        """
        NamedMemory.unlink(self.name)


# Code of an item's type, which determines how it is read, and its format in the struct module.
_PLAIN, _STR, _BYTES, _NONE = range(4)
_FORMATS = {int: "q", float: "d", bool: "xxxxxxx?", type(None): "xxxxxx?x"}
_WORD = 8


def _encoded(value):
    """Returns the code of a value, and its bytes if its length varies."""
    if isinstance(value, str):
        return _STR, value.encode()
    if isinstance(value, bytes):
        return _BYTES, value
    if type(value) not in _FORMATS:
        raise TypeError(f"a ShareableList has int, float, bool, str, bytes and None, not {value!r}")
    return (_NONE if value is None else _PLAIN), None


class ShareableList(Generic[_T]):
    """List of numbers, strings, bytes and ``None`` in shared memory, of fixed length.

    An item can be replaced by an item of another type. The size of the first value limits later strings and
    bytes: its length and at least one byte more, rounded up to a multiple of 8. Zero bytes at the end are
    lost. There is no lock: a reader may see half of a change.

    The memory has the layout of ``multiprocessing``'s class: the number of items, their offsets, the items,
    formats of 8 bytes each, and codes of 1 byte each.
    """

    def __init__(self, sequence: Iterable[_T] | None = None, *, name: str | None = None) -> None:
        if sequence is None and name is not None:
            self.shm = SharedMemory(name)
            (self._len,) = struct.unpack_from("q", self.shm.buf, 0)
            self._offsets = struct.unpack_from(f"{self._len + 1}q", self.shm.buf, _WORD)
            return
        values = list(sequence or ())
        encoded = [_encoded(value) for value in values]
        rooms = [_WORD if data is None else _WORD * (len(data) // _WORD + 1) for _, data in encoded]
        formats = [_FORMATS.get(type(v)) or f"{room}s" for v, room in zip(values, rooms)]
        for text in formats:
            if len(text) > _WORD:
                raise ValueError("an item of a ShareableList is too long")
        offsets = [0]
        for room in rooms:
            offsets.append(offsets[-1] + room)
        self._len, self._offsets = len(values), tuple(offsets)
        self.shm = SharedMemory(name, create=True, size=self._codes + self._len or _WORD)
        struct.pack_into(f"{self._len + 2}q", self.shm.buf, 0, self._len, *offsets)
        for i, (value, text) in enumerate(zip(values, formats)):
            self._store(i, value, text, encoded[i])

    @property
    def _data(self):
        return (self._len + 2) * _WORD

    @property
    def _format_table(self):
        return self._data + self._offsets[-1]

    @property
    def _codes(self):
        return self._format_table + self._len * _WORD

    def _index(self, position, text):
        index = position + self._len if position < 0 else position
        if not 0 <= index < self._len:
            raise IndexError(text)
        return index

    def _store(self, i, value, text, encoded):
        code, data = encoded
        struct.pack_into("8s", self.shm.buf, self._format_table + i * _WORD, text.encode())
        struct.pack_into("b", self.shm.buf, self._codes + i, code)
        struct.pack_into(text, self.shm.buf, self._data + self._offsets[i], value if data is None else data)

    def _get_packing_format(self, position):
        i = self._index(position, "Requested position out of range.")
        (text,) = struct.unpack_from("8s", self.shm.buf, self._format_table + i * _WORD)
        return text.rstrip(b"\0").decode()

    def __getitem__(self, position: int) -> _T:
        i = self._index(position, "index out of range")
        text = self._get_packing_format(i)
        (value,) = struct.unpack_from(text, self.shm.buf, self._data + self._offsets[i])
        (code,) = struct.unpack_from("b", self.shm.buf, self._codes + i)
        if code == _NONE:
            return None
        if code == _PLAIN:
            return value
        value = value.rstrip(b"\0")
        return value.decode() if code == _STR else value

    def __setitem__(self, position: int, value: _T) -> None:
        i = self._index(position, "assignment index out of range")
        code, data = _encoded(value)
        if data is None:
            text = _FORMATS[type(value)]
        else:
            room = self._offsets[i + 1] - self._offsets[i]
            if len(data) > room:
                raise ValueError("bytes/str item exceeds available storage")
            text = f"{room}s"
        self._store(i, value, text, (code, data))

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[_T]:
        return (self[i] for i in range(self._len))

    def __reduce__(self):
        return _shareable_list, (type(self), self.shm.name)

    def __repr__(self):
        return f"{type(self).__name__}({list(self)}, name={self.shm.name!r})"

    @property
    def format(self) -> str:
        """Format of all items, as the struct module names it."""
        return "".join(self._get_packing_format(i) for i in range(self._len))

    def count(self, value: _T) -> int:
        """Returns the number of items that are equal to ``value``."""
        return sum(value == item for item in self)

    def index(self, value: _T) -> int:
        """Returns the position of the first item that is equal to ``value``, or raises ``ValueError``."""
        for position, item in enumerate(self):
            if value == item:
                return position
        raise ValueError(f"{value!r} not in this container")

    __class_getitem__ = classmethod(GenericAlias)


def _shareable_list(cls, name):
    return cls(name=name)
