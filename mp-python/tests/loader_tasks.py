"""Datasets and functions of the tests of ``DataLoader``, for this process and for workers."""

import collections
import dataclasses
import os
import random
import subprocess
import sys
import textwrap
import time

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import multiproc as mp

WORKERS = [0, 1, 3]


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return one == other


def ended(pid, limit=10):
    """Returns ``True`` when the process has ended."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] in "ZX":
                    return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def run_program(text, *args, timeout=50, **options):
    path = os.path.dirname(os.path.dirname(mp.__file__))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *args] if isinstance(text, str) else text,
        env=environment,
        timeout=timeout,
        capture_output=True,
        text=True,
        **options,
    )


class Numbers(Dataset):
    """Dataset whose samples are the index and random numbers of each library."""

    def __init__(self, length=37):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(2)


class Once:
    """Acts only the first time, in any process."""

    def __init__(self, path):
        self.path = str(path)

    def first(self):
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Parts(IterableDataset):
    """Divides a range by ``torch.utils.data.get_worker_info()``."""

    def __init__(self, length=23):
        self.length = length

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            yield self.sample(number)

    def sample(self, number):
        return number


class RandomParts(Parts):
    def sample(self, number):
        return number, torch.rand(1)


def make_pairs():
    torch.manual_seed(3)
    return torch.randn(20, 2, 3, 3), torch.randperm(50).repeat(2)[:20]


PIXELS, LABELS = make_pairs()


class Bulk(TensorDataset):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class ErrorDataset(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        raise ValueError(f"bad sample {index}")


class SeedDataset(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.initial_seed()


class SleepDataset(Dataset):
    """One sample never finishes."""

    def __init__(self, size, at, path=None):
        self.size, self.at = size, at
        self.once = path and Once(path)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index == self.at and (self.once is None or self.once.first()):
            self.sleep_in_sample()
        return index

    def sleep_in_sample(self):
        while True:
            time.sleep(60)


class SegfaultDataset(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        import ctypes

        return ctypes.string_at(0)


class InfoDataset(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        ours, theirs = mp.get_worker_info(), torch.utils.data.get_worker_info()
        same = ours.dataset is theirs.dataset and ours.id == theirs.id
        return os.getpid(), ours.id, ours.num_workers, same and ours.dataset is self


class ListDataset(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


Point = collections.namedtuple("Point", ["x", "label"])


@dataclasses.dataclass
class Record:
    pixels: torch.Tensor
    name: str


def fail_in_init(worker):
    raise RuntimeError("error in worker_init_fn")


def set_seed_of_worker(worker):
    mp.get_worker_info().dataset.value = 7 * (worker + 1)


class ValueDataset(Dataset):
    value = None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.value


class AffinityDataset(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(sorted(os.sched_getaffinity(0)))


def pin_to_one_cpu(worker):
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])


class CountingDataset(Dataset):
    """Counts its samples in this process."""

    def __init__(self):
        self.count = 0

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.count += 1
        return self.count


class SlowFirst(Dataset):
    """Sample 0 is made after sample ``until``."""

    def __init__(self, path, until):
        self.path, self.until = str(path), until

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == self.until:
            open(self.path, "w").close()
        while index == 0 and not os.path.exists(self.path):
            time.sleep(0.001)
        return index


class LargeIndexSampler:
    def __iter__(self):
        return iter(torch.arange(1_000_000).view(4, 250_000))

    def __len__(self):
        return 4


class LargeIndexDataset(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index.sum()


class Growing(Dataset):
    size = 8

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


def sort_first(samples):
    return sorted(samples)
