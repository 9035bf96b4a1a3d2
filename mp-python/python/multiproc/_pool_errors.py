"""Exceptions of tasks of a pool that have no result. Their public names are in ``multiproc.pool``."""

from __future__ import annotations

from multiprocessing import context as _context
from multiprocessing.pool import MaybeEncodingError

from ._process_end import signal_of as _signal_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import Signals

TimeoutError = _context.TimeoutError


class PoolError(RuntimeError):
    """The task was not run, because the pool has no live workers or was terminated."""

    __module__ = "multiproc.pool"


class _TaskFailure:
    """Base of the exceptions of tasks that have no result."""

    pid: int | None = None  #: Process id of the worker.
    index: int | None = None  #: Index of the item in the iterable, from 0. ``None`` for a call of ``apply``.
    task: str | None = None  #: Name of the function.
    attempts: int = 1  #: Number of times that the task was begun.
    chunk: range = range(0)  #: Indices of the items without a result: all items of the chunk.

    def __str__(self):
        where = "" if self.index is None else f"item {self.index} of "
        text = f"{where}{self.task or 'the task'}: {self.args[0] if self.args else ''}"
        if self.attempts > 1:
            text += f" (attempt {self.attempts})"
        if len(self.chunk) > 1:
            text += f"; items {self.chunk[0]} to {self.chunk[-1]} have no result"
        return text

    def _locate(self, task, chunk, item):
        self.task = task
        if chunk is not None:
            self.chunk = chunk
            self.index = chunk[min(item, len(chunk)) - 1] if item and chunk else None


class WorkerLost(_TaskFailure, RuntimeError):
    """The worker of a task was killed, crashed or exited before the task was done."""

    __module__ = "multiproc.pool"

    exitcode: int | None = None  #: Exit code of the worker, or the negative number of the signal.

    @property
    def signal(self) -> Signals | int | None:
        """Signal that ended the worker, or ``None`` if it exited by itself."""
        if self.exitcode is None or self.exitcode >= 0:
            return None
        return _signal_of(self.exitcode)


class TaskTimeout(_TaskFailure, TimeoutError):
    """A task took longer than its ``timeout``, and its worker was killed."""

    __module__ = "multiproc.pool"


def _failure(error, pid, item, attempts):
    error.pid, error._item, error.attempts = pid, item, attempts
    return error


def _worker_lost(text, pid, exitcode, item, attempts):
    error = _failure(WorkerLost(text), pid, item, attempts)
    error.exitcode = exitcode
    return error


def _task_timeout(text, pid, item, attempts):
    return _failure(TaskTimeout(text), pid, item, attempts)


def _not_encoded(text):
    return MaybeEncodingError(RuntimeError(text), None)


_no_worker = PoolError


def _locate(error, name, chunk):
    if isinstance(error, _TaskFailure):
        error._locate(name, chunk, error.__dict__.pop("_item", None))
