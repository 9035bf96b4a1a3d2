"""``multiprocessing`` and ``torch.multiprocessing`` over shared memory that survives any kill."""

from ._multiproc import JoinableQueue, Lease, PeerLost, Queue, SimpleQueue
from .context import (
    AuthenticationError,
    BufferTooShort,
    ProcessError,
    TimeoutError,
    get_all_start_methods,
    get_context,
    get_start_method,
    set_start_method,
)
from .process import Process, active_children, current_process, parent_process, set_forkserver_preload
from .spawn import (
    ProcessContext,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    spawn,
    start_processes,
)

try:
    from queue import ShutDown
except ImportError:

    class ShutDown(Exception):
        """The queue was shut down, and is empty."""
