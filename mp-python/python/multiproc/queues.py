"""The queue classes, and the exceptions of their calls."""

from queue import Empty, Full

from ._multiproc import JoinableQueue, Lease, Queue, SimpleQueue

__all__ = ["Empty", "Full", "JoinableQueue", "Lease", "Queue", "SimpleQueue"]
