"""``Pool``: the same as ``multiprocessing.Pool``, with workers that may be killed at any time."""

from __future__ import annotations

import itertools
import os
import threading
import types
import warnings
from multiprocessing import context as _context
from multiprocessing import process as _process
from multiprocessing import util as _util
from multiprocessing.pool import MaybeEncodingError, RemoteTraceback, ThreadPool

from . import _multiproc
from ._child import Preparation
from ._pool_errors import (
    PoolError,
    TaskTimeout,
    TimeoutError,
    WorkerLost,
    _no_worker,
    _not_encoded,
    _task_timeout,
    _worker_lost,
)
from ._pool_results import (
    CLOSE,
    INIT,
    RUN,
    TERMINATE,
    ApplyResult,
    AsyncResult,
    IMapIterator,
    IMapUnorderedIterator,
    MapResult,
    _call_callbacks,
)
# Rust calls these functions through this module.
from ._pool_worker import _apply, _begin, _end, _exit, _trace, _unsendable, _wrap
from .context import get_context
from .process import _command, _has_main, _preparation
from .reduction import DupFd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Any, Self, TypeVar

    _T = TypeVar("_T")

__all__ = [
    "AsyncResult",
    "IMapIterator",
    "IMapUnorderedIterator",
    "MapResult",
    "MaybeEncodingError",
    "Pool",
    "PoolError",
    "RemoteTraceback",
    "TaskTimeout",
    "ThreadPool",
    "WorkerLost",
]


class _Spawning:
    """Substitute for ``Popen`` while objects are pickled for a new process."""

    DupFd = DupFd

    @staticmethod
    def duplicate_for_child(fd):
        return fd

# Largest chunk of a map without a ``chunksize``.
MAX_CHUNKSIZE = 1 << 14


class Pool:
    """Processes that run functions.

    Beyond ``multiprocessing.Pool``, a worker may be killed at any time: the exception of its task is
    ``WorkerLost``, and another worker takes its place. These keyword arguments of ``Pool`` are defaults for
    the same arguments of calls:

    - ``timeout``: seconds that an item may take. Then its worker is killed, and the exception is
      ``TaskTimeout``. A chunk of n items may take n times as long.
    - ``retries``: maximum number of times that a task is run again after its worker was lost.

    With either, ``map`` sends items one by one unless it gets a ``chunksize``. These keyword arguments apply
    to the pool:

    - ``max_waiting``: tasks without an outcome. At the limit, calls wait for room.
    - ``start_timeout``: seconds within which a worker must have run its initializer. After that it is killed
      and started again.
    - ``name``: name of the pool in messages.
    """

    _wrap_exception = True

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        timeout: float | None = None,
        retries: int = 0,
        max_waiting: int | None = None,
        start_timeout: float | None = None,
        name: str | None = None,
    ) -> None:
        self._state = INIT
        self._ctx = context or get_context()
        # Calls whose results were not taken: first the calls without callbacks, then those with callbacks.
        self._cache = {}
        self._called = {}
        self._pruned = 64
        self._feeders = {}
        self._keys = itertools.count()
        # Taken for changes of the state. Reentrant, because a signal handler may end the pool.
        self._lock = threading.RLock()
        self._threads = []
        self._timeout, self._retries = timeout, retries
        if processes is None:
            processes = getattr(os, "process_cpu_count", os.cpu_count)() or 1
        if processes < 1:
            raise ValueError("Number of processes must be at least 1")
        if maxtasksperchild is not None and (not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0):
            raise ValueError("maxtasksperchild must be a positive int or None")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._processes = processes
        self._completions = _multiproc.Completions()
        self._start(initializer, tuple(initargs), maxtasksperchild or 0, max_waiting, start_timeout, name)
        self._terminate = _util.Finalize(
            self,
            Pool._terminate_pool,
            args=(self._workers, self._completions, self._called, self._feeders, self._threads, os.getpid()),
            exitpriority=15,
        )
        self._state = RUN

    def _start(self, initializer, initargs, max_tasks, max_waiting, start_timeout, name):
        # The context may be CPython's, whose `fork` is refused with a reason.
        method = get_context(self._ctx.get_start_method())._name
        prefix = {"spawn": "Spawn", "forkserver": "ForkServer"}[method]
        parent = (_process.current_process().name, os.getpid())
        _context.set_spawning_popen(_Spawning)
        try:
            data = _preparation(name or f"{prefix}PoolWorker")
            self._has_main = _has_main(data)
            start = (Preparation(data, method), parent, initializer, initargs)
            self._workers = _multiproc.Pool(
                self._processes,
                start,
                command=_command(method, data),
                method=method,
                max_tasks=max_tasks,
                max_waiting=max_waiting,
                start_timeout=start_timeout,
                name=name,
                has_main=self._has_main,
            )
        finally:
            _context.set_spawning_popen(None)

    def __del__(self, _warn=warnings.warn, RUN=RUN):
        if getattr(self, "_state", None) == RUN:
            _warn(f"unclosed running multiprocessing pool {self!r}", ResourceWarning, source=self)

    def __repr__(self):
        cls = self.__class__
        return f"<{cls.__module__}.{cls.__qualname__} state={self._state} pool_size={self._processes}>"

    def __reduce__(self):
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")

    def _check_running(self):
        if self._state != RUN:
            raise ValueError("Pool not running")

    def _prune(self):
        """Removes calls whose results are no longer awaited, each time the number of calls has doubled."""
        if len(self._cache) >= self._pruned:
            for key, result in list(self._cache.items()):
                if result._is_over():
                    self._cache.pop(key, None)
            self._pruned = max(64, 2 * len(self._cache))

    def _options(self, timeout, retries):
        timeout = self._timeout if timeout is None else timeout
        return timeout, self._retries if retries is None else retries

    def _tasks(self, function, **options):
        return self._workers.tasks(function, has_main=self._has_main, **options)

    def _notify(self, key):
        """Requests the callbacks of a call from the thread that runs callbacks."""
        with self._lock:
            if not self._threads:
                arguments = (self._completions, self._called)
                self._threads.append(threading.Thread(target=_call_callbacks, args=arguments, daemon=True))
                self._threads[0].start()
        self._completions.put(key)

    def _fed(self, key):
        """Records the end of a feeder. The last feeder closes a pool whose ``close`` was called."""
        with self._lock:
            self._feeders.pop(key, None)
            if self._state == CLOSE and not self._feeders:
                self._workers.close()

    def apply(
        self,
        func: Callable[..., _T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] = {},
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> _T:
        """Calls ``func(*args, **kwds)`` in a worker, and returns its result."""
        return self.apply_async(func, args, kwds, timeout=timeout, retries=retries).get()

    def apply_async(
        self,
        func: Callable[..., _T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] = {},
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> AsyncResult[_T]:
        """Calls ``func(*args, **kwds)`` in a worker. Returns an ``AsyncResult``."""
        self._check_running()
        self._prune()
        timeout, retries = self._options(timeout, retries)
        result = AsyncResult(self, _name(func), callback, error_callback)

        def tasks():
            return self._workers.tasks(timeout=timeout, retries=retries)

        return result._start(tasks, [((func, args, kwds),)])

    def map(
        self,
        func: Callable[[Any], _T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> list[_T]:
        """Calls ``func`` for each item, and returns the list of the results."""
        return self._map(func, iterable, False, chunksize, None, None, timeout, retries).get()

    def map_async(
        self,
        func: Callable[..., _T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> MapResult[list[_T]]:
        """Calls ``func`` for each item. Returns a ``MapResult``."""
        return self._map(func, iterable, False, chunksize, callback, error_callback, timeout, retries)

    def starmap(
        self,
        func: Callable[..., _T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> list[_T]:
        """Like ``map``, for items that are the arguments of a call: ``[(1, 2)]`` calls ``func(1, 2)``."""
        return self._map(func, iterable, True, chunksize, None, None, timeout, retries).get()

    def starmap_async(
        self,
        func: Callable[..., _T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[Any], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> MapResult[list[_T]]:
        """Like ``map_async``, for items that are the arguments of a call."""
        return self._map(func, iterable, True, chunksize, callback, error_callback, timeout, retries)

    def _map(self, func, iterable, star, chunksize, callback, error_callback, timeout, retries):
        self._check_running()
        self._prune()
        timeout, retries = self._options(timeout, retries)
        # Parts of such sequences are sent unchanged. Arrays are sent in shared memory.
        is_array = type(iterable).__module__ == "numpy" and type(iterable).__name__ == "ndarray"
        if type(iterable) not in (list, tuple, range) and not (is_array and iterable.ndim):
            iterable = list(iterable)
        count = len(iterable)
        if chunksize is None:
            # With larger chunks, workers wait before the first chunk and during the last one.
            even = min(-(-count // (self._processes * 4)), MAX_CHUNKSIZE)
            chunksize = 1 if timeout or retries else even
        size = max(int(chunksize), 1)
        result = MapResult(self, _name(func), count, size, callback, error_callback)
        if result._done:
            return result
        limit = timeout and timeout * size
        options = dict(star=star, timeout=limit, retries=retries, results=result._value, chunksize=size)
        chunks = ((iterable, begin, min(begin + size, count)) for begin in range(0, count, size))
        return result._start(lambda: self._tasks(func, **options), chunks)

    def imap(
        self,
        func: Callable[[Any], _T],
        iterable: Iterable[Any],
        chunksize: int = 1,
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> IMapIterator[_T]:
        """Calls ``func`` for each item. Returns an iterator over the results, in the order of the items.

        Items are taken from the iterable by a thread, a few hundred tasks ahead of the results.
        """
        return self._imap(IMapIterator, func, iterable, chunksize, timeout, retries)

    def imap_unordered(
        self,
        func: Callable[[Any], _T],
        iterable: Iterable[Any],
        chunksize: int = 1,
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> IMapUnorderedIterator[_T]:
        """Like ``imap``, but the results are in the order of completion."""
        return self._imap(IMapUnorderedIterator, func, iterable, chunksize, timeout, retries)

    def _imap(self, kind, func, iterable, chunksize, timeout, retries):
        self._check_running()
        self._prune()
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize:n}")
        timeout, retries = self._options(timeout, retries)
        limit = timeout and timeout * chunksize
        iterator = kind(self, _name(func), chunksize)
        tasks = self._tasks(func, timeout=limit, retries=retries, in_order=kind._in_order)
        return iterator._start(tasks, iterable)

    def pids(self) -> list[int]:
        """Returns the process ids of the workers. A worker that is being replaced has none."""
        return [pid for pid in self._workers.pids() if pid]

    def close(self) -> None:
        """Closes the pool to new tasks. Workers exit after the submitted tasks."""
        with self._lock:
            if self._state != RUN:
                return
            self._state = CLOSE
            if not self._feeders:
                self._workers.close()
        for iterator, _ in list(self._feeders.values()):
            iterator._room.release()

    def terminate(self) -> None:
        """Ends the workers at once. Calls that wait for results raise ``PoolError``."""
        with self._lock:
            self._state = TERMINATE
        self._terminate()

    def join(self) -> None:
        """Waits for the end of the workers. ``close`` or ``terminate`` must have been called."""
        if self._state == RUN:
            raise ValueError("Pool is still running")
        if self._state not in (CLOSE, TERMINATE):
            raise ValueError("In unknown state")
        if self._state == CLOSE:
            for _, thread in list(self._feeders.values()):
                thread.join()
        self._workers.join()
        self._end_callbacks(self._completions, self._threads)

    @staticmethod
    def _end_callbacks(completions, threads):
        completions.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    @staticmethod
    def _terminate_pool(workers, completions, called, feeders, threads, owner):
        if os.getpid() != owner:
            return
        for result in list(called.values()):
            result._callback = result._error_callback = None
        workers.terminate()
        for iterator, _ in list(feeders.values()):
            iterator._tasks.close()
            iterator._room.release()
        workers.join()
        Pool._end_callbacks(completions, threads)

    def __enter__(self) -> Self:
        self._check_running()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.terminate()

    __class_getitem__ = classmethod(types.GenericAlias)


def _name(function):
    return getattr(function, "__qualname__", None) or repr(function)
