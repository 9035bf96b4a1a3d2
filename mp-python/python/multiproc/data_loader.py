"""``DataLoader``: batches of Python datasets, made by worker processes in shared memory.

The arguments, attributes and results are those of ``torch.utils.data.DataLoader``; datasets, samplers and
``collate_fn`` of torch work unchanged, and torch isn't needed.

**How it works.** The workers are processes of a pool of the library (``mp::Pool`` in Rust), which knows
which task was lost with a dead worker, runs it again in another one, and keeps time limits. So this module
has no protocol between processes of its own. It decides which task comes next, and it makes batches and
errors from the results. A dataset with indices has one pool, and any free worker makes the next batch. A
dataset that is iterated has one pool of one worker for each ``worker_info.id``, since an iterator can't
move to another process: if that worker dies, its replacement iterates again up to the first batch that
wasn't delivered. The pool was chosen over the loader in Rust (``mp-data``), whose datasets are Rust types;
its plans make the order here too.

**Order and random numbers.** Batches, their order and their contents don't depend on the number of workers,
on times or on deaths. ``random``, ``numpy.random`` and torch's generator are seeded before each batch with
a function of the epoch's seed and the number of the batch. The loader with ``num_workers=0`` does the same,
and puts the caller's states back. ``shuffle=True`` without a ``generator`` is the library's own
permutation, a function of seed and epoch. With a ``generator`` the order is torch's. Without ``seed``, an
epoch's seed is drawn as torch draws it: from ``generator``, or torch's default generator, so that
``torch.manual_seed`` makes runs repeat. A dataset that is iterated depends on the number of workers if it
divides its data by ``get_worker_info()``, as in torch.

**Copies.** ``collate`` (the default) writes samples into shared memory. A dataset with
``__getbatch__(indices)`` returns complete batches instead of samples: tensors that it makes by
``multiproc.empty`` and fills are sent without any copy. Results of other collate functions are copied once.

**Workers** persist from epoch to epoch. If the pickled dataset or functions differ at the begin of an
epoch, new workers are started for them. The contents of arrays and tensors aren't compared: only their
addresses, shapes, and torch's counters of changes. ``persistent_workers=True`` never compares, ``False``
starts new workers for each epoch. Arrays of the dataset are in shared memory once for all workers.
"""

import atexit
import base64
import copy
import hashlib
import itertools
import math
import multiprocessing.context as _context
import os
import pickle
import queue
import random
import signal
import sys
import threading
import time
import warnings
import weakref
from multiprocessing import process as _process

from . import _loader_worker, _multiproc, process
from . import pool as _pool
from ._child import Preparation
from ._loader_worker import BATCH, END, STACK, SavedRandomness, Worker, get_worker_info, mix
from .collate import collate, convert
from .reduction import pickler

__all__ = [
    "BatchLost",
    "BatchTimeout",
    "DataLoader",
    "RemoteTraceback",
    "collate",
    "get_worker_info",
]

#: Signal at which a worker writes its Python stack.
_STACK_SIGNAL = signal.SIGRTMAX - 2


class BatchLost(_pool.WorkerLost):
    """A worker died, and so did those that tried again to make its batch."""

    __str__ = Exception.__str__

    def __init__(self, message, *, batch=None, index=None, pid=None, exitcode=None):
        super().__init__(message)
        self.batch, self.index, self.pid, self.exitcode = batch, index, pid, exitcode

    __str__ = RuntimeError.__str__


class BatchTimeout(RuntimeError, TimeoutError):
    """A batch was not made in time. The message has the sample, and the Python stack of the worker."""

    def __init__(self, message, *, batch=None, index=None, pid=None, stack=None):
        super().__init__(message)
        self.batch, self.index, self.pid, self.stack = batch, index, pid, stack


class RemoteTraceback(Exception):
    """Cause of an exception that was raised in a worker: its traceback there, and the sample."""

    def __init__(self, text, *, batch=None, index=None, worker=None, pid=None):
        super().__init__(text)
        self.batch, self.index, self.worker, self.pid = batch, index, worker, pid

    def __str__(self):
        return self.args[0]


class _Skip(Exception):
    """No sample of the batch is left."""


# Workers.


class _Digest:
    """File that keeps a digest of what is written."""

    def __init__(self):
        self.hash = hashlib.blake2b(digest_size=16)

    def write(self, data):
        self.hash.update(data)
        return len(data)


def _fingerprint(parts):
    """Returns a digest of the pickled objects, in which arrays stand for their addresses and shapes, or
    ``None`` if they can't be pickled so."""
    for base in [pickle.Pickler, pickler(True)]:
        if base is not None and (digest := _digest_by(base, parts)) is not None:
            return digest
    return None


def _digest_by(base, parts):
    class Pickler(base):
        def reducer_override(self, obj):
            of = type(obj)
            if of.__name__ == "ndarray" and of.__module__ == "numpy":
                view = obj.__array_interface__
                return tuple, ((view["data"][0], str(view["typestr"]), obj.shape, obj.strides),)
            if of.__module__ in ("torch", "torch.nn.parameter") and hasattr(obj, "data_ptr"):
                return tuple, ((obj.data_ptr(), str(obj.dtype), tuple(obj.shape), obj._version),)
            if of.__module__ == "multiproc._multiproc":
                return int, (id(obj),)
            inherited = getattr(super(), "reducer_override", None)
            return NotImplemented if inherited is None else inherited(obj)

    digest = _Digest()
    _context.set_spawning_popen(_pool._Spawning)
    try:
        Pickler(digest, protocol=5, buffer_callback=lambda _: True).dump(parts)
    except Exception:
        return None
    finally:
        _context.set_spawning_popen(None)
    return digest.hash.digest()


_teams = weakref.WeakSet()


@atexit.register
def _close_teams():
    for team in list(_teams):
        team.close()


class _Team:
    """The worker processes of a loader."""

    def __init__(self, loader, seed):
        self.owner = os.getpid()
        self.file = os.memfd_create("multiproc-loader-stacks")
        setup = {
            "dataset": loader.dataset,
            "collate_fn": loader.collate_fn,
            "worker_init_fn": loader.worker_init_fn,
            "auto_collation": loader._auto_collation,
            "on_error": loader.on_error,
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "batch_timeout": loader.batch_timeout,
            "num_workers": loader.num_workers,
            "seed": seed,
            "stacks": (f"/proc/{self.owner}/fd/{self.file}", _STACK_SIGNAL),
            "worker": None,
            "imports": _imported(),
        }
        method = loader._method
        self.workers = []
        _context.set_spawning_popen(_pool._Spawning)
        try:
            data = process._preparation("DataLoader")
            options = {
                "command": _command(method, data),
                "method": method,
                "name": "DataLoader",
                "has_main": process._has_main(data),
            }
            preparation = Preparation(data, method)
            parts = [(setup, loader.num_workers)]
            if loader._iterable:
                parts = [({**setup, "worker": number}, 1) for number in range(loader.num_workers)]
            for setup, count in parts:
                self.workers.append(_multiproc.LoaderWorkers((preparation, setup), count, **options))
        finally:
            _context.set_spawning_popen(None)
        _teams.add(self)

    def pids(self):
        return [pid for workers in self.workers for pid in workers.pids()]

    def ready(self):
        return sum(workers.ready() for workers in self.workers)

    def close(self):
        if self.owner != os.getpid():
            return
        workers, self.workers = self.workers, []
        for one in workers:
            one.terminate()
        for one in workers:
            one.close()
        file, self.file = self.file, None
        if file is not None:
            os.close(file)

    __del__ = close

    def _text(self, worker):
        text = os.pread(self.file, STACK, worker * STACK)
        return text[: text.find(b"\0")] if b"\0" in text else text

    def written_stack(self, worker):
        """Returns the stack that a worker wrote before its time limit."""
        return self._text(worker).decode(errors="replace")

    def stack(self, worker, pid):
        """Asks a worker for its Python stack, and returns it, or an empty text if it doesn't answer."""
        before = self._text(worker)
        try:
            os.kill(pid, _STACK_SIGNAL)
        except OSError:
            return ""
        deadline = time.monotonic() + 1
        last = before
        while time.monotonic() < deadline:
            time.sleep(0.01)
            text = self._text(worker)
            if text != before and text == last:
                break
            last = text
        return last[len(before) :].decode(errors="replace")


def _command(method, data):
    """Returns the command of the workers. The fork server of loaders imports torch, if the trainer has."""
    modules = list(process._preload)
    modules.append("multiproc._loader_worker")
    modules += _imported()
    return process._command(method, data, modules)


def _imported():
    """Returns the modules that workers import, since this process has."""
    return [name for name in ("numpy", "torch", "torch.utils.data") if name in sys.modules]


# What is to be loaded next.


class _Progress:
    """What was delivered of an epoch. The loader and the iterator have it together."""

    def __init__(self, epoch, seed, start=None):
        self.epoch, self.seed = epoch, seed
        #: State of the sampler and of its generator at the begin of the epoch.
        self.start = start or {}
        #: All batches below were delivered, and these beyond.
        self.delivered, self.beyond = 0, set()
        self.finished = False
        #: Of each worker of a dataset that is iterated: [batches delivered, ended, state].
        self.lanes = None
        #: Worker whose turn is next.
        self.turn = 0

    def deliver(self, token):
        if self.lanes is None:
            if token != self.delivered:
                self.beyond.add(token)
                return
            self.delivered += 1
            while self.delivered in self.beyond:
                self.beyond.remove(self.delivered)
                self.delivered += 1
        else:
            lane, ended, state, turn = token
            self.turn = turn
            if ended:
                self.lanes[lane][1] = True
            else:
                self.delivered += 1
                self.lanes[lane][0] += 1
                self.lanes[lane][2] = state

    def copy(self):
        other = copy.copy(self)
        other.beyond = set(self.beyond)
        other.lanes = copy.deepcopy(self.lanes)
        return other


class _Inline:
    """Batches made in this process."""

    def __init__(self, loader, progress):
        self.worker = Worker(loader._inline_setup(progress.seed), 0, inline=True)
        self.progress = progress.copy()
        self.loader = loader
        self.order = None if loader._iterable else loader._order(self.progress)
        if loader._iterable:
            lane = self.progress.lanes[0]
            self.origin = lane[0], lane[2]
            self.at, self.ended = lane[0], lane[1]

    def next(self):
        if self.order is None:
            return self._next_of_stream()
        number, indices = next(self.order)
        try:
            with SavedRandomness():
                seed = mix(self.progress.seed, self.progress.epoch, number)
                _, batch, skipped, _ = self.worker.make(number, seed, indices)
        except Exception as error:
            return number, None, error
        self.loader._skip(skipped)
        return number, batch, _Skip() if skipped and batch is None else None

    def _next_of_stream(self):
        if self.ended:
            raise StopIteration
        seed = mix(self.progress.seed, self.progress.epoch)
        number, self.at = self.at, self.at + 1
        try:
            with SavedRandomness():
                reply = self.worker.stream(0, number, number, seed, self.origin, (0,))
        except Exception as error:
            return (0, False, None, 0), None, error
        if reply[0] == END:
            self.ended = True
            return (0, True, None, 0), None, _Skip()
        return (0, False, reply[3], 0), reply[1], None

    def close(self):
        self.worker.iterations.clear()


class _Workers:
    """Batches of a dataset with indices, made by workers."""

    def __init__(self, loader, progress, team):
        self.loader, self.team = loader, team
        self.progress = progress.copy()
        self.order = loader._order(self.progress)
        self.tasks = self._tasks(loader.in_order)
        self.pending = {}
        self.window = loader.num_workers * max(loader.prefetch_factor, 1)
        self.exhausted = None
        self._fill()

    def _tasks(self, in_order):
        loader = self.loader
        return self.team.workers[0].tasks(
            retries=loader.retries, timeout=loader.batch_timeout or None, in_order=in_order
        )

    def _fill(self):
        while self.exhausted is None and len(self.pending) < self.window:
            try:
                number, indices = next(self.order)
            except StopIteration:
                # A new one, without this frame.
                self.exhausted = StopIteration()
                return
            except Exception as error:
                # A sampler's error comes after the batches before it.
                self.exhausted = error
                return
            self.pending[self.tasks.push((number, self._seed(number), indices))] = number, indices

    def _seed(self, number):
        return mix(self.progress.seed, self.progress.epoch, number)

    def next(self):
        self._fill()
        if not self.pending:
            if not isinstance(self.exhausted, StopIteration):
                error, self.exhausted = self.exhausted, StopIteration()
                raise error
            raise StopIteration
        result = self.tasks.next(self.loader.timeout or None)
        if result is None:
            raise self._late()
        ticket, reply, failure = result
        number, indices = self.pending.pop(ticket)
        self._fill()
        return number, *self._outcome(number, indices, reply, failure)

    def _outcome(self, number, indices, reply, failure):
        loader = self.loader
        gone = []
        while failure is not None:
            position = (failure[4] or 0) - 1
            several = loader._auto_collation and not loader._opaque
            if loader.on_error != "skip" or failure[0] == "failed" or position < 0 or not several:
                if loader.on_error == "skip" and failure[0] != "failed":
                    lost = indices if loader._auto_collation else [indices]
                    loader._skip([(index, failure[5]) for index in lost])
                    return None, _Skip()
                return None, _lost(failure, number, indices, loader, self.team)
            # Without the sample that kills, or takes too long.
            gone.append((indices[position], failure[5]))
            indices = [index for i, index in enumerate(indices) if i != position]
            if not indices:
                loader._skip(gone)
                return None, _Skip()
            again = self._tasks(True)
            again.push((number, self._seed(number), indices))
            _, reply, failure = again.next()
        loader._skip(gone)
        if reply[0] == BATCH:
            loader._skip(reply[2])
            return reply[1], _Skip() if reply[2] and reply[1] is None else None
        return None, _failed(reply, number, indices)

    def _late(self):
        waited = min(self.pending) if self.loader.in_order else None
        running = [task for task in self.tasks.running() if waited is None or task[0] == waited]
        return _late(self.loader, self.team, running, self.pending)

    def close(self):
        self.order = None
        self.tasks = None


class _Streams:
    """Batches of a dataset that is iterated, by a worker for each part."""

    runs = itertools.count()

    def __init__(self, loader, progress, team):
        self.loader, self.team = loader, team
        self.progress = progress.copy()
        self.run = next(self.runs)
        loader._runs.add(self.run)
        self.seed = mix(self.progress.seed, self.progress.epoch)
        self.tasks = [
            workers.tasks(retries=loader.retries, timeout=loader.batch_timeout or None)
            for workers in team.workers
        ]
        self.origins = [(batches, state) for batches, _, state in self.progress.lanes]
        self.first = [batches for batches, _, _ in self.progress.lanes]
        self.pushed = list(self.first)
        self.ended = [ended for _, ended, _ in self.progress.lanes]
        self.turn = self.progress.turn
        for lane in range(len(self.tasks)):
            self._fill(lane)

    def _fill(self, lane):
        room = max(self.loader.prefetch_factor, 1)
        while not self.ended[lane] and self.pushed[lane] - self.first[lane] < room:
            runs = tuple(self.loader._runs)
            task = self.run, self.pushed[lane], self.first[lane], self.seed, self.origins[lane], runs
            self.tasks[lane].push(task)
            self.pushed[lane] += 1

    def next(self):
        if all(self.ended):
            raise StopIteration
        lane, result = self._wait()
        after = (lane + 1) % len(self.tasks)
        self.turn = after
        number = self.first[lane]
        self.first[lane] += 1
        _, reply, failure = result
        if failure is not None:
            self._fill(lane)
            error = _lost(failure, number, None, self.loader, self.team, lane)
            return (lane, False, None, after), None, error
        if reply[0] == END:
            self.ended[lane] = True
            return (lane, True, None, after), None, _Skip()
        self._fill(lane)
        if reply[0] == BATCH:
            return (lane, False, reply[3], after), reply[1], None
        return (lane, False, None, after), None, _failed(reply, number, None)

    def _wait(self):
        timeout = self.loader.timeout or None
        while self.ended[self.turn]:
            self.turn = (self.turn + 1) % len(self.tasks)
        if self.loader.in_order or sum(not ended for ended in self.ended) == 1:
            result = self.tasks[self.turn].next(timeout)
            if result is None:
                raise self._late([self.turn])
            return self.turn, result
        live = [lane for lane in range(len(self.tasks)) if not self.ended[lane]]
        deadline = timeout and time.monotonic() + timeout
        pause = 0
        while True:
            for lane in live:
                result = self.tasks[lane].next(pause)
                if result is not None:
                    return lane, result
            pause = 0.001
            if deadline and time.monotonic() > deadline:
                raise self._late(live)

    def _late(self, lanes):
        running = [(None, lane, *task[2:]) for lane in lanes for task in self.tasks[lane].running()]
        return _late(self.loader, self.team, running, {None: (min(self.first[lane] for lane in lanes), None)})

    def close(self):
        self.loader._runs.discard(self.run)
        self.tasks = []


def _index(indices, position):
    """Returns the index of the sample at a position, if it is known."""
    if position is None or position < 0 or indices is None:
        return None
    try:
        return indices[position]
    except (TypeError, IndexError, KeyError):
        return indices


def _at(number, index):
    return f"batch {number}" if index is None else f"batch {number}, at sample {index!r}"


def _failed(reply, number, indices):
    """Returns the exception that was raised in a worker."""
    _, sent, of, name, text, position, worker, pid = reply
    index = _index(indices, position)
    place = f"DataLoader worker process {worker} (pid {pid}), in {_at(number, index)}"
    text = f"Caught {name} in {place}.\nOriginal {text}"
    error = None
    try:
        if sent is not None:
            error = pickle.loads(sent)
        elif of is not None:
            error = pickle.loads(of)(text)
    except Exception:
        pass
    if not isinstance(error, BaseException):
        error = RuntimeError(text)
    error.__cause__ = RemoteTraceback(text, batch=number, index=index, worker=worker, pid=pid)
    return error


def _lost(failure, number, indices, loader, team, lane=None):
    """Returns the exception for a batch without a reply."""
    kind, worker, pid, code, note, text = failure
    index = _index(indices, (note or 0) - 1)
    if indices is not None and not loader._auto_collation:
        index = indices
    place = _at(number, index)
    if kind == "timeout":
        stack = team.written_stack(worker if lane is None else lane)
        limit = f"more than {loader.batch_timeout} seconds"
        message = f"DataLoader worker (pid {pid}) took {limit} for {place}: {text}"
        if stack:
            message += f"\n{stack}"
        return BatchTimeout(message, batch=number, index=index, pid=pid, stack=stack)
    if kind == "failed":
        return RuntimeError(f"DataLoader workers can't make {place}: {text}")
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        ended = f"is killed by signal: {name}"
    else:
        ended = f"exited unexpectedly with exit code {code}"
    message = f"DataLoader worker (pid {pid}) {ended}, in {place}, after {loader.retries} retries: {text}"
    return BatchLost(message, batch=number, index=index, pid=pid, exitcode=code)


def _late(loader, team, running, pending):
    message = f"DataLoader timed out after {loader.timeout} seconds"
    number = index = pid = stack = None
    for ticket, worker, pid, note, seconds in running:
        number, indices = pending.get(ticket, (None, None))
        index = _index(indices, (note or 0) - 1) if loader._auto_collation else indices
        stack = team.stack(worker, pid)
        message += f"\nworker {worker} (pid {pid}) is in {_at(number, index)}, for {seconds:.1f} s"
        if stack:
            message += f"\n{stack}"
    if not running:
        message += ": no worker has begun with the batch"
    return BatchTimeout(message, batch=number, index=index, pid=pid, stack=stack)


class _Pinned:
    """Another source, whose batches a thread copies into pinned memory, ahead of the consumer."""

    def __init__(self, source, ahead):
        self.source = source
        self.results = queue.Queue(max(ahead, 1))
        self.stop = threading.Event()
        self.thread = threading.Thread(target=_pin_loop, args=(source, self.results, self.stop), daemon=True)
        self.thread.start()
        self.ended = False

    def next(self):
        if self.ended:
            raise StopIteration
        while True:
            try:
                item, error = self.results.get(timeout=0.1)
            except queue.Empty:
                continue
            if error is None:
                return item
            if isinstance(error, StopIteration):
                self.ended = True
            try:
                raise error
            finally:
                # Its traceback has this frame.
                del error

    def close(self):
        self.stop.set()
        # The interpreter may collect garbage in any thread.
        if self.thread is not threading.current_thread():
            self.thread.join()
        self.source.close()


def _pin_loop(source, results, stop):
    ended = False
    while not (ended or stop.is_set()):
        try:
            token, batch, error = source.next()
            item = (token, _pin(batch), error), None
        except BaseException as error:
            item = None, error
            ended = isinstance(error, StopIteration)
            # The frames of this thread have no use for the consumer, and would keep the workers.
            error.__traceback__ = None
        while not stop.is_set():
            try:
                results.put(item, timeout=0.1)
                break
            except queue.Full:
                pass
        item = token = batch = error = None


def _pin(batch):
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)


class _Batches:
    """Iterator over the batches of an epoch."""

    def __init__(self, loader, progress):
        self._loader, self._progress = loader, progress
        self._lock = threading.Lock()
        self._source = None
        self._team = None
        self._yielded = 0
        self._begin()

    def _begin(self):
        loader = self._loader
        if loader.num_workers == 0:
            source = _Inline(loader, self._progress)
        else:
            self._team = loader._hire(self._progress.seed)
            of = _Streams if loader._iterable else _Workers
            source = of(loader, self._progress, self._team)
        if loader._pins():
            source = _Pinned(source, loader.prefetch_factor or 2)
        self._source = source

    def __iter__(self):
        return self

    def __len__(self):
        return len(self._loader)

    def __next__(self):
        with self._lock:
            self._loader._restart(self)
            while True:
                if self._source is None:
                    raise StopIteration
                try:
                    token, batch, error = self._source.next()
                except StopIteration:
                    self._progress.finished = True
                    self._close()
                    raise
                self._progress.deliver(token)
                if error is None:
                    self._yielded += 1
                    self._loader._check_length(self._yielded)
                    return batch
                if not isinstance(error, _Skip):
                    try:
                        raise error
                    finally:
                        # Its traceback has this frame.
                        del error

    next = __next__

    def _close(self):
        source, self._source = self._source, None
        if source is not None:
            source.close()
        team, self._team = self._team, None
        if team is not None and self._loader.persistent_workers is False:
            team.close()

    def __del__(self):
        try:
            self._close()
        except AttributeError:
            # The constructor failed.
            pass


class DataLoader:
    """Loads a dataset in batches, by worker processes. Takes the arguments of torch's ``DataLoader``, and:

    - ``seed``: number from which the order and all random numbers follow, with the epoch. Without it each
      epoch has a new one, drawn as torch draws its base seed.
    - ``batch_timeout``: seconds for one batch in its worker. The worker is killed then, and the batch is made
      again by another one. (``timeout`` is torch's: how long the caller waits.)
    - ``retries``: how often a batch is made again after its worker died or took too long.
    - ``on_error``: ``"raise"``, or ``"skip"`` to leave out samples that raise an exception, or kill each
      worker that tries them. ``skipped`` lists them.
    """

    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=None,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        collate_fn=None,
        pin_memory=False,
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
        multiprocessing_context=None,
        generator=None,
        *,
        prefetch_factor=None,
        persistent_workers=None,
        pin_memory_device="",
        in_order=True,
        seed=None,
        batch_timeout=0,
        retries=2,
        on_error="raise",
    ):
        if num_workers < 0:
            raise ValueError(
                "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
            )
        if timeout < 0 or batch_timeout < 0:
            raise ValueError("timeout option should be non-negative")
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
        self.dataset = dataset
        self._iterable = _is_iterable(dataset)
        if self._iterable:
            unset = ("shuffle", shuffle or None), ("sampler", sampler), ("batch_sampler", batch_sampler)
            for name, value in unset:
                if value is not None:
                    raise ValueError(
                        f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
                        f"{name}={value}"
                    )
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
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.num_workers = num_workers
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.pin_memory, self.pin_memory_device = pin_memory, pin_memory_device
        self.timeout, self.batch_timeout = timeout, batch_timeout
        self.worker_init_fn = worker_init_fn
        self.generator = generator
        self.persistent_workers = persistent_workers if num_workers else False
        self.in_order = in_order
        self.seed, self.retries, self.on_error = seed, retries, on_error
        self._auto_collation = batch_size is not None or batch_sampler is not None
        if collate_fn is None:
            collate_fn = collate if self._auto_collation else convert
        self.collate_fn = collate_fn
        #: The dataset makes a whole batch at a time, so that its samples can't be told apart.
        self._opaque = hasattr(dataset, "__getbatch__") or bool(getattr(dataset, "__getitems__", None))
        self._method = self._start_method(multiprocessing_context)
        self.multiprocessing_context = multiprocessing_context
        #: Left out samples of this epoch: (index, reason).
        self.skipped = []
        self._epoch = 0
        self._progress = None
        self._pending_state = None
        self._iterator = None
        self._team = None
        self._team_fingerprint = None
        self._runs = set()
        self._reported_length = None

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
        from .context import get_context

        return get_context(context)._name

    @property
    def _index_sampler(self):
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def __len__(self):
        if self._iterable:
            length = self._reported_length = len(self.dataset)
            if self.batch_size is None:
                return length
        elif self.batch_sampler is not None:
            return len(self.batch_sampler)
        else:
            length = len(self.dataset if self.sampler is None else self.sampler)
            if self.batch_size is None:
                return length
        return length // self.batch_size if self.drop_last else math.ceil(length / self.batch_size)

    def _check_length(self, yielded):
        """Warns if a dataset that is iterated has more batches than its length says, once that was asked."""
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

    def pids(self):
        """Returns the process ids of the workers, of which persistent ones live between epochs."""
        iterator = self._iterator and self._iterator()
        team = self._team or (iterator and iterator._team)
        return team.pids() if team else []

    def set_epoch(self, epoch):
        """Sets the number of the next epoch, for the order with ``seed``, and for a sampler that has this
        method."""
        self._epoch = epoch
        if hasattr(self._index_sampler, "set_epoch"):
            self._index_sampler.set_epoch(epoch)

    def __iter__(self):
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
            return torch.empty((), dtype=torch.int64).random_(generator=self.generator).item()
        return random.getrandbits(63)

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
        if self.batch_sampler is not None or self.batch_size is None:
            yield from self._index_sampler
            return
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def _inline_setup(self, seed):
        return {
            "dataset": self.dataset,
            "collate_fn": self.collate_fn,
            "auto_collation": self._auto_collation,
            "on_error": self.on_error,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "batch_timeout": 0,
            "num_workers": 0,
            "seed": seed,
        }

    def _hire(self, seed):
        """Returns the workers of an epoch."""
        if getattr(_process.current_process(), "_inheriting", False):
            raise RuntimeError(
                "a DataLoader with workers was iterated while a worker imports the main module: put the code "
                'that is to run once below "if __name__ == \'__main__\':"'
            )
        if self.persistent_workers is False:
            return _Team(self, seed)
        team = self._team
        if team is not None and (not team.workers or team.owner != os.getpid()):
            team = None
        if team is None or not self.persistent_workers:
            parts = self.dataset, self.collate_fn, self.worker_init_fn
            fingerprint = None if self.persistent_workers else _fingerprint(parts)
            if team is not None and (fingerprint is None or fingerprint != self._team_fingerprint):
                # An iterator that has not ended keeps the old workers until then.
                team = None
            self._team_fingerprint = fingerprint
        if team is None:
            team = self._team = _Team(self, seed)
        return team

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

    def state_dict(self):
        """Returns what was delivered, as a dict of plain values. Batches that were only prefetched are not
        in it. If the dataset or the sampler has ``state_dict``, its state is in it as well."""
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
        elif self._iterable and self.num_workers and progress is not None and progress.finished:
            # The workers' copies go on from where they are.
            state["lanes"] = copy.deepcopy(progress.lanes)
        return state

    def _identity(self):
        """Returns what a resumed loader must have in common."""
        try:
            length = len(self.dataset)
        except TypeError:
            length = None
        order = type(self._index_sampler).__name__ if self._index_sampler is not None else None
        order = order or ("fisher-yates/1" if self._shuffle else "sequential/1")
        return {"length": length, "batch_size": self.batch_size, "drop_last": self.drop_last, "order": order}

    def load_state_dict(self, state):
        """Continues after what had been delivered. Takes effect at the next ``iter()``, or for the iterator
        that is in use at its next batch."""
        if state.get("version") != 1:
            raise ValueError(f"this is no state of this DataLoader: version {state.get('version')!r}")
        kind = "iterable" if self._iterable else "map"
        if state["kind"] != kind:
            raise ValueError(f"the state is of a dataset of kind {state['kind']!r}, this one is {kind!r}")
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
