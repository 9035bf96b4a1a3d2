import ctypes
from collections.abc import Callable, Iterable, Sequence
from logging import Logger
from multiprocessing import reduction as reducer
from multiprocessing.context import AuthenticationError as AuthenticationError
from multiprocessing.context import BufferTooShort as BufferTooShort
from multiprocessing.context import ProcessError as ProcessError
from multiprocessing.context import TimeoutError as TimeoutError
from multiprocessing.process import BaseProcess
from typing import Any, Literal, TypeVar

from . import _multiproc, managers, pool, synchronize
from ._multiproc import JoinableQueue as JoinableQueue
from ._multiproc import Lease as Lease
from ._multiproc import LoadError as LoadError
from ._multiproc import PeerLost as PeerLost
from ._multiproc import Pipe as Pipe
from ._multiproc import Queue as Queue
from ._multiproc import SimpleQueue as SimpleQueue
from ._multiproc import __version__ as __version__
from ._multiproc import get_all_sharing_strategies as get_all_sharing_strategies
from ._multiproc import get_sharing_strategy as get_sharing_strategy
from ._multiproc import set_sharing_strategy as set_sharing_strategy
from .arrays import empty as empty
from .arrays import full as full
from .arrays import is_shared as is_shared
from .arrays import share as share
from .arrays import zeros as zeros
from .collate import collate as collate
from .context import Context
from .data_loader import BatchLost as BatchLost
from .data_loader import BatchTimeout as BatchTimeout
from .data_loader import DataLoader as DataLoader
from .data_loader import get_worker_info as get_worker_info
from .managers import ManagerLost as ManagerLost
from .pool import PoolError as PoolError
from .pool import TaskTimeout as TaskTimeout
from .pool import WorkerLost as WorkerLost
from .process import Process as Process
from .typed import TypedQueue as TypedQueue
from .typed import child as child
from .typed import message as message
from .typed import register_schema as register_schema
from .typed import start_guest as start_guest

__all__ = [
    "JoinableQueue",
    "Lease",
    "LoadError",
    "PeerLost",
    "Pipe",
    "Queue",
    "SimpleQueue",
    "get_all_sharing_strategies",
    "get_sharing_strategy",
    "set_sharing_strategy",
    "named",
    "empty",
    "full",
    "is_shared",
    "share",
    "zeros",
    "collate",
    "AuthenticationError",
    "BufferTooShort",
    "ProcessError",
    "TimeoutError",
    "allow_connection_pickling",
    "cpu_count",
    "freeze_support",
    "get_all_start_methods",
    "get_context",
    "get_logger",
    "get_start_method",
    "log_to_stderr",
    "set_executable",
    "set_start_method",
    "Process",
    "active_children",
    "current_process",
    "parent_process",
    "set_forkserver_preload",
    "init_reductions",
    "spawn",
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "start_processes",
    "Array",
    "Barrier",
    "BoundedSemaphore",
    "Condition",
    "Event",
    "Lock",
    "RLock",
    "RawArray",
    "RawValue",
    "Semaphore",
    "Value",
    "ShutDown",
    "Manager",
    "Pool",
    "BatchLost",
    "BatchTimeout",
    "DataLoader",
    "get_worker_info",
    "ManagerLost",
    "PoolError",
    "TaskTimeout",
    "WorkerLost",
    "TypedQueue",
    "child",
    "message",
    "register_schema",
    "start_guest",
]

_T = TypeVar("_T")
_Method = Literal["spawn", "forkserver"]

class ShutDown(Exception): ...

# Processes and contexts

SUBDEBUG: int
SUBWARNING: int

def active_children() -> list[BaseProcess]: ...
def current_process() -> BaseProcess: ...
def parent_process() -> BaseProcess | None: ...
def get_context(method: _Method | None = None) -> Context: ...
def get_start_method(allow_none: bool = False) -> _Method | None: ...
def set_start_method(method: _Method | None, force: bool = False) -> None: ...
def get_all_start_methods() -> list[str]: ...
def set_forkserver_preload(module_names: Iterable[str]) -> None: ...
def set_executable(executable: str) -> None: ...
def freeze_support() -> None: ...
def allow_connection_pickling() -> None: ...
def init_reductions() -> None: ...
def cpu_count() -> int: ...
def get_logger() -> Logger: ...
def log_to_stderr(level: int | str | None = None) -> Logger: ...

# As torch.multiprocessing

class ProcessException(Exception):
    msg: str
    error_index: int
    error_pid: int
    def __init__(self, msg: str, error_index: int, error_pid: int) -> None: ...

class ProcessRaisedException(ProcessException): ...

class ProcessExitedException(ProcessException):
    exit_code: int
    signal_name: str | None
    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None
    ) -> None: ...

class ProcessContext:
    processes: list[BaseProcess]
    sentinels: dict[int, int]
    def __init__(self, processes: Sequence[BaseProcess], errors: Queue) -> None: ...
    def pids(self) -> list[int]: ...
    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool: ...

class SpawnContext(ProcessContext): ...

def start_processes(
    fn: Callable[..., object],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: _Method = "spawn",
) -> ProcessContext | None: ...
def spawn(
    fn: Callable[..., object],
    args: Iterable[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: _Method = "spawn",
) -> ProcessContext | None: ...

# Locks and values

def Lock() -> _multiproc.Lock: ...
def RLock() -> _multiproc.RLock: ...
def Semaphore(value: int = 1) -> _multiproc.Semaphore: ...
def BoundedSemaphore(value: int = 1) -> _multiproc.BoundedSemaphore: ...
def Condition(lock: _multiproc.Lock | _multiproc.RLock | None = None) -> synchronize.Condition: ...
def Event() -> _multiproc.Event: ...
def Barrier(
    parties: int, action: Callable[[], object] | None = None, timeout: float | None = None
) -> synchronize.Barrier: ...
def Value(typecode_or_type: str | type[ctypes._CData], *args: Any, lock: Any = True) -> Any: ...
def Array(
    typecode_or_type: str | type[ctypes._CData], size_or_initializer: int | Sequence[Any], *, lock: Any = True
) -> Any: ...
def RawValue(typecode_or_type: str | type[ctypes._CData], *args: Any) -> Any: ...
def RawArray(
    typecode_or_type: str | type[ctypes._CData], size_or_initializer: int | Sequence[Any]
) -> Any: ...

# Names

def named(obj: _T, name: str) -> _T: ...

# Pools and managers

def Manager() -> managers.SyncManager: ...
def Pool(
    processes: int | None = None,
    initializer: Callable[..., object] | None = None,
    initargs: Iterable[Any] = (),
    maxtasksperchild: int | None = None,
    **options: Any,
) -> pool.Pool: ...
