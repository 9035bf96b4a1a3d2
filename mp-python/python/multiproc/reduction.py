"""How objects become messages: reducers that users register, and descriptors."""

import pickle
from multiprocessing import reduction as _reduction

from . import _multiproc

__all__ = ["ForkingPickler", "register"]

ForkingPickler = _reduction.ForkingPickler
register = ForkingPickler.register


class DupFd:
    """A descriptor on its way to a process."""

    def __init__(self, fd):
        self.fd = fd

    def __reduce__(self):
        return _received, (_multiproc.Fd(self.fd),)


class _Received:
    def __init__(self, fd):
        self.fd = fd

    def detach(self):
        return self.fd


def _received(fd):
    return _Received(fd)


def pickler():
    """Returns the class whose picklers write functions: cloudpickle's if it is installed."""
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle.Pickler


def dumps(obj):
    """Returns the pickled bytes of a plain object, without arrays and handles."""
    return pickle.dumps(obj, protocol=5)
