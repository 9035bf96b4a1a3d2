"""Datasets of the tests of threads, for this process and for workers. Imports nothing."""

import itertools


class Renewed:
    """The numbers below 12. Each pickling gives other bytes, as if the dataset had changed."""

    versions = itertools.count()

    def __getstate__(self):
        return {"version": next(self.versions)}

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return range(12)[index]


class Stream:
    """The same numbers, without indices."""

    def __iter__(self):
        return iter(range(12))
