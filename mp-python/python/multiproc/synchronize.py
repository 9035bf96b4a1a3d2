"""Locks, semaphores, events, conditions and barriers between processes, with ``multiprocessing``'s names.

Each of them can be an argument of a process or task, or a part of any message.

==================  ===================================  ================================
class               when its owner is killed             when its owner ends by itself
==================  ===================================  ================================
Lock, RLock         it is released                       it is released
Semaphore           what it acquired returns             nothing: it was used
BoundedSemaphore    what it acquired returns             what it acquired returns
Condition           its place and notification           its place and notification
                    pass to others                       pass to others
Barrier             it breaks at once                    nothing
==================  ===================================  ================================

Any process may release a permit of another process, except for an RLock. Then the owner no longer has the
permit.
"""

from __future__ import annotations

import atexit
import time
import weakref

from ._multiproc import BarrierState, BoundedSemaphore, Event, Lock, RLock, Semaphore, Waiters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    _T = TypeVar("_T")

__all__ = ["Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Event", "Barrier"]

# Largest initial value of a semaphore. ``Semaphore.release`` adds permits up to 8192, or up to the initial
# value if that is larger.
SEM_VALUE_MAX = 1 << 20


# Objects that this process uses.
_semaphores, _barriers = weakref.WeakSet(), weakref.WeakSet()


@atexit.register
def _end():
    """Runs when the process ends by itself: leaves its barriers, and marks its semaphore permits as used."""
    for barrier in list(_barriers):
        barrier._state.leave()
    for semaphore in list(_semaphores):
        semaphore._forget()


class Condition:
    """Condition variable between processes, with a Lock or RLock (by default an RLock of its own)."""

    def __init__(self, lock: Lock | RLock | None = None, *, ctx: Any = None) -> None:
        self._set(RLock() if lock is None else lock, Waiters())

    def _set(self, lock, waiters):
        if not hasattr(lock, "_release_save"):
            raise TypeError(f"a condition needs a Lock or RLock, not {lock!r}")
        self._lock, self._waiters = lock, waiters
        self.acquire, self.release = lock.acquire, lock.release

    def __reduce__(self):
        return _condition, (type(self), self._lock, self._waiters)

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *args: object) -> None:
        return self._lock.__exit__(*args)

    def _give_name(self, name):
        self._waiters._give_name(name)
        if isinstance(self._lock, (Lock, RLock)) and self._lock._given_name() is None:
            self._lock._give_name(name)

    def __repr__(self):
        try:
            waiters = len(self._waiters)
        except RuntimeError:
            waiters = "unknown"
        name = self._waiters._given_name()
        name = f"{name!r}, " if name else ""
        return f"<{type(self).__name__}({name}{self._lock}, {waiters})>"

    def _check_owned(self, text):
        if not self._lock._is_owned():
            raise AssertionError(text)

    def wait(self, timeout: float | None = None) -> bool:
        """Releases the lock, waits for a notification, and acquires the lock again.

        Returns ``False`` if the time limit has expired.
        """
        self._check_owned("must acquire() condition before using wait()")
        return self._waiters.wait(self._lock, timeout)

    def wait_for(self, predicate: Callable[[], _T], timeout: float | None = None) -> _T:
        """Waits until ``predicate()`` is true, or the time limit has expired. Returns its last result."""
        end = None if timeout is None else time.monotonic() + timeout
        while not (result := predicate()):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        """Wakes up to ``n`` threads that wait."""
        self._check_owned("lock is not owned")
        self._waiters.notify(n)

    def notify_all(self) -> None:
        """Wakes all threads that wait."""
        self._check_owned("lock is not owned")
        self._waiters.notify((1 << 63) - 1)


def _condition(cls, lock, waiters):
    condition = cls.__new__(cls)
    condition._set(lock, waiters)
    return condition


class Barrier:
    """Barrier between processes: each of ``parties`` waiters blocks until all have arrived. The last waiter
    calls ``action`` before the others continue. ``timeout`` is the default of ``wait``.

    A process is a party from the moment when it receives the barrier or first waits at it, until it drops the
    barrier or ends by itself. If it is killed, the barrier breaks at once for all parties, until ``reset``.
    """

    def __init__(
        self,
        parties: int,
        action: Callable[[], object] | None = None,
        timeout: float | None = None,
        *,
        ctx: Any = None,
    ) -> None:
        self._set(BarrierState(parties), action, timeout)

    def _set(self, state, action, timeout):
        self._state, self._action, self._timeout = state, action, timeout
        _barriers.add(self)

    def __reduce__(self):
        return _barrier, (type(self), self._state, self._action, self._timeout)

    def _give_name(self, name):
        self._state._give_name(name)

    def __repr__(self):
        try:
            state = "broken" if self.broken else f"waiters={self.n_waiting}/{self.parties}"
        except RuntimeError:
            state = "unknown"
        name = self._state._given_name()
        name = f" {name!r}" if name else ""
        return f"<{type(self).__module__}.{type(self).__qualname__}{name} at {id(self):#x}: {state}>"

    def wait(self, timeout: float | None = None) -> int:
        """Waits until all parties have arrived. Returns an index from 0 to ``parties - 1``, different
        for each party.

        Raises ``threading.BrokenBarrierError`` if the barrier breaks or is reset, a party is killed, or the
        time limit has expired, which breaks the barrier for all.
        """
        return self._state.wait(self._action, self._timeout if timeout is None else timeout)

    def reset(self) -> None:
        """Makes the barrier usable again. Parties that wait get ``threading.BrokenBarrierError``."""
        self._state.reset()

    def abort(self) -> None:
        """Breaks the barrier: parties that wait, and later ones, get ``threading.BrokenBarrierError``."""
        self._state.abort()

    @property
    def parties(self) -> int:
        """Number of parties."""
        return self._state.parties

    @property
    def n_waiting(self) -> int:
        """Number of parties that wait."""
        return self._state.n_waiting

    @property
    def broken(self) -> bool:
        """``True`` if the barrier is broken."""
        return self._state.broken


def _barrier(cls, state, action, timeout):
    barrier = cls.__new__(cls)
    barrier._set(state, action, timeout)
    return barrier
