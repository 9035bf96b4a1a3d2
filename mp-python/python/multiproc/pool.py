"""``Pool``: the same as ``multiprocessing.Pool``, with workers that may be killed at any time."""

import collections
import itertools
import os
import signal as _signal
import sys
import threading
import time
import traceback
import types
import warnings
from multiprocessing import context as _context
from multiprocessing import process as _process
from multiprocessing import util as _util
from multiprocessing.pool import ExceptionWithTraceback, MaybeEncodingError, RemoteTraceback, ThreadPool

from . import _multiproc
from ._child import Preparation
from .process import _command, _has_main, _preparation
from .reduction import DupFd

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

INIT = "INIT"
RUN = "RUN"
CLOSE = "CLOSE"
TERMINATE = "TERMINATE"

TimeoutError = _context.TimeoutError


class PoolError(RuntimeError):
    """The task was not run: the pool has no workers that live, or was ended."""


class _TaskFailure:
    """Part of the exceptions of tasks that have no result."""

    pid = None  #: Process id of the worker.
    index = None  #: Index of the item, counted from 0 in the iterable, or ``None`` for a call of ``apply``.
    task = None  #: Name of the function.
    attempts = 1  #: Number of times that the task was begun.
    chunk = range(0)  #: Indices of the items that have no result, since they were in one chunk.

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

    exitcode = None  #: Exit code of the worker, or the negative number of the signal.

    @property
    def signal(self):
        """Signal that ended the worker, or ``None`` if it has exited."""
        if self.exitcode is None or self.exitcode >= 0:
            return None
        try:
            return _signal.Signals(-self.exitcode)
        except ValueError:
            return -self.exitcode


class TaskTimeout(_TaskFailure, TimeoutError):
    """A task took longer than its ``timeout``, and its worker was killed."""


#
# Exceptions made by Rust
#


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


#
# Functions called by workers
#


def _begin(number, start):
    """Prepares this process. ``start`` was unpickled, and with it the preparation of ``__main__``."""
    _, parent, initializer, initargs = start
    _util._close_stdin()
    _process._process_counter = itertools.count(1)
    _process._children = set()
    name = _process.current_process().name
    current = _process.BaseProcess(name=f"{name}-{number + 1}")
    current._identity = (number + 1,)
    current._config["daemon"] = True
    _process._current_process = current
    _process._parent_process = _process._ParentProcess(*parent, os.pidfd_open(parent[1]))
    _process.BaseProcess._after_fork()
    if initializer is not None:
        initializer(*initargs)


def _end():
    """Runs the exit functions of a worker."""
    import atexit

    try:
        _util._exit_function()
        atexit._run_exitfuncs()
    finally:
        threading._shutdown()
        _util._flush_std_streams()


def _exit(error):
    """Ends a worker whose task has called ``sys.exit``. Returns the exit code."""
    code = error.code
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    _end()
    return code or 0


def _trace(error):
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()


def _wrap(error):
    return ExceptionWithTraceback(error, error.__traceback__)


def _unsendable(error, value):
    return MaybeEncodingError(error, value)


def _apply(target):
    function, args, kwds = target
    return function(*args, **kwds)


class AsyncResult:
    """The result of ``Pool.apply_async``."""

    def __init__(self, pool, name, callback=None, error_callback=None):
        self._pool = pool
        self._key = next(pool._keys)
        self._name = name
        self._lock = threading.Lock()
        self._callback, self._error_callback = callback, error_callback
        # Set after the callbacks, by the thread that calls them.
        self._event = threading.Event() if callback or error_callback else None
        self._cache = pool._cache if self._event is None else pool._called
        self._tasks = None
        # Outcomes that are missing.
        self._left = 1
        self._done = False
        self._success = True
        self._value = None
        # Number of the task with this exception.
        self._first = None
        # Numbers of tasks that were pushed after one that can't be pickled, by their tickets.
        self._numbers = {}

    def _start(self, make_tasks, targets):
        """Pushes the tasks. The exception of a target that can't be pickled is the outcome of its task."""
        self._cache[self._key] = self
        has_main = self._pool._has_main
        try:
            self._tasks = tasks = make_tasks()
        except Exception as error:
            self._left = 1
            self._settle(0, False, error)
        else:
            for number, target in enumerate(targets):
                try:
                    ticket = tasks.push(target, has_main)
                except Exception as error:
                    self._settle(number, False, error)
                else:
                    if ticket is None:
                        self._settle(number, False, PoolError("the pool was ended before the task was sent"))
                    elif ticket != number:
                        self._numbers[ticket] = number
            tasks.close()
        if self._event is not None:
            self._pool._notify(self._key)
        return self

    def _chunk(self, number):
        """Returns the indices of the items of a task."""
        return None

    def _store(self, number, value):
        self._value = value

    def _settle(self, number, success, value):
        """Stores the outcome of a task."""
        self._left -= 1
        if success:
            if self._success:
                self._store(number, value)
        else:
            _locate(value, self._name, self._chunk(number))
            if self._success or number < self._first:
                self._success, self._value, self._first = False, value, number
        if self._left <= 0 and self._event is None:
            self._finish()

    def _finish(self):
        self._done = True
        self._cache.pop(self._key, None)
        self._pool = self._tasks = self._callback = self._error_callback = None

    def _collect(self, timeout=None):
        """Takes outcomes until all are there, or the time is over."""
        if self._done:
            return
        if self._event is not None:
            self._event.wait(timeout)
            return
        end = None if timeout is None else time.monotonic() + timeout
        if not self._lock.acquire(timeout=-1 if end is None else min(max(timeout, 0), threading.TIMEOUT_MAX)):
            return
        try:
            while not self._done:
                outcome = self._tasks.next(None if end is None else max(end - time.monotonic(), 0))
                self._settle_next(outcome)
        except TimeoutError:
            pass
        finally:
            self._lock.release()

    def _settle_next(self, outcome):
        if outcome is None:
            # There is always one, but not in a process that was forked from the pool's.
            self._left = 1
            outcome = (0, False, PoolError("the pool belongs to another process"))
        ticket, success, value = outcome
        self._settle(self._numbers.pop(ticket, ticket), success, value)

    def _advance(self, completions):
        """Takes the outcomes that are there. After the last one, calls the callback."""
        if self._done:
            return
        try:
            while self._left > 0:
                self._settle_next(self._tasks.poll(completions, self._key))
        except TimeoutError:
            return
        callback = self._callback if self._success else self._error_callback
        try:
            if callback:
                callback(self._value)
        except Exception:
            # The exception of one callback must not end the others.
            threading.excepthook(threading.ExceptHookArgs([*sys.exc_info(), threading.current_thread()]))
        finally:
            self._finish()
            self._event.set()

    def _is_over(self):
        """Returns ``True`` if nothing but the caller's ``get`` is left to do."""
        return self._event is None and (self._tasks is None or self._tasks.done())

    def ready(self):
        """Returns ``True`` if the call has completed."""
        self._collect(0)
        return self._done

    def successful(self):
        """Returns ``True`` if the call has completed without an exception."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._success

    def wait(self, timeout=None):
        """Waits until the call has completed, or the time is over."""
        self._collect(timeout)

    def get(self, timeout=None):
        """Returns the result, or raises the exception of the call. Raises ``TimeoutError`` if the time is
        over."""
        self._collect(timeout)
        if not self._done:
            raise TimeoutError
        if self._success:
            return self._value
        raise self._value


ApplyResult = AsyncResult


class MapResult(AsyncResult):
    """The results of ``Pool.map_async`` and ``Pool.starmap_async``."""

    def __init__(self, pool, name, items, chunksize, callback=None, error_callback=None):
        super().__init__(pool, name, callback, error_callback)
        self._value = [None] * items
        self._items = range(items)
        self._size = chunksize
        self._left = -(-items // chunksize)
        if items == 0 and self._event is None:
            self._done = True

    def _chunk(self, number):
        return self._items[number * self._size : (number + 1) * self._size]

    def _store(self, number, value):
        begin = number * self._size
        self._value[begin : begin + self._size] = value


def _locate(error, name, chunk):
    if isinstance(error, _TaskFailure):
        error._locate(name, chunk, error.__dict__.pop("_item", None))


class IMapIterator:
    """Iterator over the results of ``Pool.imap``, in the order of the items."""

    _in_order = True

    def __init__(self, pool, name, chunksize):
        self._pool = pool
        self._cache = pool._cache
        self._key = next(pool._keys)
        self._name = name
        self._size = chunksize
        self._tasks = None
        self._error = None
        # Exceptions of chunks that can't be pickled.
        self._failed = {}
        self._values = collections.deque()
        self._lock = threading.Lock()
        # Tasks that may be pushed before their results are taken. No limit after `close`.
        self._room = threading.Semaphore(max(256, 64 * pool._processes))

    def _start(self, tasks, iterable):
        self._tasks = tasks
        self._cache[self._key] = self
        thread = threading.Thread(target=self._feed, args=(self._pool, iterable), daemon=True)
        self._pool._feeders[self._key] = (self, thread)
        thread.start()
        return self

    def _feed(self, pool, iterable):
        """Runs in a thread: takes items and pushes them."""
        try:
            items = iter(iterable)
            while chunk := list(itertools.islice(items, self._size)):
                if pool._state == RUN:
                    self._room.acquire()
                if self._push(chunk) is None:
                    break
        except Exception as error:
            self._error = error
        finally:
            self._tasks.close()
            pool._fed(self._key)

    def _push(self, chunk):
        try:
            return self._tasks.push(chunk, self._pool._has_main)
        except Exception as error:
            # A task without items takes the place of the one that can't be pickled.
            number = self._tasks.push([], True)
            if number is not None:
                self._failed[number] = error
            return number

    def _is_over(self):
        return self._key not in self._pool._feeders and self._tasks.done()

    def __iter__(self):
        return self

    def next(self, timeout=None):
        """Returns the next result. Raises ``TimeoutError`` if the time is over."""
        end = None if timeout is None else time.monotonic() + timeout
        if not self._lock.acquire(timeout=-1 if end is None else min(max(timeout, 0), threading.TIMEOUT_MAX)):
            raise TimeoutError
        try:
            while not self._values:
                outcome = self._tasks.next(None if end is None else max(end - time.monotonic(), 0))
                if outcome is None:
                    self._cache.pop(self._key, None)
                    error, self._error = self._error, None
                    raise error or StopIteration
                self._room.release()
                number, success, value = outcome
                if number in self._failed:
                    raise self._failed.pop(number)
                if not success:
                    begin = number * self._size
                    _locate(value, self._name, range(begin, begin + self._size))
                    raise value
                self._values.extend(value)
            return self._values.popleft()
        finally:
            self._lock.release()

    __next__ = next


class IMapUnorderedIterator(IMapIterator):
    """Iterator over the results of ``Pool.imap_unordered``, in the order of completion."""

    _in_order = False


def _call_callbacks(completions, called):
    """Runs in the thread of the callbacks."""
    while (key := completions.next()) is not None:
        result = called.get(key)
        if result is not None:
            result._advance(completions)
        # Nothing is kept while the thread waits.
        result = None


class _Spawning:
    """What objects that are pickled for a new process ask for."""

    DupFd = DupFd

    @staticmethod
    def duplicate_for_child(fd):
        return fd


class Pool:
    """Processes that run functions.

    Beyond ``multiprocessing.Pool``, a worker may be killed at any time: the exception of its task is
    ``WorkerLost``, and another worker takes its place. Keyword arguments of ``Pool`` set the default of the
    same keyword arguments of the calls:

    - ``timeout``: seconds that an item may take. Then its worker is killed, and the exception is
      ``TaskTimeout``. A chunk of n items may take n times as long.
    - ``retries``: how often a task is begun again whose worker was lost.

    With either, ``map`` sends items one by one unless it gets a ``chunksize``. Others are of the pool:

    - ``max_waiting``: tasks without an outcome. At the limit, calls wait for room.
    - ``start_timeout``: seconds until a worker has run its initializer. Then it is killed and started again.
    - ``name``: of the pool, for messages.
    """

    _wrap_exception = True

    def __init__(
        self,
        processes=None,
        initializer=None,
        initargs=(),
        maxtasksperchild=None,
        context=None,
        *,
        timeout=None,
        retries=0,
        max_waiting=None,
        start_timeout=None,
        name=None,
    ):
        from .context import get_context

        self._state = INIT
        self._ctx = context or get_context()
        # Calls whose results are not taken: those without callbacks, and those with.
        self._cache = {}
        self._called = {}
        self._pruned = 64
        self._feeders = {}
        self._keys = itertools.count()
        self._lock = threading.Lock()
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
        method = self._ctx.get_start_method()
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
        """Forgets the calls whose results nobody waits for, once there are twice as many as there were."""
        if len(self._cache) >= self._pruned:
            for key, result in list(self._cache.items()):
                if result._is_over():
                    self._cache.pop(key, None)
            self._pruned = max(64, 2 * len(self._cache))

    def _options(self, timeout, retries):
        timeout = self._timeout if timeout is None else timeout
        return timeout, self._retries if retries is None else retries

    def _tasks(self, function, star, timeout, retries, in_order=False):
        return self._workers.tasks(
            function,
            star=star,
            has_main=self._has_main,
            timeout=timeout,
            retries=retries,
            in_order=in_order,
        )

    def _notify(self, key):
        """Has the callbacks of a call called, by the thread for it."""
        with self._lock:
            if not self._threads:
                arguments = (self._completions, self._called)
                self._threads.append(threading.Thread(target=_call_callbacks, args=arguments, daemon=True))
                self._threads[0].start()
        self._completions.put(key)

    def _fed(self, key):
        """The last feeder closes a pool that is to be closed."""
        with self._lock:
            self._feeders.pop(key, None)
            if self._state == CLOSE and not self._feeders:
                self._workers.close()

    def apply(self, func, args=(), kwds={}, *, timeout=None, retries=None):
        """Calls ``func(*args, **kwds)`` in a worker, and returns its result."""
        return self.apply_async(func, args, kwds, timeout=timeout, retries=retries).get()

    def apply_async(
        self, func, args=(), kwds={}, callback=None, error_callback=None, *, timeout=None, retries=None
    ):
        """Calls ``func(*args, **kwds)`` in a worker. Returns an ``AsyncResult``."""
        self._check_running()
        self._prune()
        timeout, retries = self._options(timeout, retries)
        result = AsyncResult(self, _name(func), callback, error_callback)

        def tasks():
            return self._workers.tasks(timeout=timeout, retries=retries)

        return result._start(tasks, [(func, args, kwds)])

    def map(self, func, iterable, chunksize=None, *, timeout=None, retries=None):
        """Calls ``func`` for each item, and returns the list of the results."""
        return self._map(func, iterable, False, chunksize, None, None, timeout, retries).get()

    def map_async(
        self,
        func,
        iterable,
        chunksize=None,
        callback=None,
        error_callback=None,
        *,
        timeout=None,
        retries=None,
    ):
        """Calls ``func`` for each item. Returns a ``MapResult``."""
        return self._map(func, iterable, False, chunksize, callback, error_callback, timeout, retries)

    def starmap(self, func, iterable, chunksize=None, *, timeout=None, retries=None):
        """Like ``map``, for items that are the arguments of a call: ``[(1, 2)]`` calls ``func(1, 2)``."""
        return self._map(func, iterable, True, chunksize, None, None, timeout, retries).get()

    def starmap_async(
        self,
        func,
        iterable,
        chunksize=None,
        callback=None,
        error_callback=None,
        *,
        timeout=None,
        retries=None,
    ):
        """Like ``map_async``, for items that are the arguments of a call."""
        return self._map(func, iterable, True, chunksize, callback, error_callback, timeout, retries)

    def _map(self, func, iterable, star, chunksize, callback, error_callback, timeout, retries):
        self._check_running()
        self._prune()
        timeout, retries = self._options(timeout, retries)
        # These are sent in parts, as they are. Arrays travel in shared memory.
        is_array = type(iterable).__module__ == "numpy" and type(iterable).__name__ == "ndarray"
        if type(iterable) not in (list, tuple, range) and not (is_array and iterable.ndim):
            iterable = list(iterable)
        count = len(iterable)
        if chunksize is None:
            chunksize = 1 if timeout or retries else -(-count // (self._processes * 4))
        size = max(int(chunksize), 1)
        result = MapResult(self, _name(func), count, size, callback, error_callback)
        if result._done:
            return result
        limit = timeout and timeout * size
        chunks = (iterable[begin : begin + size] for begin in range(0, count, size))
        return result._start(lambda: self._tasks(func, star, limit, retries), chunks)

    def imap(self, func, iterable, chunksize=1, *, timeout=None, retries=None):
        """Calls ``func`` for each item. Returns an iterator over the results, in the order of the items.

        Items are taken from the iterable by a thread, a few hundred tasks ahead of the results.
        """
        return self._imap(IMapIterator, func, iterable, chunksize, timeout, retries)

    def imap_unordered(self, func, iterable, chunksize=1, *, timeout=None, retries=None):
        """Like ``imap``, but the results are in the order in which they are there."""
        return self._imap(IMapUnorderedIterator, func, iterable, chunksize, timeout, retries)

    def _imap(self, kind, func, iterable, chunksize, timeout, retries):
        self._check_running()
        self._prune()
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize:n}")
        timeout, retries = self._options(timeout, retries)
        limit = timeout and timeout * chunksize
        iterator = kind(self, _name(func), chunksize)
        return iterator._start(self._tasks(func, False, limit, retries, kind._in_order), iterable)

    def pids(self):
        """Returns the process ids of the workers. A worker that is being replaced has none."""
        return [pid for pid in self._workers.pids() if pid]

    def close(self):
        """Accepts no more tasks. The workers end when the others are done."""
        if self._state != RUN:
            return
        with self._lock:
            self._state = CLOSE
            if not self._feeders:
                self._workers.close()
        for iterator, _ in list(self._feeders.values()):
            iterator._room.release()

    def terminate(self):
        """Ends the workers at once. Calls that wait for results raise ``PoolError``."""
        self._state = TERMINATE
        self._terminate()

    def join(self):
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

    def __enter__(self):
        self._check_running()
        return self

    def __exit__(self, exc_type, exc_val, exc_tb):
        self.terminate()

    __class_getitem__ = classmethod(types.GenericAlias)


def _name(function):
    return getattr(function, "__qualname__", None) or repr(function)
