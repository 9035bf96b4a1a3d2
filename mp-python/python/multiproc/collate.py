"""``collate``: batches whose arrays are made in shared memory.

The result has the types that ``torch.utils.data.default_collate`` gives. Tensors and arrays are not stacked
in private memory and copied afterwards: the memory of the batch is allocated in shared memory by the shape
and type of the first sample, and each sample is copied into its row. Sending such a batch copies nothing.

=============================  =============================================================
samples                        batch
=============================  =============================================================
tensors of torch               a tensor with one more dimension
arrays and scalars of numpy    a tensor if torch is imported, else an array
float, int, bool               a tensor or array of float64, int64 or bool
str, bytes                     a tuple in a field of tuples and sequences, else a list
mappings, dataclasses          the same type, of batches
named tuples                   the same type, of batches
tuples                         a list of batches
other sequences                the same type if possible, else a list, of batches
=============================  =============================================================

"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence

from . import _multiproc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["collate", "convert"]


def collate(samples: Iterable[Any]) -> Any:
    """Returns the batch of a list of samples, with its arrays in shared memory."""
    return _collate(
        samples if isinstance(samples, (list, tuple)) else list(samples), sys.modules.get("torch")
    )


def convert(sample: Any) -> Any:
    """Returns a sample that is not batched: arrays of numpy as tensors, if torch is imported."""
    if "torch" in sys.modules:
        from torch.utils.data import default_convert

        return default_convert(sample)
    return sample


def _collate(samples, torch):
    first = samples[0]
    of = type(first)
    if of is float or of is int or of is bool:
        return _numbers(samples, of, torch)
    if isinstance(first, (str, bytes)):
        return samples
    if torch is not None and isinstance(first, torch.Tensor):
        if first.is_nested:
            raise RuntimeError(
                "Batches of nested tensors are not currently supported by the default collate_fn: please "
                "provide a collate_fn"
            )
        stacked = None
        if all(type(sample) is torch.Tensor for sample in samples):
            stacked = _multiproc.stack(list(samples), True)
        return torch.stack(samples) if stacked is None else stacked
    if of.__module__ == "numpy" and hasattr(first, "dtype"):
        return _arrays(samples, first, torch)
    if isinstance(first, (float, int)):
        return _numbers(samples, float if isinstance(first, float) else int, torch)
    if isinstance(first, Mapping):
        batch = {key: _collate([sample[key] for sample in samples], torch) for key in first}
        return _same_mapping(first, batch)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return of(*(_collate(column, torch) for column in zip(*samples, strict=True)))
    if hasattr(type(first), "__dataclass_fields__"):
        import dataclasses

        names = [field.name for field in dataclasses.fields(first) if field.init]
        return of(**{name: _collate([getattr(sample, name) for sample in samples], torch) for name in names})
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in samples):
            raise RuntimeError("each element in list of batch should be of equal size")
        batch = [_collate(column, torch) for column in zip(*samples, strict=True)]
        return batch if isinstance(first, tuple) else _same_sequence(first, batch)
    raise TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts, dataclasses or lists; "
        f"found {of}"
    )


def _same_mapping(first, batch):
    try:
        if isinstance(first, MutableMapping):
            # A subclass may have more attributes than its items.
            clone = copy.copy(first)
            clone.update(batch)
            return clone
        return type(first)(batch)
    except TypeError:
        return batch


def _same_sequence(first, batch):
    if type(first) is list:
        return batch
    try:
        if isinstance(first, MutableSequence):
            clone = copy.copy(first)
            clone[:] = batch
            return clone
        return type(first)(batch)
    except TypeError:
        return batch


def _numbers(samples, of, torch):
    if torch is not None:
        return torch.tensor(samples, dtype=torch.float64) if of is float else torch.tensor(samples)
    try:
        import numpy
    except ImportError:
        return samples
    return numpy.array(samples, dtype=numpy.float64) if of is float else numpy.array(samples)


def _arrays(samples, first, torch):
    if first.dtype.kind in "OSUMmV":
        if torch is None and first.dtype.kind != "O":
            import numpy

            return numpy.stack(samples)
        raise TypeError(
            "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
            f"found {first.dtype}"
        )
    stacked = (
        _multiproc.stack(list(samples), torch is not None) if type(first).__name__ == "ndarray" else None
    )
    if stacked is not None:
        return stacked
    import numpy

    if torch is not None and type(first).__name__ == "ndarray":
        return torch.stack([torch.as_tensor(sample) for sample in samples])
    array = numpy.stack(samples)
    return array if torch is None else torch.as_tensor(array)
