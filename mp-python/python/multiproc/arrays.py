"""Arrays and tensors in shared memory.

Arrays that these functions return are sent to other processes without a copy, and writes are visible in all
processes.
"""

from __future__ import annotations

import math
import operator
import sys

from . import _multiproc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    _T = TypeVar("_T")

__all__ = ["empty", "full", "is_shared", "share", "zeros"]


def empty(*shape: Any, dtype: Any = None) -> Any:
    """Returns an array in shared memory, whose elements are unspecified.

    The shape is a tuple, or the numbers in it. A tuple, or a single number, may be followed by ``dtype``. The
    array is a tensor for a ``torch.dtype``, and an array of numpy for any other type that numpy knows. Without
    ``dtype``, it is a tensor if torch is imported.
    """
    if len(shape) == 2 and dtype is None and not hasattr(shape[1], "__index__"):
        *shape, dtype = shape
    if len(shape) == 1 and hasattr(shape[0], "__iter__"):
        shape = shape[0]
    shape = [operator.index(n) for n in shape]
    if any(n < 0 for n in shape):
        raise ValueError("negative dimensions are not allowed")
    torch = sys.modules.get("torch")
    if torch is not None and (dtype is None or isinstance(dtype, torch.dtype)):
        dtype = dtype or torch.get_default_dtype()
        return _bytes(_size(shape, dtype)).view(dtype).view(shape)
    import numpy

    dtype = numpy.dtype(dtype or "float64")
    if dtype.hasobject:
        raise TypeError(f"objects of Python can't be in shared memory: {dtype}")
    return numpy.ndarray(shape, dtype, _multiproc._alloc(_size(shape, dtype)))


def _size(shape, dtype):
    """Returns the number of bytes of an array."""
    size = math.prod(shape) * dtype.itemsize
    if size >= 1 << 63:
        raise MemoryError(f"an array of shape {tuple(shape)} and type {dtype} is too large")
    return size


def _bytes(size):
    return _multiproc.allocate([size], "torch.uint8", True)


def zeros(*shape: Any, dtype: Any = None) -> Any:
    """Returns an array of zeros in shared memory: see ``empty``."""
    array = empty(*shape, dtype=dtype)
    if hasattr(array, "zero_"):
        return array.zero_()
    array.reshape(-1).view("u1").fill(0)
    return array


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    """Returns an array in shared memory whose elements are ``fill_value``: see ``empty``."""
    array = empty(shape, dtype=dtype)
    array[...] = fill_value
    return array


def share(obj: _T) -> _T:
    """Moves tensors and arrays to shared memory that all processes write, and returns the object.

    A tensor or module is changed in place, as ``share_memory_`` and ``share_memory`` do. An array of numpy is
    copied. Lists, tuples and dicts are replaced with new ones that contain the results. Tensors that share
    memory with each other still do so afterwards. Objects that are already in shared memory are unchanged.
    """
    return _share(obj, {})


def _share(obj, moved):
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None:
        if isinstance(obj, torch.nn.Module):
            _share_module(torch, obj, moved)
            return obj
        if isinstance(obj, torch.Tensor):
            _share_tensor(torch, obj, moved)
            if obj.grad is not None:
                _share_tensor(torch, obj.grad, moved)
            return obj
    if numpy is not None and isinstance(obj, numpy.ndarray):
        return _share_array(obj, moved)
    if isinstance(obj, dict):
        items = {key: _share(value, moved) for key, value in obj.items()}
        return items if type(obj) is dict else type(obj)(items)
    if isinstance(obj, (list, tuple)):
        items = [_share(value, moved) for value in obj]
        return type(obj)(*items) if hasattr(obj, "_fields") else type(obj)(items)
    raise TypeError(
        f"share() can't move {_type_name(obj)} to shared memory, only tensors and modules of torch, arrays of "
        "numpy, and lists, tuples and dicts of these"
    )


def is_shared(obj: Any) -> bool:
    """Returns ``True`` if the elements of a tensor or array are in shared memory.

    ``torch.Tensor.is_shared`` is ``True`` only for memory that torch itself has mapped. This function also
    detects memory of this package.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(obj, torch.Tensor):
        if obj.is_shared():
            return True
        storage = obj.untyped_storage()
        return storage.device.type == "cpu" and _multiproc._contains(storage.data_ptr(), storage.nbytes())
    if numpy is not None and isinstance(obj, numpy.ndarray):
        # An array is in one region of memory, so its first element is enough.
        return _multiproc._contains(obj.__array_interface__["data"][0], 0)
    raise TypeError(f"is_shared() takes a tensor of torch or an array of numpy, not {_type_name(obj)}")


def _type_name(obj):
    module, name = type(obj).__module__, type(obj).__qualname__
    return name if module == "builtins" else f"{module}.{name}"


def _share_module(torch, module, moved):
    for tensor in [*module.parameters(), *module.buffers()]:
        _share_tensor(torch, tensor, moved)
        if tensor.grad is not None:
            _share_tensor(torch, tensor.grad, moved)


def _share_tensor(torch, tensor, moved):
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise TypeError(f"only dense tensors on the CPU can be shared: {tensor.layout}, {tensor.device}")
    storage = tensor.untyped_storage()
    address, size = storage.data_ptr(), storage.nbytes()
    if size == 0 or _multiproc._contains(address, size) or storage.is_shared():
        return
    if address not in moved:
        shared = _bytes(size)
        shared.copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
        # The old storage is kept until the end, so that its address is not used again.
        moved[address] = shared, storage
    place = tensor.storage_offset(), tensor.size(), tensor.stride()
    new = torch.empty(0, dtype=tensor.dtype).set_(moved[address][0].untyped_storage(), *place)
    with torch.no_grad():
        tensor.data = new


def _share_array(array, moved):
    if array.dtype.hasobject:
        raise TypeError(f"objects of Python can't be in shared memory: {array.dtype}")
    address, size = array.__array_interface__["data"][0], array.nbytes
    if size == 0 or (array.flags.c_contiguous and _multiproc._contains(address, size)):
        return array
    key = (address, array.shape, array.strides, array.dtype.str)
    if key not in moved:
        new = empty(array.shape, array.dtype)
        new[...] = array
        moved[key] = new, array
    return moved[key][0]
