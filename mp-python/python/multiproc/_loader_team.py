"""Worker processes of a ``DataLoader``, and the detection of changes of its dataset."""

import atexit
import hashlib
import multiprocessing.context as _context
import os
import pickle
import signal
import sys
import time
import weakref

from . import _multiproc, process
from ._child import Preparation
from ._loader_pipes import ranks
from ._loader_worker import _MASK, STACK
from .pool import _Spawning
from .reduction import pickler

#: Signal at which a worker writes its Python stack.
_STACK_SIGNAL = signal.SIGRTMAX - 2


class _Digest:
    """File-like object that computes a digest of the written bytes."""

    def __init__(self):
        self.hash = hashlib.blake2b(digest_size=16)

    def write(self, data):
        self.hash.update(data)
        return len(data)


class _Fingerprint:
    """Digest of pickled objects. Arrays are represented by their addresses and shapes."""

    def __init__(self, digest, arrays):
        self.digest = digest
        #: Returns the arrays, or ``None`` for freed arrays: another array may have the same address.
        self.arrays = arrays

    def __eq__(self, earlier):
        if earlier is None or self.digest != earlier.digest:
            return False
        return all(array() is not None for array in earlier.arrays)


def _fingerprint(parts):
    """Returns a fingerprint, or ``None`` if the objects can't be pickled in this way."""
    for base in [pickle.Pickler, pickler(True)]:
        if base is not None and (fingerprint := _fingerprint_by(base, parts)) is not None:
            return fingerprint
    return None


def _fingerprint_by(base, parts):
    arrays = []

    def keep(obj):
        try:
            arrays.append(weakref.ref(obj))
        except TypeError:
            arrays.append(lambda: obj)

    class Pickler(base):
        def reducer_override(self, obj):
            of = type(obj)
            if of.__name__ == "ndarray" and of.__module__ == "numpy":
                keep(obj)
                view = obj.__array_interface__
                return tuple, ((view["data"][0], str(view["typestr"]), obj.shape, obj.strides),)
            if of.__module__ in ("torch", "torch.nn.parameter") and hasattr(obj, "data_ptr"):
                keep(obj)
                layout = str(obj.dtype), tuple(obj.shape), obj.stride()
                return tuple, ((obj.data_ptr(), *layout, obj._version),)
            if of.__module__ == "multiproc._multiproc":
                keep(obj)
                return int, (id(obj),)
            inherited = getattr(super(), "reducer_override", None)
            return NotImplemented if inherited is None else inherited(obj)

    digest = _Digest()
    _context.set_spawning_popen(_Spawning)
    try:
        Pickler(digest, protocol=5, buffer_callback=lambda _: True).dump(parts)
    except Exception:
        return None
    finally:
        _context.set_spawning_popen(None)
    return _Fingerprint(digest.hash.digest(), arrays)


_teams = weakref.WeakSet()


@atexit.register
def _close_teams():
    for team in list(_teams):
        team.close()


class _Team:
    """The worker processes of a loader. They live longer than an epoch, and get the dataset for each
    epoch."""

    def __init__(self, loader):
        self.owner = os.getpid()
        self.method, self.size, self.iterable = loader._method, loader.num_workers, loader._iterable
        self.place = _place()
        self.file = os.memfd_create("multiproc-loader-stacks")
        #: Setup of the last epoch as a message, and its fingerprint: one value, which any thread may replace.
        self.sent = None, None
        #: The epoch of persistent workers: they keep the copy of the dataset.
        self.persistent = None
        stacks = f"/proc/{self.owner}/fd/{self.file}", _STACK_SIGNAL
        self.workers = []
        _context.set_spawning_popen(_Spawning)
        try:
            data = process._preparation("DataLoader")
            self.has_main = process._has_main(data)
            options = {
                "command": _command(self.method, data),
                "method": self.method,
                "name": "DataLoader",
                "has_main": self.has_main,
            }
            preparation = Preparation(data, self.method)
            parts = [(None, self.size)]
            if self.iterable:
                parts = [(part, 1) for part in range(self.size)]
            for part, count in parts:
                arguments = preparation, (part, _imported(), stacks)
                self.workers.append(_multiproc.LoaderWorkers(arguments, count, **options))
        finally:
            _context.set_spawning_popen(None)
        _teams.add(self)

    def serves(self, loader):
        """Returns ``True`` if these processes can be the workers of the loader's next epoch."""
        of_loader = loader._method, loader.num_workers, loader._iterable
        if not self.workers or self.owner != os.getpid():
            return False
        if loader._persistent and self.persistent is not None:
            return True
        return (self.method, self.size, self.iterable) == of_loader and self.place == _place()

    def begin(self, loader, seed):
        """Begins an epoch. Returns its calls, one for each pool."""
        if loader._persistent and self.persistent is not None:
            return self.persistent
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
            "ranks": ranks(),
            "imports": _imported(),
        }
        fingerprint = None if loader._persistent is not None else _fingerprint(setup)
        message, earlier = self.sent
        if message is None or fingerprint is None or fingerprint != earlier:
            # Drops the old message, so that its memory may be freed before the new message is made.
            message = None
            self.sent = None, None
            _context.set_spawning_popen(_Spawning)
            try:
                message = _multiproc.LoaderSetup(setup, self.has_main)
            finally:
                _context.set_spawning_popen(None)
            self.sent = message, fingerprint
        parts = range(self.size) if self.iterable else [None]
        calls = [
            workers.epoch(message, seed & _MASK, part)
            for workers, part in zip(self.workers, parts, strict=True)
        ]
        if loader._persistent:
            self.persistent = calls
        return calls

    def pids(self):
        return [pid for workers in self.workers for pid in workers.pids()]

    def ready(self):
        return sum(workers.ready() for workers in self.workers)

    def close(self):
        if self.owner != os.getpid():
            return
        workers, self.workers = self.workers, []
        self.sent, self.persistent = (None, None), None
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
        """Requests the Python stack of a worker. Returns an empty string if the worker doesn't answer."""
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
    """Returns the command of the workers. The fork server of loaders imports torch if the trainer has
    imported it."""
    modules = list(process._preload)
    modules.append("multiproc._loader_worker")
    modules += _imported()
    return process._command(method, data, modules)


def _place():
    """Returns the module search path and the working directory of this process, for the workers."""
    try:
        folder = os.getcwd()
    except OSError:
        folder = None
    return folder, list(sys.path)


def _imported():
    """Returns the modules that workers import because this process has imported them."""
    return [name for name in ("numpy", "torch", "torch.utils.data") if name in sys.modules]
