"""Worker processes of a ``DataLoader``, and the comparison that tells if they have its dataset still."""

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
from ._loader_worker import STACK
from .pool import _Spawning
from .reduction import pickler

#: Signal at which a worker writes its Python stack.
_STACK_SIGNAL = signal.SIGRTMAX - 2


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
    _context.set_spawning_popen(_Spawning)
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
        _context.set_spawning_popen(_Spawning)
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
