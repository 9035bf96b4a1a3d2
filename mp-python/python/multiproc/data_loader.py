"""``DataLoader``: batches of Python datasets, made by worker processes in shared memory.

The arguments, attributes and results are those of ``torch.utils.data.DataLoader``; datasets, samplers and
``collate_fn`` of torch work unchanged, and torch isn't needed.

**How it works.** The workers are processes of a pool of the library (``mp::Pool`` in Rust), which knows
which task was lost with a dead worker, runs it again in another one, and keeps time limits. So this module
defines no protocol between processes. It chooses the next task, and makes batches and errors from the
results. A dataset with indices has one pool, and any free worker makes the next batch. A dataset that is
iterated has one pool of one worker for each ``worker_info.id``, since an iterator can't move to another
process: if that worker dies, its replacement iterates again up to the first batch that wasn't delivered. This
module doesn't use the loader in Rust (``mp-data``), whose datasets are Rust types, but its plans determine
the order here, too.

**Order and random numbers.** Batches, their order and their contents don't depend on the number of workers,
on times or on deaths. ``random``, ``numpy.random`` and torch's generator are seeded before each batch with
a function of the epoch's seed and the number of the batch. The loader with ``num_workers=0`` does the same,
and then restores the caller's states. ``shuffle=True`` without a ``generator`` is the library's own
permutation, a function of seed and epoch. With a ``generator`` the order is torch's. Without ``seed``, an
epoch's seed is drawn as torch draws it: from ``generator``, or torch's default generator, so that
``torch.manual_seed`` makes runs repeat. A dataset that is iterated depends on the number of workers if it
divides its data by ``get_worker_info()``, as in torch. Datapipes of torch are divided by the loader.

**Copies.** ``collate`` (the default) writes samples into shared memory. A dataset with
``__getbatch__(indices)`` returns complete batches instead of samples: tensors that it makes by
``multiproc.empty`` and fills are sent without any copy. Results of other collate functions are copied once.

**Workers**. The processes persist from epoch to epoch, and each epoch begins with new copies of the dataset
and a call of ``worker_init_fn``, as in torch. Two iterators have separate copies. Arrays of the dataset
are in shared memory once for all workers and epochs. They are copied again if the pickled dataset or
functions differ at the beginning of an epoch. The contents of arrays and tensors aren't compared: only their
addresses, shapes, and torch's counters of changes. With ``persistent_workers=True`` the workers keep their
copies of the dataset. ``False`` starts new processes for each epoch.
"""

from __future__ import annotations

import base64
import copy
import functools
import itertools
import math
import os
import random
import sys
import types
import warnings
import weakref
from collections.abc import Mapping
from multiprocessing import process as _process

from . import _multiproc
from ._loader_epoch import _Batches, _Progress
from ._loader_errors import BatchLost, BatchTimeout, RemoteTraceback
from ._loader_pipes import is_iterable_pipe, ranks, share_seed
from ._loader_team import _Team
from ._loader_worker import get_worker_info, mix
from .collate import collate, convert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Generic, Literal

    from typing_extensions import TypeVar

    _T = TypeVar("_T", default=Any)
else:
    # Avoids `typing`, which each worker would import.
    Generic, _T = {None: object}, None

__all__ = [
    "BatchLost",
    "BatchTimeout",
    "DataLoader",
    "RemoteTraceback",
    "collate",
    "get_worker_info",
]


# Attributes that can't be set after the constructor, as in torch.
_FIXED = {"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"}


class DataLoader(Generic[_T]):
    """Loads a dataset in batches, by worker processes. Takes the arguments of torch's ``DataLoader``, and:

    - ``seed``: number from which the order and all random numbers follow, with the epoch. Without it each
      epoch has a new one, drawn as torch draws its base seed.
    - ``batch_timeout``: seconds for one batch in its worker. The worker is killed then, and the batch is made
      again by another one. (``timeout`` is torch's: how long the caller waits.)
    - ``retries``: how often a batch is made again after its worker died or took too long.
    - ``on_error``: ``"raise"``, or ``"skip"`` to leave out samples that raise an exception, or kill each
      worker that tries them. ``skipped`` lists them.
    - ``snapshot_every_n_steps``: an argument of torchdata's ``StatefulDataLoader``, without effect here: a
      state has the position after the last delivered batch.
    """

    _initialized = False
    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], _T] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        batch_timeout: float = 0,
        retries: int = 2,
        on_error: Literal["raise", "skip"] = "raise",
        snapshot_every_n_steps: int = 1,
    ) -> None:
        if num_workers < 0:
            raise ValueError(
                "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
            )
        if num_workers > (count := len(os.sched_getaffinity(0))):
            warnings.warn(
                f"num_workers={num_workers}, but this process may use {count} processors: excessive worker "
                "creation might get DataLoader running slow or even freeze",
                stacklevel=2,
            )
        if timeout < 0:
            raise ValueError("timeout option should be non-negative")
        if batch_timeout < 0:
            raise ValueError("batch_timeout option should be non-negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ValueError(
                "prefetch_factor option could only be specified in multiprocessing: let num_workers > 0 to "
                "enable multiprocessing, otherwise set prefetch_factor to None."
            )
        if prefetch_factor is not None and prefetch_factor < 0:
            raise ValueError("prefetch_factor option should be non-negative")
        if persistent_workers and num_workers == 0:
            raise ValueError("persistent_workers option needs num_workers > 0")
        if retries < 0:
            raise ValueError("retries option should be non-negative")
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error should be 'raise' or 'skip', not {on_error!r}")
        self._iterable = _is_iterable(dataset)
        if self._iterable:
            is_pipe = is_iterable_pipe(dataset)
            if is_pipe and shuffle is not None:
                from torch.utils.data.graph_settings import apply_shuffle_settings

                dataset = apply_shuffle_settings(dataset, shuffle=shuffle)
            unset = [("sampler", sampler), ("batch_sampler", batch_sampler)]
            if not is_pipe:
                unset.insert(0, ("shuffle", shuffle or None))
            for name, value in unset:
                if value is not None:
                    raise ValueError(
                        f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
                        f"{name}={value}"
                    )
        self.dataset = dataset
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and "
                    "drop_last"
                )
            batch_size = None
        elif batch_size is None:
            if drop_last:
                raise ValueError(
                    "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
                )
        elif isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size <= 0:
            raise ValueError(
                f"batch_size should be a positive integer value, but got batch_size={batch_size}"
            )
        if shuffle and generator is not None:
            from torch.utils.data import RandomSampler

            sampler = RandomSampler(dataset, generator=generator)
        self.batch_size, self.drop_last = batch_size, drop_last
        self._shuffle = bool(shuffle)
        # `None` for the library's own order.
        self._sampler, self._batch_sampler = sampler, batch_sampler
        self.num_workers = num_workers
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.pin_memory, self.pin_memory_device = pin_memory, pin_memory_device
        self.timeout, self.batch_timeout = timeout, batch_timeout
        self.worker_init_fn = worker_init_fn
        self.generator = generator
        self.persistent_workers = bool(persistent_workers)
        # `None` if not given: workers persist while the dataset stays the same.
        self._persistent = persistent_workers if num_workers else False
        self.in_order = in_order
        self.seed, self.retries, self.on_error = seed, retries, on_error
        self._auto_collation = batch_size is not None or batch_sampler is not None
        if collate_fn is None:
            collate_fn = collate if self._auto_collation else convert
        self.collate_fn = collate_fn
        #: The dataset makes a whole batch at a time, so that its samples can't be told apart.
        self._opaque = hasattr(dataset, "__getbatch__") or bool(getattr(dataset, "__getitems__", None))
        self.multiprocessing_context = multiprocessing_context
        #: Skipped samples of this epoch: (index, reason).
        self.skipped: list[Any] = []
        self._epoch = 0
        self._progress = None
        self._pending_state = None
        self._iterator = None
        self._runs = set()
        self._reported_length = None
        self._initialized = True

    def __setattr__(self, name, value):
        if self._initialized and name in _FIXED:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    @property
    def sampler(self) -> Any:
        """The sampler that was given. Without one, torch's sampler for ``shuffle`` if torch is imported, or
        ``None``. The loader doesn't use torch's sampler: the library has its own order."""
        if self._sampler is not None or "torch" not in sys.modules:
            return self._sampler
        return self._default_sampler

    @property
    def batch_sampler(self) -> Any:
        """The batch sampler that was given, or torch's for ``sampler``. ``None`` with ``batch_size=None``."""
        if self._batch_sampler is not None or self.batch_size is None or "torch" not in sys.modules:
            return self._batch_sampler
        return self._default_batch_sampler

    @functools.cached_property
    def _default_sampler(self):
        from torch.utils.data import RandomSampler, SequentialSampler
        from torch.utils.data.dataloader import _InfiniteConstantSampler

        if self._iterable:
            return _InfiniteConstantSampler()
        if self._shuffle:
            return RandomSampler(self.dataset, generator=self.generator)
        return SequentialSampler(self.dataset)

    @functools.cached_property
    def _default_batch_sampler(self):
        from torch.utils.data import BatchSampler

        return BatchSampler(self.sampler, self.batch_size, self.drop_last)

    @property
    def multiprocessing_context(self) -> Any:
        """Context that starts the workers, or ``None`` for the default. A name becomes its context."""
        return self._context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        from .context import get_context

        self._method = self._start_method(context)
        self._context = get_context(context) if isinstance(context, str) else context
        # An iterator that has not ended keeps the workers that were started by the previous method.
        self._team = None

    def _start_method(self, context):
        if context is None:
            return "forkserver"
        if self.num_workers == 0:
            raise ValueError(
                "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but "
                f"got num_workers={self.num_workers}"
            )
        if not isinstance(context, str):
            if not hasattr(context, "get_start_method"):
                raise TypeError(
                    "multiprocessing_context option should be a valid context object or a string specifying "
                    f"the start method, but got multiprocessing_context={context}"
                )
            context = context.get_start_method()
        from .context import get_all_start_methods, get_context

        # For `fork`, the context raises an error with the reason.
        if context not in (methods := get_all_start_methods()) and context != "fork":
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {methods}, but got "
                f"multiprocessing_context={context!r}"
            )
        return get_context(context)._name

    @property
    def _index_sampler(self):
        return self._sampler if self._batch_sampler is None else self._batch_sampler

    def __len__(self) -> int:
        if self._iterable:
            length = self._reported_length = len(self.dataset)
            if self.batch_size is None:
                return length
        elif self._batch_sampler is not None:
            return len(self._batch_sampler)
        else:
            length = len(self.dataset if self._sampler is None else self._sampler)
            if self.batch_size is None:
                return length
        return length // self.batch_size if self.drop_last else math.ceil(length / self.batch_size)

    def _check_length(self, yielded):
        """Warns if an iterable dataset has more batches than its length implies, if the program has called
        ``len``."""
        if self._reported_length is None or not self._iterable:
            return
        length = self._reported_length
        batches = len(self)
        if yielded > batches:
            self._reported_length = None
            warnings.warn(
                f"Length of IterableDataset {self.dataset} was reported to be {length} (when accessing "
                f"len(dataloader)), but more than {yielded - 1} batches have been fetched. With several "
                "workers, the dataset should divide its data by get_worker_info().",
                stacklevel=3,
            )

    def pids(self) -> list[int]:
        """Returns the process ids of the workers. Persistent workers live between epochs."""
        iterator = self._iterator and self._iterator()
        team = self._team or (iterator and iterator._team)
        return team.pids() if team else []

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, for the order with ``seed``, and for a sampler that has this
        method."""
        self._epoch = epoch
        if hasattr(self._index_sampler, "set_epoch"):
            self._index_sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[_T]:
        state, self._pending_state = self._pending_state, None
        self.skipped = []
        progress = self._start() if state is None else self._resumed(state)
        iterator = _Batches(self, progress)
        self._progress = progress
        self._iterator = weakref.ref(iterator)
        return iterator

    def _start(self):
        epoch, self._epoch = self._epoch, self._epoch + 1
        start = {}
        sampler = self._index_sampler
        if sampler is not None:
            if hasattr(sampler, "state_dict"):
                start["sampler"] = copy.deepcopy(sampler.state_dict())
            elif type(sampler).__name__ != "SequentialSampler" and not hasattr(sampler, "set_epoch"):
                start["generator"] = _generator_state(self.generator)
            if isinstance(getattr(sampler, "epoch", None), int):
                start["sampler_epoch"] = sampler.epoch
        progress = _Progress(epoch, self._draw_seed(), start)
        if self._iterable:
            progress.lanes = [[0, False, None] for _ in range(max(self.num_workers, 1))]
        return progress

    def _draw_seed(self):
        if self.seed is not None:
            return self.seed
        torch = sys.modules.get("torch")
        if torch is not None:
            seed = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            return share_seed(seed).item() if is_iterable_pipe(self.dataset) else seed.item()
        return random.getrandbits(63)

    def _stream_seed(self, progress):
        """Returns the seed of an epoch of a dataset that is iterated. If it was drawn for a datapipe, equal
        seeds of torch give equal epochs, as in torch."""
        if self.seed is None and is_iterable_pipe(self.dataset):
            return mix(progress.seed)
        return mix(progress.seed, progress.epoch)

    def _order(self, progress):
        """Yields the number and the indices of each batch that was not delivered."""
        if self._index_sampler is None:
            plan = _multiproc.Plan(
                len(self.dataset),
                self.batch_size or 1,
                shuffle=self._shuffle,
                seed=progress.seed & ((1 << 64) - 1),
                epoch=progress.epoch,
                drop_last=self.drop_last,
            )
            for number in itertools.count(progress.delivered):
                indices = plan.batch(number)
                if indices is None:
                    return
                if number not in progress.beyond:
                    yield number, indices if self.batch_size else indices[0]
            return
        for number, indices in enumerate(self._sampled()):
            if number >= progress.delivered and number not in progress.beyond:
                yield number, indices

    def _sampled(self):
        if self._batch_sampler is not None or self.batch_size is None:
            yield from self._index_sampler
            return
        indices = iter(self._sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def _inline_setup(self):
        return {
            "dataset": self.dataset,
            "collate_fn": self.collate_fn,
            "auto_collation": self._auto_collation,
            "on_error": self.on_error,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "batch_timeout": 0,
            "num_workers": 0,
            "ranks": ranks(),
        }

    def _hire(self):
        """Returns the worker processes of an epoch."""
        if getattr(_process.current_process(), "_inheriting", False):
            raise RuntimeError(
                "a DataLoader with workers was iterated while a worker imports the main module: put the code "
                'that is to run once below "if __name__ == \'__main__\':"'
            )
        if self._persistent is False:
            return _Team(self)
        if self._team is None or not self._team.serves(self):
            # An iterator that has not ended keeps the old workers until then.
            self._team = _Team(self)
        return self._team

    def _pins(self):
        if not self.pin_memory:
            return False
        torch = sys.modules.get("torch")
        if torch is None or not torch.accelerator.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory "
                "won't be used.",
                stacklevel=4,
            )
            return False
        return True

    def _skip(self, samples):
        if samples:
            self.skipped += samples

    # States.

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the epoch as a dict of plain values.

        Prefetched batches count as not delivered. Includes the ``state_dict()`` of the dataset and the
        sampler.
        """
        if self._pending_state is not None:
            return self._pending_state
        progress = self._progress
        state = {"version": 1, "kind": "iterable" if self._iterable else "map"}
        if progress is None or progress.finished:
            state.update(epoch=self._epoch, begun=False)
        else:
            state.update(epoch=progress.epoch, begun=True, seed=progress.seed, batches=progress.delivered)
            if progress.beyond:
                state["beyond"] = sorted(progress.beyond)
            if self._iterable:
                state.update(lanes=copy.deepcopy(progress.lanes), turn=progress.turn)
            else:
                state.update(self._identity())
            state.update(progress.start)
        if not self._iterable and hasattr(self.dataset, "state_dict"):
            state["dataset"] = self.dataset.state_dict()
        return state

    def _identity(self):
        """Returns the properties that must be the same in a resumed loader."""
        try:
            length = len(self.dataset)
        except TypeError:
            length = None
        order = type(self._index_sampler).__name__ if self._index_sampler is not None else None
        order = order or ("fisher-yates/1" if self._shuffle else "sequential/1")
        return {"length": length, "batch_size": self.batch_size, "drop_last": self.drop_last, "order": order}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after the delivered batches of a saved state. Takes effect at the next ``iter()``, or for
        an iterator in use at its next batch."""
        if not isinstance(state, Mapping):
            raise ValueError(f"not a DataLoader state: {state!r}")
        if state.get("version") != 1:
            raise ValueError(f"not a DataLoader state: version is {state.get('version')!r}, expected 1")
        needed = {"kind", "epoch", "begun"}
        if state.get("begun"):
            needed |= {"seed", "batches"} | ({"lanes", "turn"} if self._iterable else {*self._identity()})
        kind = "iterable" if self._iterable else "map"
        if state.get("kind", kind) != kind:
            kinds = {"map": "a map-style dataset", "iterable": "an iterable dataset"}
            theirs = kinds.get(state["kind"], repr(state["kind"]))
            raise ValueError(f"the state belongs to {theirs}, this loader has {kinds[kind]}")
        if missing := sorted(needed - {*state}):
            raise ValueError(f"not a DataLoader state: {', '.join(missing)} missing")
        if state["begun"] and self._iterable and len(state["lanes"]) != max(self.num_workers, 1):
            raise ValueError(
                f"the state is of {len(state['lanes'])} workers, and this loader has {self.num_workers}: the "
                "parts of an iterable dataset depend on their number"
            )
        if state["begun"] and not self._iterable:
            for name, value in self._identity().items():
                if state[name] != value:
                    raise ValueError(f"the state has {name}={state[name]!r}, and this loader {value!r}")
        if not self._iterable and "dataset" in state and hasattr(self.dataset, "load_state_dict"):
            self.dataset.load_state_dict(state["dataset"])
        self._pending_state = state

    def _restart(self, iterator):
        """Applies a loaded state to the iterator in use."""
        if self._pending_state is None or self._iterator is None or self._iterator() is not iterator:
            return
        state, self._pending_state = self._pending_state, None
        iterator._close()
        iterator._progress = self._progress = self._resumed(state)
        iterator._yielded = 0
        iterator._begin()

    def _resumed(self, state):
        self._epoch = state["epoch"]
        if not state["begun"]:
            return self._start()
        self._epoch += 1
        start = {key: state[key] for key in ("sampler", "generator", "sampler_epoch") if key in state}
        progress = _Progress(state["epoch"], state["seed"], start)
        progress.delivered = state["batches"]
        progress.beyond = set(state.get("beyond", ()))
        if self._iterable:
            progress.lanes = [list(lane) for lane in state["lanes"]]
            progress.turn = state["turn"]
        sampler = self._index_sampler
        if "sampler_epoch" in start and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(start["sampler_epoch"])
        if "sampler" in start:
            sampler.load_state_dict(start["sampler"])
        if start.get("generator"):
            _set_generator_state(self.generator, start["generator"])
            # The epoch's seed was drawn before the sampler's.
            if self.seed is None:
                self._draw_seed()
        return progress


def _is_iterable(dataset):
    torch = sys.modules.get("torch.utils.data")
    if torch is not None and isinstance(dataset, torch.IterableDataset):
        return True
    has_indices = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getbatch__")
    return hasattr(dataset, "__iter__") and not has_indices


def _generator_state(generator):
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    state = (generator or torch.default_generator).get_state()
    return base64.b85encode(state.numpy().tobytes()).decode()


def _set_generator_state(generator, text):
    import torch

    state = torch.frombuffer(bytearray(base64.b85decode(text)), dtype=torch.uint8)
    (generator or torch.default_generator).set_state(state)
