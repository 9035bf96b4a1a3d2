"""Results of the calls of a pool: ``AsyncResult``, ``MapResult``, and the iterators of ``imap``."""

from __future__ import annotations

import collections
import itertools
import sys
import threading
import time
import types

from ._pool_errors import PoolError, TimeoutError, _locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Generic

    from typing_extensions import TypeVar

    _T = TypeVar("_T", default=Any)
else:
    # Avoids `typing`, which each worker would import.
    Generic, _T = {None: object}, None

INIT = "INIT"
RUN = "RUN"
CLOSE = "CLOSE"
TERMINATE = "TERMINATE"


class AsyncResult(Generic[_T]):
    """The result of ``Pool.apply_async``."""

    __module__ = "multiproc.pool"
    __class_getitem__ = classmethod(types.GenericAlias)

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
        # Number of outcomes that have not arrived.
        self._left = 1
        # `True` when all tasks are pushed.
        self._sent = False
        self._done = False
        self._success = True
        self._value = None
        # Number of the task whose exception is the result.
        self._first = None

    def _start(self, make_tasks, targets):
        """Pushes the tasks, one for each tuple of arguments of ``push``."""
        self._cache[self._key] = self
        try:
            self._send(make_tasks, targets)
        finally:
            self._sent = True
        if self._event is not None:
            self._pool._notify(self._key)
        return self

    def _send(self, make_tasks, targets):
        """Pushes the tasks. The exception of a target that can't be pickled is the outcome of its task."""
        has_main = self._pool._has_main
        try:
            self._tasks = tasks = make_tasks()
        except Exception as error:
            self._left = 1
            self._settle(0, False, error)
        else:
            for number, target in enumerate(targets):
                try:
                    ticket = tasks.push(has_main, *target)
                except Exception as error:
                    self._settle(number, False, error)
                else:
                    if ticket is None:
                        self._settle(number, False, PoolError("the pool was ended before the task was sent"))
            tasks.close()

    def _chunk(self, number):
        """Returns the indices of the items of a task."""
        return None

    def _settle(self, number, success, value):
        """Stores the outcome of a task."""
        self._left -= 1
        if success:
            # The results of a map are already in the list.
            if self._success and value is not None:
                self._value = value
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
        """Takes outcomes until all have arrived, or the time limit has expired."""
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
            # An outcome is missing only in a forked copy of the pool's process.
            self._left = 1
            outcome = (0, False, PoolError("the pool belongs to another process"))
        ticket, success, value = outcome
        # After a target that can't be pickled, tickets are smaller than numbers. The call has failed then.
        self._settle(ticket, success, value)

    def _advance(self, completions):
        """Takes the outcomes that have arrived. After the last one, calls the callback."""
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
        """Returns ``True`` if all outcomes were taken, so that only the caller's ``get`` is missing."""
        # Another thread may take the last outcome meanwhile.
        tasks = self._tasks
        return self._event is None and self._sent and (tasks is None or tasks.done())

    def ready(self) -> bool:
        """Returns ``True`` if the call has completed."""
        self._collect(0)
        return self._done

    def successful(self) -> bool:
        """Returns ``True`` if the call has completed without an exception."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._success

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the call has completed, or the time limit has expired."""
        self._collect(timeout)

    def get(self, timeout: float | None = None) -> _T:
        """Returns the result, or raises the exception of the call. Raises ``TimeoutError`` if the time limit
        has expired."""
        self._collect(timeout)
        if not self._done:
            raise TimeoutError
        if self._success:
            return self._value
        raise self._value


ApplyResult = AsyncResult


class MapResult(AsyncResult[_T]):
    """The results of ``Pool.map_async`` and ``Pool.starmap_async``."""

    __module__ = "multiproc.pool"

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


class IMapIterator(Generic[_T]):
    """Iterator over the results of ``Pool.imap``, in the order of the items."""

    __module__ = "multiproc.pool"
    __class_getitem__ = classmethod(types.GenericAlias)

    _in_order = True

    def __init__(self, pool, name, chunksize):
        self._pool = pool
        self._cache = pool._cache
        self._key = next(pool._keys)
        self._name = name
        self._size = chunksize
        self._tasks = None
        self._error = None
        # Exceptions of chunks that can't be pickled. An outcome may arrive before its number is known.
        self._failed = {}
        self._failing = threading.Lock()
        self._values = collections.deque()
        self._lock = threading.Lock()
        # Tasks that may be pushed before their results are taken. No limit after `close`.
        self._room = threading.Semaphore(max(256, 64 * pool._processes))

    def _start(self, tasks, iterable):
        self._tasks = tasks
        thread = threading.Thread(target=self._feed, args=(self._pool, iterable), daemon=True)
        with self._pool._lock:
            # `close` waits for the feeders, so none may begin after it.
            self._pool._check_running()
            thread.start()
            self._pool._feeders[self._key] = (self, thread)
            # Added after the feeder began: `_prune` drops calls that have no feeder and no task.
            self._cache[self._key] = self
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
            return self._tasks.push(self._pool._has_main, chunk)
        except Exception as error:
            # A task without items replaces the task that can't be pickled.
            with self._failing:
                number = self._tasks.push(True, [])
                if number is not None:
                    self._failed[number] = error
            return number

    def _is_over(self):
        return self._key not in self._pool._feeders and self._tasks.done()

    def __iter__(self) -> Iterator[_T]:
        return self

    def next(self, timeout: float | None = None) -> _T:
        """Returns the next result. Raises ``TimeoutError`` if the time limit has expired."""
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
                with self._failing:
                    error = self._failed.pop(number, None)
                if error is not None:
                    raise error
                if not success:
                    begin = number * self._size
                    _locate(value, self._name, range(begin, begin + self._size))
                    raise value
                self._values.extend(value)
            return self._values.popleft()
        finally:
            self._lock.release()

    __next__ = next


class IMapUnorderedIterator(IMapIterator[_T]):
    """Iterator over the results of ``Pool.imap_unordered``, in the order of completion."""

    __module__ = "multiproc.pool"

    _in_order = False


def _call_callbacks(completions, called):
    """Runs in the thread of the callbacks."""
    while (key := completions.next()) is not None:
        result = called.get(key)
        if result is not None:
            result._advance(completions)
        # The thread keeps no result alive while it waits.
        result = None
