"""``DataLoader``: scenarios of torch's ``test_dataloader.py``, order, deaths, time-outs and states."""

import collections
import dataclasses
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

import multiproc as mp  # noqa: E402
from multiproc import _multiproc  # noqa: E402

WORKERS = [0, 1, 3]


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return one == other


def is_shared(tensor):
    storage = tensor.untyped_storage()
    return _multiproc._contains(storage.data_ptr(), storage.nbytes())


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
    """The number itself, and random numbers of each library."""

    def __init__(self, length=37):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(2)


class Once:
    """Does something the first time only, in whatever process."""

    def __init__(self, path):
        self.path = str(path)

    def first(self):
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class KilledOnce(Numbers):
    def __init__(self, path, at):
        super().__init__()
        self.once, self.at = Once(path), at

    def __getitem__(self, index):
        if index == self.at and self.once.first():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Poisoned(Numbers):
    """One sample kills its process, one raises."""

    def __init__(self, kills=5, raises=9):
        super().__init__(16)
        self.kills, self.raises = kills, raises

    def __getitem__(self, index):
        if index == self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == self.raises:
            raise KeyError(f"no sample {index}")
        return index


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


class PartsKilledOnce(RandomParts):
    def __init__(self, path, at):
        super().__init__()
        self.once, self.at = Once(path), at

    def sample(self, number):
        if number == self.at and self.once.first():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().sample(number)


class StatefulParts(IterableDataset):
    """Its iterator has a state, and counts the samples that it draws from its begin."""

    def __init__(self, length=23):
        self.length = length

    def __iter__(self):
        info = mp.get_worker_info()
        return StatefulIterator(self.length, info.id if info else 0, info.num_workers if info else 1)


class StatefulIterator:
    def __init__(self, length, at, step):
        self.length, self.at, self.step, self.drawn = length, at, step, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= self.length:
            raise StopIteration
        self.at += self.step
        self.drawn += 1
        return self.at - self.step, self.drawn

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


# Scenarios of torch.


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
    """One sample takes for ever."""

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


class TestTorchDataLoader:
    data = TensorDataset(PIXELS, LABELS)

    def check_sequential(self, loader):
        size = loader.batch_size
        count = 0
        for i, (pixels, labels) in enumerate(loader):
            assert torch.equal(pixels, PIXELS[i * size : (i + 1) * size])
            assert torch.equal(labels, LABELS[i * size : (i + 1) * size])
            count += 1
        assert count == len(loader) == -(-20 // size)

    def check_shuffle(self, loader):
        found = torch.cat([labels for _, labels in loader])
        assert sorted(found.tolist()) == sorted(LABELS.tolist())
        assert found.tolist() != LABELS.tolist()
        for pixels, labels in loader:
            for one, label in zip(pixels, labels, strict=True):
                assert any(torch.equal(one, PIXELS[i]) for i in (LABELS == label).nonzero().flatten())

    def test_sequential_nonbatch(self):
        loader = mp.DataLoader(self.data, batch_size=None)
        for i, (pixels, label) in enumerate(loader):
            assert torch.equal(pixels, PIXELS[i]) and label == LABELS[i]
        assert i == 19

    def test_sequential_batch(self):
        self.check_sequential(mp.DataLoader(self.data))
        self.check_sequential(mp.DataLoader(self.data, batch_size=3))

    def test_sequential_workers(self):
        self.check_sequential(mp.DataLoader(self.data, num_workers=3))
        self.check_sequential(mp.DataLoader(self.data, batch_size=3, num_workers=3))

    @pytest.mark.parametrize("workers", [0, 2])
    def test_bulk_loading_nobatch(self, workers):
        self.check_sequential(mp.DataLoader(Bulk(PIXELS, LABELS), batch_size=2, num_workers=workers))

    def test_shuffle_batch(self):
        self.check_shuffle(mp.DataLoader(self.data, batch_size=3, shuffle=True))

    def test_shuffle_batch_workers(self):
        self.check_shuffle(mp.DataLoader(self.data, batch_size=3, shuffle=True, num_workers=2))

    def test_shuffle_batch_workers_prefetch(self):
        self.check_shuffle(
            mp.DataLoader(self.data, batch_size=2, shuffle=True, num_workers=2, prefetch_factor=3)
        )

    @pytest.mark.parametrize("workers", [0, 2])
    def test_shuffle_reproducibility(self, workers):
        def order(loader_class, **options):
            generator = torch.Generator().manual_seed(11)
            loader = loader_class(
                range(30), batch_size=4, shuffle=True, num_workers=workers, generator=generator, **options
            )
            return [[batch.tolist() for batch in loader] for _ in range(2)]

        assert order(mp.DataLoader) == order(torch.utils.data.DataLoader)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_sampler(self, workers):
        loader = mp.DataLoader(range(20), 4, sampler=[3, 1, 4, 1, 5, 9, 2, 6], num_workers=workers)
        assert [batch.tolist() for batch in loader] == [[3, 1, 4, 1], [5, 9, 2, 6]]
        assert len(loader) == 2

    @pytest.mark.parametrize("workers", [0, 2])
    def test_batch_sampler(self, workers):
        batches = [(0, 1), (2, 3, 4), (5, 6), (7,)]
        loader = mp.DataLoader(range(20), batch_sampler=batches, num_workers=workers)
        assert [tuple(batch.tolist()) for batch in loader] == batches
        sampler = BatchSampler(SequentialSampler(range(5)), 2, drop_last=True)
        assert [b.tolist() for b in mp.DataLoader(range(5), batch_sampler=sampler)] == [[0, 1], [2, 3]]

    def test_random_sampler(self):
        sampler = RandomSampler(range(9), replacement=True, num_samples=50)
        torch.manual_seed(5)
        ours = [b.tolist() for b in mp.DataLoader(range(9), 7, sampler=sampler)]
        torch.manual_seed(5)
        theirs = [b.tolist() for b in torch.utils.data.DataLoader(range(9), 7, sampler=sampler)]
        assert ours == theirs

    def test_len(self):
        assert len(mp.DataLoader(range(20))) == 20
        assert len(mp.DataLoader(range(20), 3)) == 7
        assert len(mp.DataLoader(range(20), 3, drop_last=True)) == 6
        assert len(mp.DataLoader(range(20), None)) == 20
        assert len(iter(mp.DataLoader(range(20), 3))) == 7

    def test_iterabledataset_len(self):
        class WithLength(Parts):
            def __len__(self):
                return 10

        assert len(mp.DataLoader(WithLength(), batch_size=3)) == 4
        assert len(mp.DataLoader(WithLength(), batch_size=3, drop_last=True)) == 3
        with pytest.raises(TypeError):
            len(mp.DataLoader(Parts()))
        loader = mp.DataLoader(WithLength(), batch_size=5)
        assert len(loader) == 2
        with pytest.warns(UserWarning, match="Length of IterableDataset"):
            assert len(list(loader)) == 5

    @pytest.mark.parametrize("workers", WORKERS)
    @pytest.mark.parametrize(
        "options", [{}, {"batch_size": None}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}]
    )
    def test_iterable_style_dataset(self, workers, options):
        ours = [torch.as_tensor(b).tolist() for b in mp.DataLoader(Parts(), num_workers=workers, **options)]
        size = options.get("batch_size", 1)
        lanes = [list(range(lane, 23, workers or 1)) for lane in range(workers or 1)]
        if size is not None:
            lanes = [[lane[i : i + size] for i in range(0, len(lane), size)] for lane in lanes]
            if options.get("drop_last"):
                lanes = [[batch for batch in lane if len(batch) == size] for lane in lanes]
        rounds = itertools.zip_longest(*lanes)
        assert ours == [batch for turn in rounds for batch in turn if batch is not None]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_chain_iterable_style_dataset(self, workers):
        chain = ChainDataset([Parts(5), Parts(4)])
        found = torch.cat(list(mp.DataLoader(chain, 2, num_workers=workers)))
        assert sorted(found.tolist()) == sorted([*range(5), *range(4)])

    def test_builtin_collection_conversion(self):
        for collection in (list, tuple):
            data = ListDataset([collection(range(i, i + 3)) for i in range(4)])
            batches = list(mp.DataLoader(data, 2, num_workers=1))
            assert all(type(batch) is list for batch in batches)
            assert [c.tolist() for c in batches[0]] == [[0, 1], [1, 2], [2, 3]]
            alone = list(mp.DataLoader(data, None, num_workers=1))
            assert alone == [list(sample) for sample in data.samples]

    def test_invalid_ctor_args_combinations(self):
        def refuses(message, *args, error=ValueError, **options):
            with pytest.raises(error, match=message):
                mp.DataLoader(*args, **options)

        data = range(4)
        refuses("num_workers option should be non-negative", data, num_workers=-1)
        refuses("timeout option should be non-negative", data, timeout=-1)
        refuses("batch_sampler option is mutually exclusive", data, batch_size=11, batch_sampler=[[1]])
        refuses("batch_sampler option is mutually exclusive", data, shuffle=True, batch_sampler=[[1]])
        refuses("sampler option is mutually exclusive with shuffle", data, shuffle=True, sampler=[1])
        refuses("disables auto-batching", data, batch_size=None, drop_last=True)
        refuses("positive integer value", data, batch_size=0)
        refuses("only be specified in multiprocessing", data, prefetch_factor=2)
        refuses("needs num_workers > 0", data, persistent_workers=True)
        refuses("can only be used with multi-process", data, multiprocessing_context="spawn")
        refuses("unspecified shuffle option", Parts(), shuffle=True)
        refuses("unspecified sampler option", Parts(), sampler=[1])
        refuses("unspecified batch_sampler option", Parts(), batch_sampler=[[1]])
        refuses("cannot find context", data, num_workers=1, multiprocessing_context="bad")
        refuses("valid context object", data, num_workers=1, multiprocessing_context=7, error=TypeError)
        refuses("forkserver", data, num_workers=1, multiprocessing_context="fork")

    @pytest.mark.parametrize("context", ["spawn", "forkserver", mp.get_context("forkserver")])
    @pytest.mark.deadline(120)
    def test_multiprocessing_contexts(self, context):
        loader = mp.DataLoader(range(9), 4, num_workers=1, multiprocessing_context=context)
        assert torch.cat(list(loader)).tolist() == list(range(9))

    def test_large_sampler_indices(self):
        loader = mp.DataLoader(LargeIndexDataset(), None, sampler=LargeIndexSampler(), num_workers=2)
        total = 0
        for one in loader:
            total += int(one)
        assert total == 999_999 * 500_000

    @pytest.mark.parametrize("workers", [0, 2])
    def test_growing_dataset(self, workers):
        data = Growing()
        loader = mp.DataLoader(data, num_workers=workers)
        assert len(list(loader)) == len(loader) == 8
        data.size = 12
        assert len(list(loader)) == len(loader) == 12

    def test_multiple_dataloaders(self):
        one = iter(mp.DataLoader(range(10), 2, num_workers=2))
        other = iter(mp.DataLoader(range(10, 20), 2, num_workers=2))
        for i in range(5):
            assert next(one).tolist() == [2 * i, 2 * i + 1]
            assert next(other).tolist() == [10 + 2 * i, 11 + 2 * i]

    def test_multiple_iterators_of_one_loader(self):
        for data in (range(12), Parts(12)):
            loader = mp.DataLoader(data, 3, num_workers=2)
            for one, other in zip(loader, loader, strict=True):
                assert one.tolist() == other.tolist()

    def test_segfault(self):
        loader = mp.DataLoader(SegfaultDataset(), num_workers=1, retries=0)
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) is killed by signal: SIGSEGV"):
            next(iter(loader))

    def test_no_segfault(self):
        torch.set_num_threads(4)
        assert len(list(mp.DataLoader(torch.randn(50, 400, 400), 10, num_workers=2))) == 5

    def test_timeout(self):
        loader = mp.DataLoader(SleepDataset(8, 3), 2, num_workers=1, timeout=2)
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        with pytest.raises(RuntimeError, match="DataLoader timed out after 2 seconds") as raised:
            next(iterator)
        error = raised.value
        assert isinstance(error, TimeoutError)
        assert (error.batch, error.index) == (1, 3)
        assert error.pid in loader.pids() and str(error.pid) in str(error)
        assert "sleep_in_sample" in error.stack and "test_data_loader.py" in error.stack

    def test_error(self):
        with pytest.raises(ValueError, match="bad sample 0"):
            list(mp.DataLoader(ErrorDataset(5)))

    def test_error_workers(self):
        with pytest.raises(ValueError, match="bad sample 0") as raised:
            list(mp.DataLoader(ErrorDataset(5), 2, num_workers=2))
        cause = raised.value.__cause__
        assert "Caught ValueError in DataLoader worker process" in str(cause)
        assert "in __getitem__" in str(cause) and "test_data_loader.py" in str(cause)
        assert (cause.batch, cause.index) == (0, 0)

    @pytest.mark.parametrize("data", [range(5), Parts(5)])
    def test_error_in_init(self, data):
        loader = mp.DataLoader(data, num_workers=2, worker_init_fn=fail_in_init)
        with pytest.raises(RuntimeError, match="error in worker_init_fn"):
            list(loader)

    def test_worker_seed(self):
        seeds = [int(seed) for seed in mp.DataLoader(SeedDataset(20), num_workers=3)]
        assert len(set(seeds)) == 20

    @pytest.mark.parametrize("workers", WORKERS)
    def test_worker_seed_reproducibility(self, workers):
        def seeds():
            generator = torch.Generator().manual_seed(42)
            loader = mp.DataLoader(SeedDataset(10), num_workers=workers, generator=generator)
            return [int(seed) for seed in loader]

        assert seeds() == seeds()

    def test_multi_epochs_reproducibility(self):
        def epochs():
            torch.manual_seed(9)
            loader = mp.DataLoader(Numbers(), 5, shuffle=True, num_workers=2)
            return [list(loader) for _ in range(3)]

        one, other = epochs(), epochs()
        assert equal(one, other)
        assert not equal(one[0], one[1])

    def test_worker_init_fn(self):
        loader = mp.DataLoader(ValueDataset(), num_workers=2, worker_init_fn=set_seed_of_worker)
        assert {int(value) for value in loader} <= {7, 14}

    def test_get_worker_info(self):
        assert mp.get_worker_info() is None
        for pid, number, count, same in mp.DataLoader(InfoDataset(), num_workers=2):
            assert int(pid) != os.getpid() and int(number) in (0, 1) and int(count) == 2 and bool(same)
        assert mp.get_worker_info() is None and torch.utils.data.get_worker_info() is None

    def test_partial_workers(self):
        loader = mp.DataLoader(range(2), num_workers=3)
        assert [int(one) for one in loader] == [0, 1]

    @pytest.mark.parametrize("how", ["worker_kill", "loader_error", "early_exit", "none"])
    def test_proper_exit(self, how, tmp_path):
        program = tmp_path / "program.py"
        program.write_text(
            textwrap.dedent(f"""
            import multiproc as mp, os, signal, sys
            if __name__ == "__main__":
                loader = mp.DataLoader(range(100), num_workers=2)
                iterator = iter(loader)
                next(iterator)
                print(*loader.pids(), flush=True)
                if {how!r} == "worker_kill":
                    os.kill(loader.pids()[0], signal.SIGKILL)
                    assert [one.item() for one in iterator] == list(range(1, 100))
                if {how!r} == "loader_error":
                    raise ValueError("of the loader")
                if {how!r} == "none":
                    assert len(list(iterator)) == 99
            """)
        )
        result = run_program([sys.executable, str(program)])
        assert result.returncode == (how == "loader_error"), result.stderr
        assert how == "loader_error" or "Traceback" not in result.stderr
        for pid in result.stdout.split():
            assert ended(pid)

    def test_default_collate_dtype(self):
        assert equal(mp.collate([1, 2, 3]), torch.tensor([1, 2, 3]))
        assert equal(mp.collate([1.0, 2.0]), torch.tensor([1.0, 2.0], dtype=torch.float64))
        assert equal(mp.collate([True, False]), torch.tensor([True, False]))
        assert mp.collate(["a", "b"]) == ["a", "b"]

    def test_default_collate_bad_sequence_type(self):
        with pytest.raises(RuntimeError, match="equal size"):
            mp.collate([["X"], ["X", "X"]])

    def test_default_collate_bad_numpy_types(self):
        with pytest.raises(TypeError):
            mp.collate([np.array(["a"]), np.array(["b"])])
        with pytest.raises(TypeError):
            mp.collate([np.array([object()], dtype=object)])

    def test_default_collate_sequence_dont_keep_type(self):
        assert mp.collate([range(2), range(2)])[1].tolist() == [1, 1]

    @pytest.mark.parametrize(
        "samples",
        [
            [torch.arange(6).view(2, 3).t(), torch.zeros(3, 2, dtype=torch.int64)],
            [torch.tensor(1.5), torch.tensor(2.5)],
            [torch.zeros(0, 2), torch.zeros(0, 2)],
            [torch.ones(3).bfloat16(), torch.zeros(3).bfloat16()],
            [torch.ones(2, dtype=torch.complex64)] * 2,
            [np.ones((2, 2), dtype=np.float32), np.zeros((2, 2), dtype=np.float32)],
            [np.float32(1), np.float32(2)],
            [np.array(1), np.array(2)],
            [np.arange(6)[::2], np.arange(3)],
            [{"a": 1, "b": [2.0, 5]}, {"a": 3, "b": [4.0, 6]}],
            [Point(torch.ones(2), 1), Point(torch.zeros(2), 2)],
            [(1, (2, 3)), (4, (5, 6))],
            [collections.OrderedDict(a=1), collections.OrderedDict(a=2)],
            [b"one", b"two"],
        ],
    )
    def test_collate_gives_types_of_torch(self, samples):
        ours, theirs = mp.collate(samples), default_collate(samples)
        assert type(ours) is type(theirs) and equal(ours, theirs)

    def test_collate_copies_negative_strides(self):
        assert mp.collate([np.arange(6)[::-2], np.arange(3)]).tolist() == [[5, 3, 1], [0, 1, 2]]

    def test_collate_dataclass_keeps_its_type(self):
        batch = mp.collate([Record(torch.ones(2), "a"), Record(torch.zeros(2), "b")])
        assert type(batch) is Record and batch.name == ["a", "b"]
        assert batch.pixels.tolist() == [[1, 1], [0, 0]]

    def test_numpy(self):
        batch = next(iter(mp.DataLoader(np.ones((10, 10)), 5, num_workers=1)))
        assert isinstance(batch, torch.DoubleTensor) and batch.shape == (5, 10)

    def test_distributed_sampler(self):
        data = range(10)
        for epoch in range(2):
            found = []
            for rank in range(2):
                sampler = DistributedSampler(data, 2, rank, seed=4)
                sampler.set_epoch(epoch)
                found.append(torch.cat(list(mp.DataLoader(data, 2, sampler=sampler, num_workers=1))).tolist())
            assert sorted(found[0] + found[1]) == list(data)

    def test_duplicating_data_with_drop_last(self):
        loader = mp.DataLoader(range(10), 4, num_workers=3, drop_last=True)
        assert torch.cat(list(loader)).tolist() == list(range(8))

    def test_concat_dataset_and_subset(self):
        data = ConcatDataset([Subset(range(10), [5, 6]), range(20, 23)])
        assert torch.cat(list(mp.DataLoader(data, 2, num_workers=2))).tolist() == [5, 6, 20, 21, 22]

    def test_many_batches_held_need_no_descriptors(self):
        loader = mp.DataLoader(torch.zeros(300, 1000), num_workers=1)
        before = len(os.listdir("/proc/self/fd"))
        batches = list(loader)
        assert len(os.listdir("/proc/self/fd")) <= before + 20
        assert len(batches) == 300

    def test_set_affinity_in_worker_init(self):
        loader = mp.DataLoader(AffinityDataset(), num_workers=2, worker_init_fn=pin_to_one_cpu)
        assert all(len(one[0]) == 1 for one in loader)


class TestTorchDictDataLoader:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_sequential_batch(self, workers):
        data = ListDataset([{"tensor": torch.full((4, 2), i), "number": i} for i in range(10)])
        for i, batch in enumerate(mp.DataLoader(data, 2, num_workers=workers)):
            assert set(batch) == {"tensor", "number"}
            assert batch["number"].tolist() == [2 * i, 2 * i + 1]
            assert batch["tensor"].shape == (2, 4, 2) and batch["tensor"][1, 0, 0] == 2 * i + 1


class TestTorchStringDataLoader:
    def test_shuffle_workers(self):
        data = ListDataset([(f"name {i}", i) for i in range(10)])
        for names, numbers in mp.DataLoader(data, 2, shuffle=True, num_workers=2):
            assert names == [f"name {i}" for i in numbers.tolist()]


class TestTorchNamedTupleDataLoader:
    def test_dataloader_with_namedtuple(self):
        data = ListDataset([Point(float(i), f"{i}") for i in range(4)])
        for batch in mp.DataLoader(data, 2, num_workers=1):
            assert type(batch) is Point and batch.label == [f"{int(x)}" for x in batch.x]


class TestTorchDataLoaderPersistentWorkers:
    def test_dataset_not_reset(self):
        loader = mp.DataLoader(CountingDataset(), num_workers=1, persistent_workers=True)
        assert [int(one) for _ in range(2) for one in loader] == list(range(1, 9))

    def test_persistent_workers_are_the_same(self):
        loader = mp.DataLoader(range(8), num_workers=2)
        list(loader)
        pids = loader.pids()
        list(loader)
        assert loader.pids() == pids and len(pids) == 2

    def test_workers_are_new_without_persistence(self):
        loader = mp.DataLoader(CountingDataset(), num_workers=1, persistent_workers=False)
        iterator = iter(loader)
        next(iterator)
        pids = loader.pids()
        del iterator
        assert all(map(ended, pids))
        assert [int(one) for _ in range(2) for one in loader] == [1, 2, 3, 4, 1, 2, 3, 4]

    def test_changed_dataset_reaches_the_workers(self):
        data = ListDataset([1, 2, 3])
        loader = mp.DataLoader(data, num_workers=1)
        assert [int(one) for one in loader] == [1, 2, 3]
        data.samples = [4, 5]
        assert [int(one) for one in loader] == [4, 5]

    def test_changed_tensor_reaches_the_workers(self):
        data = TensorDataset(torch.zeros(3))
        loader = mp.DataLoader(data, 3, num_workers=1)
        assert next(iter(loader))[0].tolist() == [0, 0, 0]
        data.tensors[0][1] = 5
        assert next(iter(loader))[0].tolist() == [0, 5, 0]

    def test_early_exit(self):
        loader = mp.DataLoader(range(1000), num_workers=2)
        for _ in range(3):
            for number, one in enumerate(loader):
                assert int(one) == number
                if number == 4:
                    break
        pids = loader.pids()
        del loader
        assert all(map(ended, pids))


class TestTorchOutOfOrderDataLoader:
    def test_in_order_index_ds(self, tmp_path):
        loader = mp.DataLoader(SlowFirst(tmp_path / "go", 2), num_workers=2, prefetch_factor=3)
        assert [int(one) for one in loader] == list(range(6))

    def test_out_of_order_index_ds(self, tmp_path):
        data = SlowFirst(tmp_path / "go", 2)
        loader = mp.DataLoader(data, num_workers=2, prefetch_factor=3, in_order=False)
        found = [int(one) for one in loader]
        assert found[0] != 0 and sorted(found) == list(range(6))

    def test_out_of_order_iterable_ds(self):
        loader = mp.DataLoader(Parts(), 2, num_workers=3, in_order=False)
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(23))


# Order, and what depends on it.


@pytest.mark.parametrize("options", [{}, {"collate_fn": default_collate}, {"shuffle": True}])
def test_batches_are_equal_for_any_workers(options):
    def epochs(workers, **more):
        loader = mp.DataLoader(Numbers(), 5, seed=17, num_workers=workers, **options, **more)
        return [list(loader) for _ in range(2)]

    expected = epochs(0)
    assert not equal(expected[0], expected[1])
    for workers in (1, 3):
        assert equal(epochs(workers), expected)
    unordered = epochs(3, in_order=False)
    for one, other in zip(unordered, expected, strict=True):
        one, other = (sorted(epoch, key=lambda batch: batch[0].tolist()) for epoch in (one, other))
        assert equal(one, other)


def test_iterable_is_equal_for_zero_and_one_worker():
    one, other = (list(mp.DataLoader(RandomParts(), 4, seed=3, num_workers=n)) for n in (0, 1))
    assert [batch[0].tolist() for batch in one] == [batch[0].tolist() for batch in other]
    assert equal(one, other)


def test_loader_without_workers_keeps_generators():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    list(mp.DataLoader(Numbers(), 5, seed=2))
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_torch_seed_repeats_the_shuffle():
    def order():
        torch.manual_seed(21)
        return [batch.tolist() for batch in mp.DataLoader(range(30), 4, shuffle=True)]

    assert order() == order()


# Copies.


def collate_shared(samples):
    batch = mp.collate(samples)
    assert is_shared(batch)
    return batch


class InPlace(Dataset):
    def __len__(self):
        return 8

    def __getbatch__(self, indices):
        batch = mp.empty(len(indices), 3, dtype=torch.float32)
        for row, index in zip(batch, indices, strict=True):
            row.fill_(index)
        return batch, indices


@pytest.mark.parametrize("workers", [0, 2])
def test_getbatch_returns_the_batch(workers):
    for batch, indices in mp.DataLoader(InPlace(), 4, num_workers=workers):
        assert is_shared(batch)
        assert batch[:, 2].tolist() == indices


def test_collate_writes_into_shared_memory():
    loader = mp.DataLoader(torch.ones(8, 100), 4, collate_fn=collate_shared, num_workers=1)
    for batch in loader:
        assert is_shared(batch) and batch.sum() == 400


def test_batch_is_writable_and_survives_the_loader():
    loader = mp.DataLoader(torch.ones(8, 100), 4, num_workers=1)
    first, second = loader
    first.mul_(3)
    del loader
    assert first.sum() == 1200 and second.sum() == 400


# Deaths, errors and time-outs.


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("at", [0, 17, 36])
def test_killed_worker_costs_no_batch(tmp_path, workers, at):
    expected = list(mp.DataLoader(Numbers(), 5, seed=1))
    loader = mp.DataLoader(KilledOnce(tmp_path / "killed", at), 5, seed=1, num_workers=workers)
    found = list(loader)
    assert (tmp_path / "killed").exists()
    assert equal(found, expected)


def test_workers_killed_at_random_cost_no_batch():
    expected = list(mp.DataLoader(Numbers(300), 3, seed=1))
    chance = random.Random(5)
    loader = mp.DataLoader(Numbers(300), 3, seed=1, num_workers=2, retries=20)
    found = []
    for number, batch in enumerate(loader):
        found.append(batch)
        if number % 10 == 3:
            pid = chance.choice(loader.pids())
            if pid:
                os.kill(pid, signal.SIGKILL)
    assert equal(found, expected)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("at", [0, 12, 22])
def test_iterable_killed_worker_costs_no_batch(tmp_path, workers, at):
    path = tmp_path / "killed"
    path.touch()
    expected = list(mp.DataLoader(PartsKilledOnce(path, at), 3, seed=1, num_workers=workers))
    path.unlink()
    found = list(mp.DataLoader(PartsKilledOnce(path, at), 3, seed=1, num_workers=workers))
    assert path.exists()
    assert equal(found, expected)


def test_deadly_sample_is_named_after_retries():
    iterator = iter(mp.DataLoader(Poisoned(raises=None), 4, num_workers=2, retries=1))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    message = "is killed by signal: SIGKILL, in batch 1, at sample 5"
    with pytest.raises(mp.BatchLost, match=message) as raised:
        next(iterator)
    error = raised.value
    assert (error.batch, error.index, error.exitcode) == (1, 5, -signal.SIGKILL) and error.pid > 0
    assert next(iterator).tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("workers", [1, 2])
def test_skip_leaves_out_bad_samples(workers):
    loader = mp.DataLoader(Poisoned(), 4, num_workers=workers, retries=0, on_error="skip")
    found = [batch.tolist() for batch in loader]
    assert found == [[0, 1, 2, 3], [4, 6, 7], [8, 10, 11], [12, 13, 14, 15]]
    (killed, why), (raised, text) = sorted(loader.skipped)
    assert (killed, raised) == (5, 9)
    assert "SIGKILL" in why and "no sample 9" in text


def test_skip_leaves_out_a_batch_without_samples():
    loader = mp.DataLoader(Poisoned(), 1, num_workers=2, retries=0, on_error="skip")
    assert [int(one) for one in loader] == [i for i in range(16) if i not in (5, 9)]


class CustomError(Exception):
    def __init__(self, code, *, detail):
        super().__init__(f"code {code}")
        self.code, self.detail = code, detail

    def __reduce__(self):
        return _custom_error, (self.code, self.detail)


def _custom_error(code, detail):
    return CustomError(code, detail=detail)


class UnpicklableError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Raising(Dataset):
    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 3:
            match self.kind:
                case "custom":
                    raise CustomError(7, detail=[1, 2])
                case "unpicklable":
                    raise UnpicklableError("this", "that")
                case "key":
                    return {}["missing"]
                case "exit":
                    sys.exit(3)
                case "batch":
                    return lambda: None
        return index


@pytest.mark.parametrize("kind", ["custom", "unpicklable", "key"])
def test_exception_arrives_with_its_type(kind):
    iterator = iter(mp.DataLoader(Raising(kind), 2, num_workers=1))
    assert next(iterator).tolist() == [0, 1]
    expected = {"custom": CustomError, "unpicklable": RuntimeError, "key": KeyError}[kind]
    with pytest.raises(expected) as raised:
        next(iterator)
    error = raised.value
    assert (error.__cause__.batch, error.__cause__.index) == (1, 3)
    if kind == "custom":
        assert (error.code, error.detail) == (7, [1, 2])
    if kind == "unpicklable":
        assert "UnpicklableError: this and that" in str(error)
    assert next(iterator).tolist() == [4, 5]
    assert next(iterator, None) is None


def test_exit_in_a_worker_is_reported():
    loader = mp.DataLoader(Raising("exit"), 2, num_workers=1, retries=0)
    with pytest.raises(mp.WorkerLost, match="exited unexpectedly with exit code 3, in batch 1, at sample 3"):
        list(loader)


def test_batch_that_cannot_be_sent_is_an_error():
    iterator = iter(mp.DataLoader(Raising("batch"), None, num_workers=1))
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    with pytest.raises((AttributeError, TypeError, Exception), match="lambda"):
        next(iterator)
    assert [next(iterator) for _ in range(2)] == [4, 5]


def test_batch_timeout_tries_another_worker(tmp_path):
    data = SleepDataset(8, 3, tmp_path / "slept")
    loader = mp.DataLoader(data, 2, num_workers=2, batch_timeout=0.5)
    assert torch.cat(list(loader)).tolist() == list(range(8))


def test_batch_timeout_names_sample_and_stack():
    iterator = iter(mp.DataLoader(SleepDataset(8, 3), 2, num_workers=1, batch_timeout=0.6, retries=0))
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(mp.BatchTimeout, match="batch 1, at sample 3") as raised:
        next(iterator)
    assert raised.value.index == 3 and "sleep_in_sample" in raised.value.stack
    assert next(iterator).tolist() == [4, 5]


def test_stopped_worker_is_not_lost():
    loader = mp.DataLoader(Numbers(40), 2, seed=1, num_workers=2)
    iterator = iter(loader)
    found = [next(iterator)]
    pid = loader.pids()[0]
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(0.3, os.kill, (pid, signal.SIGCONT))
    timer.start()
    found += iterator
    timer.join()
    assert equal(found, list(mp.DataLoader(Numbers(40), 2, seed=1)))


class RaisingSampler:
    def __iter__(self):
        yield from range(3)
        raise OSError("of the sampler")

    def __len__(self):
        return 5


@pytest.mark.parametrize("workers", [0, 2])
def test_error_of_the_sampler_comes_in_its_place(workers):
    iterator = iter(mp.DataLoader(range(5), None, sampler=RaisingSampler(), num_workers=workers))
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="of the sampler"):
        next(iterator)


class RaisingParts(Parts):
    def sample(self, number):
        if number == 4:
            raise ValueError("no more")
        return number


@pytest.mark.parametrize("workers", [0, 1])
def test_iterable_ends_after_an_error(workers):
    iterator = iter(mp.DataLoader(RaisingParts(), 2, num_workers=workers))
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="no more"):
        next(iterator)
    assert next(iterator, None) is None


# States.


def resumed(make, cuts, chance):
    """Returns all batches of an epoch that is interrupted again and again, and resumed by another loader."""
    found, state, done = [], None, False
    while not done:
        loader = make()
        if state is not None and chance.random() < 0.5:
            loader.load_state_dict(json.loads(json.dumps(state)))
            iterator = iter(loader)
        else:
            iterator = iter(loader)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        count = next(cuts, None)
        taken = list(itertools.islice(iterator, count))
        found += taken
        done = count is None or len(taken) < count
        state = loader.state_dict()
    return found


SETTINGS = [
    dict(dataset=Numbers(), batch_size=3, shuffle=True, seed=6),
    dict(dataset=Numbers(), batch_size=4, drop_last=True, seed=6),
    dict(dataset=Numbers(), batch_size=None, shuffle=True, seed=6),
    dict(dataset=Numbers(), batch_size=3, seed=6, sampler=DistributedSampler(range(37), 2, 1)),
    dict(dataset=Numbers(), batch_size=3, seed=6, collate_fn=default_collate),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=range(len(SETTINGS)))
def test_resumed_epoch_equals_the_whole(settings):
    chance = random.Random(8)
    expected = list(mp.DataLoader(**settings))

    def make():
        return mp.DataLoader(**settings, num_workers=chance.choice(WORKERS))

    cuts = iter([chance.randrange(5) for _ in range(3)])
    assert equal(resumed(make, cuts, chance), expected)


def test_resume_without_order_gives_each_batch_once():
    loader = mp.DataLoader(range(40), 2, seed=6, num_workers=3, in_order=False, shuffle=True)
    found = list(itertools.islice(iter(loader), 7))
    state = json.loads(json.dumps(loader.state_dict()))
    other = mp.DataLoader(range(40), 2, seed=6, num_workers=2, shuffle=True)
    other.load_state_dict(state)
    found += other
    assert sorted(torch.cat(found).tolist()) == list(range(40))


def test_state_is_small_and_is_of_what_was_delivered():
    loader = mp.DataLoader(range(1000), 2, shuffle=True, num_workers=2, prefetch_factor=8)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    assert state["batches"] == 3
    assert len(json.dumps(state)) < 400


def test_state_at_the_end_begins_the_next_epoch():
    loader = mp.DataLoader(range(10), 2, shuffle=True, seed=5)
    first, second, third = (list(loader) for _ in range(3))
    other = mp.DataLoader(range(10), 2, shuffle=True, seed=5, num_workers=1)
    assert equal(list(other), first)
    again = mp.DataLoader(range(10), 2, shuffle=True, seed=5, num_workers=1)
    again.load_state_dict(other.state_dict())
    assert equal(list(again), second) and equal(list(again), third)


def test_epochs_continue_after_a_resume():
    loader = mp.DataLoader(range(10), 2, shuffle=True, seed=5)
    epochs = [list(loader) for _ in range(3)]
    iterator = iter(mp.DataLoader(range(10), 2, shuffle=True, seed=5))
    del iterator
    loader = mp.DataLoader(range(10), 2, shuffle=True, seed=5)
    list(itertools.islice(iter(loader), 2))
    other = mp.DataLoader(range(10), 2, shuffle=True, seed=5)
    other.load_state_dict(loader.state_dict())
    assert equal(list(other), epochs[0][2:])
    assert equal(list(other), epochs[1])


def test_resume_with_a_generator_has_the_same_order():
    def make():
        generator = torch.Generator().manual_seed(31)
        return mp.DataLoader(Numbers(), 4, shuffle=True, generator=generator, num_workers=1)

    expected = list(make())
    loader = make()
    begun = list(itertools.islice(iter(loader), 3))
    state = json.loads(json.dumps(loader.state_dict()))
    other = mp.DataLoader(Numbers(), 4, shuffle=True, generator=torch.Generator(), num_workers=2)
    other.load_state_dict(state)
    assert equal(begun + list(other), expected)


@pytest.mark.parametrize("dataset", [RandomParts(), StatefulParts()], ids=["replayed", "stateful"])
@pytest.mark.parametrize("workers", WORKERS)
def test_resumed_iterable_equals_the_whole(dataset, workers):
    chance = random.Random(8)

    def make():
        return mp.DataLoader(dataset, 2, seed=6, num_workers=workers)

    def numbers(batches):
        return [batch[0].tolist() for batch in batches]

    expected = list(make())
    cuts = iter([chance.randrange(1, 4) for _ in range(3)])
    found = resumed(make, cuts, chance)
    assert numbers(found) == numbers(expected)
    if isinstance(dataset, RandomParts):
        assert equal(found, expected)


def test_stateful_iterator_draws_nothing_twice():
    loader = mp.DataLoader(StatefulParts(), 2, num_workers=1)
    list(itertools.islice(iter(loader), 5))
    other = mp.DataLoader(StatefulParts(), 2, num_workers=1)
    other.load_state_dict(loader.state_dict())
    number, drawn = next(iter(other))
    assert number.tolist() == [10, 11] and drawn.tolist() == [1, 2]


class StatefulDataset(Numbers):
    stage = 0

    def __getitem__(self, index):
        return index + 100 * self.stage

    def state_dict(self):
        return {"stage": self.stage}

    def load_state_dict(self, state):
        self.stage = state["stage"]


def test_state_of_the_dataset_is_restored():
    data = StatefulDataset(6)
    loader = mp.DataLoader(data, 2, num_workers=1)
    data.stage = 3
    assert next(iter(loader)).tolist() == [300, 301]
    other = mp.DataLoader(StatefulDataset(6), 2, num_workers=1)
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [[302, 303], [304, 305]]


class StatefulSampler:
    """Each iteration begins one number later."""

    def __init__(self):
        self.first = 0

    def __iter__(self):
        self.first += 1
        return iter(range(self.first, self.first + 6))

    def __len__(self):
        return 6

    def state_dict(self):
        return {"first": self.first}

    def load_state_dict(self, state):
        self.first = state["first"]


def test_state_of_the_sampler_is_restored():
    loader = mp.DataLoader(range(20), 2, sampler=StatefulSampler(), num_workers=1)
    list(loader)
    assert next(iter(loader)).tolist() == [2, 3]
    other = mp.DataLoader(range(20), 2, sampler=StatefulSampler())
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [[4, 5], [6, 7]]


def test_state_of_another_loader_is_refused():
    loader = mp.DataLoader(range(20), 2, seed=1)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ValueError, match="batch_size=2, and this loader 3"):
        mp.DataLoader(range(20), 3).load_state_dict(state)
    with pytest.raises(ValueError, match="length=20, and this loader 21"):
        mp.DataLoader(range(21), 2).load_state_dict(state)
    with pytest.raises(ValueError, match="kind 'map'"):
        mp.DataLoader(Parts(), 2).load_state_dict(state)
    with pytest.raises(ValueError, match="version"):
        mp.DataLoader(range(20), 2).load_state_dict({})
    parts = mp.DataLoader(Parts(), 2, num_workers=2)
    next(iter(parts))
    with pytest.raises(ValueError, match="of 2 workers, and this loader has 1"):
        mp.DataLoader(Parts(), 2, num_workers=1).load_state_dict(parts.state_dict())


# The interpreter's life.


def test_program_without_torch_gets_arrays():
    result = run_program(
        """
        import sys
        import numpy as np
        import multiproc as mp
        class Squares:
            def __len__(self): return 10
            def __getitem__(self, i): return np.full(3, i * i, dtype=np.float32), i, {"name": str(i)}
        def batches(workers):
            return list(mp.DataLoader(Squares(), 4, shuffle=True, seed=3, num_workers=workers))
        if __name__ == "__main__":
            for (x, i, d), (y, j, e) in zip(batches(0), batches(2), strict=True):
                assert type(x) is type(y) is np.ndarray and x.dtype == np.float32
                assert (x == y).all() and (i == j).all() and d == e
                assert x[:, 0].tolist() == (i * i).tolist() and d["name"] == [str(n) for n in i]
            assert "torch" not in sys.modules
            print("done")
        """
    )
    assert result.stdout == "done\n", result.stderr


def test_interrupt_ends_next(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import multiproc as mp, os, time
        class Sleep:
            def __len__(self): return 9
            def __getitem__(self, i):
                if i: time.sleep(60)
                return i
        if __name__ == "__main__":
            iterator = iter(mp.DataLoader(Sleep(), num_workers=2))
            next(iterator)
            try:
                print("begun", flush=True)
                next(iterator)
            except KeyboardInterrupt:
                print("interrupted")
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(mp.__file__))}
    process = subprocess.Popen(
        [sys.executable, str(program)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "begun\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == ("interrupted\n", 0), err
    assert "KeyboardInterrupt" not in err


def test_program_without_guard_gets_a_clear_error(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import multiproc\nprint(list(multiproc.DataLoader(range(4), num_workers=1)))\n")
    result = run_program([sys.executable, str(program)])
    if result.returncode == 0:
        assert result.stdout.count("tensor") in (0, 4)
    else:
        assert "__main__" in result.stderr


def test_killed_trainer_leaves_no_workers(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import multiproc as mp, os, signal
        if __name__ == "__main__":
            loader = mp.DataLoader(range(100), num_workers=2)
            iterator = iter(loader)
            next(iterator)
            print(*loader.pids(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """)
    )
    result = run_program([sys.executable, str(program)])
    assert result.returncode == -signal.SIGKILL
    pids = result.stdout.split()
    assert len(pids) == 2 and all(map(ended, pids))


def test_forked_child_uses_a_loader_of_its_own():
    loader = mp.DataLoader(range(10), 5, num_workers=1)
    assert len(list(loader)) == 2
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            list(loader)
            text = "loaded"
        except BaseException as error:
            text = type(error).__name__
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        assert file.read() in (b"RuntimeError", b"loaded")
    os.waitpid(pid, 0)
    assert len(list(loader)) == 2


def test_pin_memory_without_accelerator_warns():
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.warns(UserWarning, match="pin_memory"):
        assert len(list(mp.DataLoader(range(4), num_workers=1, pin_memory=True))) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_pin_memory_pins_ahead_in_order(monkeypatch, workers):
    from multiproc import data_loader

    threads = set()

    def pin(batch):
        threads.add(threading.current_thread())
        return None if batch is None else batch + 1000

    monkeypatch.setattr(data_loader, "_pin", pin)
    monkeypatch.setattr(mp.DataLoader, "_pins", lambda self: True)
    loader = mp.DataLoader(range(20), 2, num_workers=workers)
    assert torch.cat(list(loader)).tolist() == list(range(1000, 1020))
    assert threading.current_thread() not in threads
    iterator = iter(loader)
    next(iterator)
    assert loader.state_dict()["batches"] == 1
    del iterator
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    with pytest.raises(ValueError, match="bad sample"):
        list(mp.DataLoader(ErrorDataset(4), num_workers=workers))


def test_next_from_threads_gives_each_batch_once():
    iterator = iter(mp.DataLoader(range(200), 2, num_workers=2))
    found = []

    def take():
        for batch in iterator:
            found.extend(batch.tolist())

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(200))
