"""Tensors in messages that are not plain arrays: parameters, storages, and memory that torch has shared."""

import torch

from . import _multiproc


def reduce_tensor(tensor, grad):
    """Reduces a tensor that the extension doesn't send as an array."""
    if tensor.is_cuda:
        from torch.multiprocessing import reductions

        return reductions.reduce_tensor(tensor)
    if tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_meta or tensor.is_nested):
        if not (tensor.is_conj() or tensor.is_neg()):
            place = tensor.storage_offset(), tuple(tensor.size()), tensor.stride()
            return _tensor, (tensor.untyped_storage(), tensor.dtype, *place, grad)
    return tensor.__reduce_ex__(5)


def _tensor(storage, dtype, offset, size, stride, grad):
    tensor = torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)
    return tensor.requires_grad_() if grad else tensor


def reduce_parameter(parameter):
    """Reduces a parameter, with the attributes that were set on it."""
    state = torch._utils._get_obj_state(parameter)
    return _parameter, (type(parameter), parameter.data, parameter.requires_grad, state)


def _parameter(cls, data, grad, state):
    parameter = cls(data, grad)
    return torch._utils._set_obj_state(parameter, state) if state else parameter


def reduce_storage(storage):
    """Reduces a storage. A storage that torch has shared stays shared, by its descriptor or name."""
    if storage.device.type == "cpu" and torch._C.StorageBase.is_shared(storage) and storage.nbytes():
        if torch.multiprocessing.get_sharing_strategy() == "file_system":
            metadata = storage._share_filename_cpu_()
            storage._shared_incref()
            return _storage_of_name, (type(storage), *metadata)
        fd, size = storage._share_fd_cpu_()
        return _storage_of_fd, (type(storage), _multiproc.Fd(fd), size)
    if storage.device.type != "cpu":
        from torch.multiprocessing import reductions

        return reductions.reduce_storage(storage)
    return _storage, (torch.empty(0, dtype=torch.uint8).set_(storage),)


def _storage(tensor):
    return tensor.untyped_storage()


def _storage_of_fd(cls, fd, size):
    import os

    try:
        # The storage has duplicated the descriptor.
        return cls._new_shared_fd_cpu(fd, size)
    finally:
        os.close(fd)


def _storage_of_name(cls, manager, handle, size):
    storage = cls._new_shared_filename_cpu(manager, handle, size)
    return storage._shared_decref()


def reduce_typed_storage(storage):
    """Reduces a storage that knows its element type."""
    return _typed_storage, (storage._untyped_storage, storage.dtype)


def _typed_storage(storage, dtype):
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
