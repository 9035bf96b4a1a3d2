"""Worker processes of ``DataLoader``: they make batches.

A process is prepared once. For each epoch it makes a ``Worker``, which has a copy of the dataset.

A task of a dataset with indices is ``(number, seed, indices)``. A task of a dataset that is iterated is
``(run, number, first, seed, origin, runs)``: batch ``number`` of the iteration ``run``; see
``Worker.stream``. The reply is ``(BATCH, batch, skipped, state)``, ``(END,)`` or ``(FAILURE, …)``.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import pickle
import random
import sys
import traceback
import weakref

from . import _multiproc
from ._loader_pipes import apply_seed, apply_sharding
from ._process_end import run_exit_functions

BATCH, END, FAILURE = 0, 1, 2
#: Bytes that each worker has for its stack in the file of a loader.
STACK = 1 << 18
_MASK = (1 << 64) - 1

_info = None
#: File for the stacks of this worker process, and the place of its part there.
_stack = None
_stack_begin = 0
#: ``Worker`` objects of this process.
_workers = weakref.WeakSet()


@dataclasses.dataclass
class WorkerInfo:
    """Description of a worker of a loader, for code that runs in the worker."""

    #: Number of the worker, from 0.
    id: int
    #: Number of workers.
    num_workers: int
    #: Seed of the random numbers of the current batch.
    seed: int
    #: The worker's copy of the dataset.
    dataset: object

    def __setattr__(self, name, value):
        if hasattr(self, "dataset"):
            raise RuntimeError("Cannot assign attributes to WorkerInfo objects")
        super().__setattr__(name, value)


def get_worker_info() -> WorkerInfo | None:
    """Returns the ``WorkerInfo`` of this process, or ``None`` outside of a worker of a loader."""
    return _info


def mix(*numbers):
    """Returns a number of 63 bits that depends on all bits of all numbers: a splitmix64 step for each."""
    x = 0
    for number in numbers:
        x = (x + number + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return x >> 1


def seed_all(seed):
    """Seeds the global generators of ``random``, and of numpy and torch if they are imported."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed((seed >> 32, seed & 0xFFFFFFFF))
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.manual_seed(seed)


class SavedRandomness:
    """Saved states of the global generators, for a loader without workers, which seeds them for each batch.
    They are restored at the end."""

    def __enter__(self):
        self.python = random.getstate()
        self.numpy = sys.modules.get("numpy")
        if self.numpy is not None:
            self.array = self.numpy.random.get_state()
        self.torch = sys.modules.get("torch")
        if self.torch is not None:
            self.tensor = self.torch.default_generator.get_state()

    def __exit__(self, *_):
        random.setstate(self.python)
        if self.numpy is not None:
            self.numpy.random.set_state(self.array)
        if self.torch is not None:
            self.torch.default_generator.set_state(self.tensor)


def begin(arguments, number):
    """Prepares a worker process. Unpickling the arguments has imported the main module."""
    import signal
    from multiprocessing import process

    _, (part, imports, stacks) = arguments
    number = number if part is None else part
    _import(imports)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.current_process().name = f"DataLoader-worker-{number}"
    _open_stack(number, *stacks)


def _import(names):
    # The types of batches depend on whether torch is imported.
    for name in names:
        __import__(name)


def _open_stack(number, path, signal_number):
    """Opens the file for stacks, which a signal handler or a thread of faulthandler writes."""
    global _stack, _stack_begin
    try:
        _stack = open(path, "r+b", buffering=0)
    except OSError:
        return
    _stack_begin = number * STACK
    os.lseek(_stack.fileno(), _stack_begin, os.SEEK_SET)
    faulthandler.register(signal_number, file=_stack, all_threads=True)


def make(setup, number, seed):
    """Returns the ``Worker`` of an epoch."""
    _import(setup["imports"])
    worker = Worker(setup, number)
    worker.start(seed)
    return worker


def leave(code=0):
    """Ends the process by ``os._exit``, like processes of ``multiprocessing``, because the destructors of
    torch's libraries would take most of a second."""
    for worker in list(_workers):
        worker.close()
    run_exit_functions()
    os._exit(code)


class _Iteration:
    """One iteration of a dataset without indices: an iterator, and the number of its next batch."""

    def __init__(self, iterator, at):
        self.iterator, self.at = iterator, at
        self.ended = False


class Worker:
    """Makes batches: in a worker process, or in the caller's for a loader without workers."""

    def __init__(self, setup, number, inline=False):
        self.setup, self.number, self.inline = setup, number, inline
        self.dataset = setup["dataset"]
        self.collate = setup["collate_fn"]
        self.auto = setup["auto_collation"]
        self.skip = setup["on_error"] == "skip"
        self.iterations = {}
        self.failed = None
        self.position = None
        self.info = self.torch_info = None
        self.note = (lambda _: None) if inline else _multiproc._note
        if self.auto and hasattr(self.dataset, "__getbatch__"):
            self.fetch = self._fetch_batch
        elif not self.auto:
            self.fetch = self._fetch_one
        elif getattr(self.dataset, "__getitems__", None):
            self.fetch = self._fetch_items
        else:
            self.fetch = self._fetch_samples

    def start(self, seed):
        """Prepares this process for the epoch. An error is reported in place of each batch."""
        _workers.add(self)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)
        self._set_info(mix(seed, self.number))
        seed_all(self.info.seed)
        try:
            self.shard()
            if self.setup["worker_init_fn"] is not None:
                self.setup["worker_init_fn"](self.number)
            # The function may have replaced the dataset's attributes, or the dataset.
            self.dataset = self.info.dataset
        except Exception as error:
            self.failed = error

    def shard(self):
        """Gives a datapipe the part of its samples that belongs to this worker of this process."""
        size, rank = self.setup["ranks"]
        workers = max(self.setup["num_workers"], 1)
        apply_sharding(self.dataset, size * workers, self.number * size + rank)

    def _set_info(self, seed):
        """Sets the result of ``get_worker_info`` to this worker. A process has a worker for each epoch."""
        global _info
        if self.info is None:
            self.info = WorkerInfo(self.number, self.setup["num_workers"], seed, self.dataset)
        object.__setattr__(self.info, "seed", seed)
        _info = self.info
        # Datasets call torch's `get_worker_info`, whose module may be imported only now.
        theirs = sys.modules.get("torch.utils.data._utils.worker")
        if theirs is not None:
            if self.torch_info is None:
                self.torch_info = theirs.WorkerInfo(
                    id=self.number, num_workers=self.setup["num_workers"], seed=seed, dataset=self.dataset
                )
            theirs._worker_info = self.torch_info

    def close(self):
        """Drops the dataset and its iterators."""
        global _info
        self.iterations.clear()
        theirs = sys.modules.get("torch.utils.data._utils.worker")
        if theirs is not None and theirs._worker_info is self.torch_info:
            theirs._worker_info = None
        if _info is self.info:
            _info = None
        self.failed = self.dataset = self.collate = self.info = self.torch_info = None
        # `fetch` is a bound method, which refers to this object.
        self.fetch = None
        self.setup = None

    def _watch(self):
        """Schedules the writing of the stack shortly before the time limit of the batch."""
        fd = _stack.fileno()
        written = os.lseek(fd, 0, os.SEEK_CUR) - _stack_begin
        if written:
            os.pwrite(fd, bytes(written), _stack_begin)
            os.lseek(fd, _stack_begin, os.SEEK_SET)
        limit = self.setup["batch_timeout"]
        if limit:
            faulthandler.dump_traceback_later(max(limit - 0.2, 0.8 * limit), file=_stack)

    def __call__(self, task):
        if task is None:
            return None
        if _stack is not None:
            self._watch()
        try:
            if self.failed is not None:
                if len(task) == 6 and task[1] > task[2]:
                    return (END,)
                raise self.failed
            return self.stream(*task) if len(task) == 6 else self.make(*task)
        except SystemExit as exit:
            # `sys.exit` ends the process, as everywhere. The trainer reports the exit code.
            code = exit.code
            leave(code if isinstance(code, int) else int(code is not None))
        except Exception as error:
            return self.failure(error)
        finally:
            if self.setup["batch_timeout"] and _stack is not None:
                faulthandler.cancel_dump_traceback_later()

    def failure(self, error):
        """Returns the reply for an exception: the exception itself if it can be sent."""
        text = "".join(traceback.format_exception(error))
        try:
            sent = pickle.dumps(error)
            pickle.loads(sent)
        except Exception:
            sent = None
        try:
            of = pickle.dumps(type(error))
        except Exception:
            of = None
        return FAILURE, sent, of, type(error).__name__, text, self.position, self.number, os.getpid()

    def unsendable(self, error):
        """Returns the failure reply for a batch that can't be pickled."""
        self.position = None
        return self.failure(error)

    # Datasets with indices.

    def make(self, number, seed, indices):
        self.position = None
        if self.inline:
            seed_all(seed)
        else:
            self._set_info(seed)
            seed_all(seed)
        skipped = []
        batch = self.fetch(indices, skipped)
        if skipped and len(skipped) == len(indices):
            return BATCH, None, skipped, None
        return BATCH, batch, skipped or None, None

    def _fetch_one(self, index, _skipped):
        return self.collate(self.dataset[index])

    def _fetch_batch(self, indices, _skipped):
        self.note(1)
        return self.dataset.__getbatch__(indices)

    def _fetch_items(self, indices, skipped):
        self.note(1)
        try:
            samples = self.dataset.__getitems__(indices)
        except Exception:
            if not self.skip or not hasattr(self.dataset, "__getitem__"):
                raise
            return self._fetch_samples(indices, skipped)
        return self.collate(samples)

    def _fetch_samples(self, indices, skipped):
        dataset, note = self.dataset, self.note
        samples = []
        for position, index in enumerate(indices):
            self.position = position
            note(position + 1)
            try:
                samples.append(dataset[index])
            except Exception:
                if not self.skip:
                    raise
                skipped.append((index, traceback.format_exc()))
        self.position = None
        return self.collate(samples) if samples else None

    # Datasets that are iterated.

    def stream(self, run, number, first, seed, origin, runs):
        """Returns batch ``number`` of an iteration. The trainer already has the batches before ``first``.

        A replacement process iterates again from ``origin``: ``(batches, state)``, the number of batches to
        skip, or the state of a stateful dataset after these batches.
        """
        for other in [other for other in self.iterations if other not in runs]:
            del self.iterations[other]
        iteration = self.iterations.get(run)
        if iteration is None or iteration.at > number:
            # A dataset that can't be iterated ends after one error.
            iteration = self.iterations[run] = _Iteration(iter(()), 0)
            iteration = self.iterations[run] = self._open(seed, *origin)
        while True:
            at = iteration.at
            batch_seed = mix(seed, self.number, at)
            if not self.inline:
                self._set_info(batch_seed)
            seed_all(batch_seed)
            iteration.at = at + 1
            try:
                reply = self._draw(iteration, at == number)
            except Exception as error:
                if self.inline:
                    raise
                reply = self.failure(error)
            if at == number:
                return reply

    def _open(self, seed, batches, state):
        seed_all(mix(seed, self.number))
        dataset = self.dataset
        if state is not None and state[0] == "dataset":
            dataset.load_state_dict(state[1])
        apply_seed(dataset, seed)
        iteration = _Iteration(iter(dataset), batches if state is not None else 0)
        if state is not None and state[0] == "iterator":
            iteration.iterator.load_state_dict(state[1])
        return iteration

    def _draw(self, iteration, wanted):
        """Returns the next batch, or ``None`` for a batch that is not wanted."""
        if iteration.ended:
            return (END,)
        size = self.setup["batch_size"]
        samples = []
        for _ in range(size or 1):
            try:
                samples.append(next(iteration.iterator))
            except StopIteration:
                iteration.ended = True
                break
        if not samples or (size and self.setup["drop_last"] and len(samples) < size):
            return (END,)
        if not wanted:
            return None
        batch = self.collate(samples if size else samples[0])
        return BATCH, batch, None, self._state(iteration)

    def _state(self, iteration):
        import copy

        for kind, of in ("iterator", iteration.iterator), ("dataset", self.dataset):
            if hasattr(of, "state_dict") and hasattr(of, "load_state_dict"):
                state = of.state_dict()
                return kind, copy.deepcopy(state) if self.inline else state
        return None
