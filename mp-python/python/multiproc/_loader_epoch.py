"""Epochs of a ``DataLoader``: the iterator over the batches, and the record of delivered batches."""

import copy
import threading

from ._loader_errors import _Skip
from ._loader_sources import _Inline, _Pinned, _Streams, _Workers


class _Progress:
    """Progress of an epoch. Shared by the loader and its iterator."""

    def __init__(self, epoch, seed, start=None):
        self.epoch, self.seed = epoch, seed
        #: State of the sampler and of its generator at the beginning of the epoch.
        self.start = start or {}
        #: Number of the first batch that was not delivered, and the delivered batches after it.
        self.delivered, self.beyond = 0, set()
        self.finished = False
        #: For each worker of a dataset that is iterated: [batches delivered, ended, state].
        self.lanes = None
        #: Worker whose turn is next.
        self.turn = 0

    def deliver(self, token):
        if self.lanes is None:
            if token != self.delivered:
                self.beyond.add(token)
                return
            self.delivered += 1
            while self.delivered in self.beyond:
                self.beyond.remove(self.delivered)
                self.delivered += 1
        else:
            lane, ended, state, turn = token
            self.turn = turn
            if ended:
                self.lanes[lane][1] = True
            else:
                self.delivered += 1
                self.lanes[lane][0] += 1
                self.lanes[lane][2] = state

    def copy(self):
        other = copy.copy(self)
        other.beyond = set(self.beyond)
        other.lanes = copy.deepcopy(self.lanes)
        return other


class _Batches:
    """Iterator over the batches of an epoch."""

    def __init__(self, loader, progress):
        self._loader, self._progress = loader, progress
        self._lock = threading.Lock()
        self._source = None
        self._team = None
        self._yielded = 0
        self._begin()

    def _begin(self):
        loader = self._loader
        if loader.num_workers == 0:
            source = _Inline(loader, self._progress)
        else:
            self._team = loader._hire()
            calls = self._team.begin(loader, self._progress.seed)
            of = _Streams if loader._iterable else _Workers
            source = of(loader, self._progress, self._team, calls)
        if loader._pins():
            source = _Pinned(source, loader.prefetch_factor or 2)
        self._source = source

    def __iter__(self):
        return self

    def __len__(self):
        return len(self._loader)

    def __next__(self):
        with self._lock:
            self._loader._restart(self)
            while True:
                if self._source is None:
                    raise StopIteration
                try:
                    token, batch, error = self._source.next()
                except StopIteration:
                    self._progress.finished = True
                    self._close()
                    raise
                self._progress.deliver(token)
                if error is None:
                    self._yielded += 1
                    self._loader._check_length(self._yielded)
                    return batch
                if not isinstance(error, _Skip):
                    try:
                        raise error
                    finally:
                        # The traceback of the exception refers to this frame.
                        del error

    next = __next__

    def _close(self):
        source, self._source = self._source, None
        if source is not None:
            source.close()
        team, self._team = self._team, None
        if team is not None and self._loader._persistent is False:
            team.close()

    def __del__(self):
        try:
            self._close()
        except AttributeError:
            # The constructor failed.
            pass
