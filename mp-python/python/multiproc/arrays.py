"""``empty``, ``zeros`` and ``share``: tensors and arrays in shared memory, which are sent without a copy."""

import sys

from . import _multiproc

__all__ = ["empty", "share", "zeros"]


def empty(*shape, dtype=None):
    """Returns a new tensor in shared memory, or an array of numpy if torch isn't imported or ``dtype`` is one
    of numpy's. Its contents are unspecified."""
    if len(shape) == 1 and hasattr(shape[0], "__iter__"):
        shape = shape[0]
    torch = sys.modules.get("torch")
    if torch is not None and (dtype is None or isinstance(dtype, torch.dtype)):
        return _multiproc.allocate(list(shape), str(dtype or torch.get_default_dtype()), True)
    import numpy

    return _multiproc.allocate(list(shape), numpy.dtype(dtype or "float64").name, False)


def zeros(*shape, dtype=None):
    """Returns a new tensor or array of zeros in shared memory, like ``empty``."""
    array = empty(*shape, dtype=dtype)
    array[...] = 0
    return array


def share(array):
    """Returns a tensor or array with the same elements, in shared memory. Processes that it is sent to read
    and write the same memory. Returns the argument if it is in shared memory already."""
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(array, torch.Tensor)
    if _multiproc.is_shared(array):
        return array
    if not is_tensor:
        import numpy

        array = numpy.asarray(array)
    shared = _multiproc.allocate(list(array.shape), str(array.dtype), is_tensor)
    if is_tensor:
        shared.copy_(array.detach())
        return shared.requires_grad_(array.requires_grad)
    shared[...] = array
    return shared
