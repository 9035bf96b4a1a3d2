"""Names of the package, including names that are imported at their first use."""

from multiprocessing.context import AuthenticationError as AuthenticationError
from multiprocessing.context import BufferTooShort as BufferTooShort
from multiprocessing.context import ProcessError as ProcessError
from multiprocessing.context import TimeoutError as TimeoutError

from . import connection as connection
from . import managers as managers
from . import pool as pool
from . import queues as queues
from . import shared_memory as shared_memory
from . import sharedctypes as sharedctypes
from . import typed as typed
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
from ._names import named as named
from .arrays import empty as empty
from .arrays import full as full
from .arrays import is_shared as is_shared
from .arrays import share as share
from .arrays import zeros as zeros
from .collate import collate as collate
from .context import default as _default
from .context import get_all_start_methods as get_all_start_methods
from .context import get_context as get_context
from .context import get_start_method as get_start_method
from .context import set_start_method as set_start_method
from .data_loader import BatchLost as BatchLost
from .data_loader import BatchTimeout as BatchTimeout
from .data_loader import DataLoader as DataLoader
from .data_loader import get_worker_info as get_worker_info
from .managers import ManagerLost as ManagerLost
from .pool import PoolError as PoolError
from .pool import TaskTimeout as TaskTimeout
from .pool import WorkerLost as WorkerLost
from .process import Process as Process
from .process import active_children as active_children
from .process import current_process as current_process
from .process import parent_process as parent_process
from .process import set_forkserver_preload as set_forkserver_preload
from .reduction import init_reductions as init_reductions
from .spawn import ProcessContext as ProcessContext
from .spawn import ProcessException as ProcessException
from .spawn import ProcessExitedException as ProcessExitedException
from .spawn import ProcessRaisedException as ProcessRaisedException
from .spawn import SpawnContext as SpawnContext
from .spawn import spawn as spawn
from .spawn import start_processes as start_processes
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

SUBDEBUG: int
SUBWARNING: int

class ShutDown(Exception): ...

allow_connection_pickling = _default.allow_connection_pickling
cpu_count = _default.cpu_count
freeze_support = _default.freeze_support
get_logger = _default.get_logger
log_to_stderr = _default.log_to_stderr
reducer = _default.reducer
set_executable = _default.set_executable

Array = _default.Array
Barrier = _default.Barrier
BoundedSemaphore = _default.BoundedSemaphore
Condition = _default.Condition
Event = _default.Event
Lock = _default.Lock
Manager = _default.Manager
Pool = _default.Pool
RLock = _default.RLock
RawArray = _default.RawArray
RawValue = _default.RawValue
Semaphore = _default.Semaphore
Value = _default.Value
