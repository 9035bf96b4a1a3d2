"""``multiprocessing`` and ``torch.multiprocessing`` over shared memory that survives any kill."""

from ._multiproc import (
    JoinableQueue,
    Lease,
    LoadError,
    PeerLost,
    Pipe,
    Queue,
    SimpleQueue,
    __version__,
    get_all_sharing_strategies,
    get_sharing_strategy,
    set_sharing_strategy,
)
from ._names import named
from .arrays import empty, full, is_shared, share, zeros
from .collate import collate
from .context import default as _default
from .context import (
    AuthenticationError,
    BufferTooShort,
    ProcessError,
    TimeoutError,
    allow_connection_pickling,
    cpu_count,
    freeze_support,
    get_all_start_methods,
    get_context,
    get_logger,
    get_start_method,
    log_to_stderr,
    reducer,
    set_executable,
    set_start_method,
)
from .process import Process, active_children, current_process, parent_process, set_forkserver_preload
from .reduction import init_reductions
from .spawn import (
    ProcessContext,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnContext,
    spawn,
    start_processes,
)

Array = _default.Array
Barrier = _default.Barrier
BoundedSemaphore = _default.BoundedSemaphore
Condition = _default.Condition
Event = _default.Event
Lock = _default.Lock
RLock = _default.RLock
RawArray = _default.RawArray
RawValue = _default.RawValue
Semaphore = _default.Semaphore
Value = _default.Value

try:
    from queue import ShutDown
except ImportError:

    class ShutDown(Exception):
        """The queue was shut down, and is empty."""


Manager = _default.Manager
Pool = _default.Pool

_LAZY = {
    "BatchLost": "data_loader",
    "BatchTimeout": "data_loader",
    "DataLoader": "data_loader",
    "get_worker_info": "data_loader",
    "ManagerLost": "managers",
    "PoolError": "pool",
    "TaskTimeout": "pool",
    "WorkerLost": "pool",
    "TypedQueue": "typed",
    "child": "typed",
    "message": "typed",
    "register_schema": "typed",
    "start_guest": "typed",
}
_MODULES = {"connection", "managers", "pool", "queues", "shared_memory", "sharedctypes", "typed"}
# Submodules are not in the list, as in `multiprocessing`.
__all__ = [
    name
    for name in [*globals(), *_LAZY]
    if not name.startswith("_") and not hasattr(globals().get(name), "__spec__")
]


def __getattr__(name):
    # Imported at their first use, so that workers that need none of these names start faster.
    from importlib import import_module

    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in ("SUBDEBUG", "SUBWARNING"):
        return getattr(import_module("multiprocessing"), name)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    return value


def __dir__():
    return [*{*globals(), *_LAZY, *_MODULES}]
