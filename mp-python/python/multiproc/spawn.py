"""``spawn`` and ``start_processes``: the same as ``torch.multiprocessing``'s."""

from __future__ import annotations

import signal
import time
import warnings
from multiprocessing.spawn import get_executable as get_executable
from multiprocessing.spawn import set_executable as set_executable

from . import _multiproc
from ._process_end import signal_of
from .context import freeze_support as freeze_support
from .context import get_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from multiprocessing.process import BaseProcess
    from typing import Any

__all__ = [
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "spawn",
    "start_processes",
]


class ProcessException(Exception):
    """A process of ``spawn`` or ``start_processes`` failed."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid

    @property
    def pid(self) -> int:
        """The former name of ``error_pid``."""
        return self.error_pid

    def __reduce__(self):
        return type(self), (self.msg, self.error_index, self.error_pid)


class ProcessRaisedException(ProcessException):
    """The function raised an exception, whose traceback is in the message."""


class ProcessExitedException(ProcessException):
    """The process was ended by a signal, or exited with a code other than 0."""

    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name

    def __reduce__(self):
        return type(self), (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name)


def _call(fn, index, args, errors):
    try:
        fn(index, *args)
    except (Exception, KeyboardInterrupt) as error:
        import traceback

        errors.put((index, traceback.format_exc()))
        raise SystemExit(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1) from None


class ProcessContext:
    """The processes of ``start_processes(..., join=False)``."""

    def __init__(self, processes: Sequence[BaseProcess], errors: Any) -> None:
        self.processes = processes
        self.sentinels = {process.sentinel: index for index, process in enumerate(processes)}
        self._errors = errors

    def pids(self) -> list[int]:
        """Returns the process ids."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Waits for the processes. Returns ``True`` if all have ended, and ``False`` if the time limit has
        expired.

        If a process has failed, ends the others and raises the exception of the failed process. The others
        get ``grace_period`` seconds (30 by default) to end by themselves, then SIGTERM, and after the same
        time SIGKILL.
        """
        if not self.sentinels:
            return True
        from . import connection

        failed = None
        for sentinel in connection.wait(list(self.sentinels), timeout):
            index = self.sentinels.pop(sentinel)
            process = self.processes[index]
            process.join()
            if process.exitcode != 0:
                failed = index
                break
        if failed is None:
            return not self.sentinels
        if grace_period is not None:
            self._join_all(grace_period)
        self._end(30 if grace_period is None else grace_period)
        self._raise(failed)

    def _end(self, grace_period):
        import logging

        log = logging.getLogger(__name__)
        for process in self.processes:
            if process.is_alive():
                log.warning("Terminating process %s via signal SIGTERM", process.pid)
                process.terminate()
        self._join_all(grace_period)
        for process in self.processes:
            if process.is_alive():
                log.warning("Process %s has not ended: forcefully exiting via SIGKILL", process.pid)
                process.kill()
            process.join()

    def _join_all(self, timeout):
        end = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0, end - time.monotonic()))

    def _raise(self, index):
        process = self.processes[index]
        while not self._errors.empty():
            who, trace = self._errors.get()
            if who == index:
                message = f"\n\n-- Process {index} terminated with the following error:\n{trace}"
                raise ProcessRaisedException(message, index, process.pid)
        code = process.exitcode
        if code >= 0:
            message = f"process {index} terminated with exit code {code}"
            raise ProcessExitedException(message, index, process.pid, code)
        name = getattr(signal_of(code), "name", f"<Unknown signal {-code}>")
        message = f"process {index} terminated with signal {name}"
        raise ProcessExitedException(message, index, process.pid, code, name)


class SpawnContext(ProcessContext):
    """The former name of ``ProcessContext``."""

    def __init__(self, processes: Sequence[BaseProcess], errors: Any) -> None:
        warnings.warn("SpawnContext is renamed to ProcessContext since 1.4 release.", stacklevel=2)
        super().__init__(processes, errors)


def start_processes(
    fn: Callable[..., object],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Starts ``nprocs`` processes that call ``fn(i, *args)``.

    Returns ``None`` when all have ended, or with ``join=False`` a ``ProcessContext``.
    """
    start = get_context(start_method).Process
    errors = _multiproc.Queue()
    processes = []
    try:
        for index in range(nprocs):
            process = start(target=_call, args=(fn, index, args, errors), daemon=daemon)
            process.start()
            processes.append(process)
    except BaseException:
        ProcessContext(processes, errors)._end(30)
        raise
    context = ProcessContext(processes, errors)
    if not join:
        return context
    while not context.join():
        pass
    return None


def spawn(
    fn: Callable[..., object],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Starts ``nprocs`` processes that call ``fn(i, *args)``: see ``start_processes``.

    The start method is always ``spawn``.
    """
    if start_method != "spawn":
        warnings.warn(
            f"spawn() only supports start_method='spawn', not {start_method!r}: use start_processes()",
            FutureWarning,
            stacklevel=2,
        )
    return start_processes(fn, args, nprocs, join, daemon, "spawn")
