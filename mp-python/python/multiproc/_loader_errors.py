"""Exceptions of ``DataLoader``, and their creation from reports of workers. The public names of the classes
are in ``multiproc.data_loader``.
"""

import pickle

from ._process_end import signal_name
from .pool import WorkerLost


class BatchLost(WorkerLost):
    """A worker died while making a batch, and so did the workers that made it again."""

    __module__ = "multiproc.data_loader"

    __str__ = Exception.__str__

    def __init__(self, message, *, batch=None, index=None, pid=None, exitcode=None):
        super().__init__(message)
        self.batch, self.index, self.pid, self.exitcode = batch, index, pid, exitcode


class BatchTimeout(RuntimeError, TimeoutError):
    """A batch was not made in time. The message has the sample, and the Python stack of the worker."""

    __module__ = "multiproc.data_loader"

    def __init__(self, message, *, batch=None, index=None, pid=None, stack=None):
        super().__init__(message)
        self.batch, self.index, self.pid, self.stack = batch, index, pid, stack


class RemoteTraceback(Exception):
    """Cause of an exception that was raised in a worker: the traceback in the worker, and the sample."""

    __module__ = "multiproc.data_loader"

    def __init__(self, text, *, batch=None, index=None, worker=None, pid=None):
        super().__init__(text)
        self.batch, self.index, self.worker, self.pid = batch, index, worker, pid

    def __str__(self):
        return self.args[0]


class _Skip(Exception):
    """All samples of the batch were skipped."""


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
        ended = f"is killed by signal: {signal_name(code)}"
    else:
        ended = f"exited unexpectedly with exit code {code}"
    retries = f"{loader.retries} {'retry' if loader.retries == 1 else 'retries'}"
    message = f"DataLoader worker (pid {pid}) {ended}, in {place}, after {retries}: {text}"
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
