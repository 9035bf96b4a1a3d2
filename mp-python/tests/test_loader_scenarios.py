"""``DataLoader``: further scenarios of torch's ``test_dataloader.py`` on the CPU."""

import os
import sys
import tempfile

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    default_convert,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402
from torch.utils.data.datapipes.iter import IterableWrapper  # noqa: E402

import multiproc as mp  # noqa: E402
from loader_tasks import LABELS, PIXELS, ListDataset, Parts, run_program  # noqa: E402
from multiproc.collate import convert  # noqa: E402


class CustomList(list):
    pass


class CustomDict(dict):
    pass


class OnlyInts(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        assert type(index) is int
        return index


class WorkerOf(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, index):
        return mp.get_worker_info().id, index


class Failing(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


class FailingIterator(IterableDataset):
    def __iter__(self):
        raise RuntimeError("error in __iter__")


class Workers(IterableDataset):
    """Dataset in which each sample is the number of the worker."""

    def __iter__(self):
        info = mp.get_worker_info()
        yield from [info.id] * (20 // info.num_workers)


class Info(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        info = mp.get_worker_info()
        for name in ("id", "other"):
            with pytest.raises(RuntimeError, match="Cannot assign attributes to WorkerInfo objects"):
                setattr(info, name, 3)
        assert all(f"{name}=" in repr(info) for name in ("id", "num_workers", "seed", "dataset"))
        return torch.tensor(self.value)


class Seeds(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.initial_seed()


class Convolution(Dataset):
    def __init__(self):
        self.x = torch.ones(1, 1, 24000)
        # torch's threads of the caller run before workers start.
        self[0]

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.nn.functional.conv1d(self.x, torch.ones(1, 1, 2))


class Halves(Parts):
    """Each worker has one half of a range, in its order."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        half = self.length // info.num_workers
        yield from range(info.id * half, (info.id + 1) * half)


def add_one(row):
    return np.add(row, 1)


def has_four(row):
    return len(row) == 4


def fail_in_worker(worker):
    raise RuntimeError("error in worker_init_fn")


def check_info(worker):
    info = mp.get_worker_info()
    assert info.id == worker < info.num_workers and type(info.dataset) is Info
    assert not hasattr(info.dataset, "value")
    info.dataset.value = [worker, os.getpid()]


def seed_by_hand(worker):
    torch.manual_seed(12345)


def clone_all(samples):
    return [sample.clone() for sample in samples]


class TestTorchDataLoader:
    data = TensorDataset(PIXELS, LABELS)

    def check_sequential(self, **options):
        loader = mp.DataLoader(self.data, batch_size=2, num_workers=2, **options)
        for i, (pixels, labels) in enumerate(loader):
            assert torch.equal(pixels, PIXELS[2 * i : 2 * i + 2])
            assert torch.equal(labels, LABELS[2 * i : 2 * i + 2])
        assert i == 9

    def check_shuffle(self, loader):
        found = torch.cat([labels.reshape(-1) for _, labels in loader])
        assert sorted(found.tolist()) == sorted(LABELS.tolist()) and found.tolist() != LABELS.tolist()

    def test_seqential_batch_workers(self):
        self.check_sequential()

    def test_seqential_batch_workers_prefetch(self):
        self.check_sequential(prefetch_factor=3)

    def test_shuffle(self):
        self.check_shuffle(mp.DataLoader(self.data, shuffle=True))

    def test_shuffle_batch_none(self):
        self.check_shuffle(mp.DataLoader(self.data, batch_size=None, shuffle=True))

    def test_shuffle_workers(self):
        self.check_shuffle(mp.DataLoader(self.data, shuffle=True, num_workers=2))

    @pytest.mark.parametrize("length, workers", [(100, 0), (41, 2)])
    def test_error_workers(self, length, workers):
        # Each batch raises, and the loader continues.
        iterator = iter(mp.DataLoader(Failing(length), 2, shuffle=True, num_workers=workers))
        errors = 0
        while True:
            try:
                next(iterator)
            except NotImplementedError:
                errors += 1
            except StopIteration:
                break
        assert errors == (length + 1) // 2

    @pytest.mark.parametrize("workers", [0, 2])
    def test_error_in_init(self, workers):
        with pytest.raises(RuntimeError, match="error in __iter__"):
            list(mp.DataLoader(FailingIterator(), num_workers=workers))
        with pytest.raises(RuntimeError, match="error in worker_init_fn"):
            list(mp.DataLoader(self.data, num_workers=2, worker_init_fn=fail_in_worker))

    def test_large_sampler_indices(self, tmp_path):
        # The program ends at its error, although large lists of indices wait to be sent.
        program = tmp_path / "program.py"
        program.write_text(
            "import multiproc as mp, torch\n"
            "class Empty(torch.utils.data.Dataset):\n"
            "    def __len__(self): return 10_000_000\n"
            "    def __getitem__(self, index): return torch.empty(0)\n"
            "if __name__ == '__main__':\n"
            "    iterator = iter(mp.DataLoader(Empty(), batch_size=40960, num_workers=1))\n"
            "    assert next(iterator).numel() == 0\n"
            "    raise RuntimeError('my error')\n"
        )
        result = run_program([sys.executable, str(program)])
        assert result.returncode == 1 and "RuntimeError: my error" in result.stderr

    def test_multi_epochs_reproducibility(self):
        loader = mp.DataLoader(Workers(), 10, num_workers=2)
        for _ in range(3):
            assert [batch.tolist() for batch in loader] == [[0] * 10, [1] * 10]

    def test_worker_init_fn(self):
        # torch's generator is seeded before each batch, so a seed of the function has no effect there.
        loader = mp.DataLoader(Seeds(), 2, num_workers=2, worker_init_fn=seed_by_hand)
        seeds = {seed for batch in loader for seed in batch.tolist()}
        assert len(seeds) == 2 and 12345 not in seeds

    def test_get_worker_info(self):
        assert mp.get_worker_info() is None
        data = Info()
        loader = mp.DataLoader(data, 2, num_workers=2, worker_init_fn=check_info)
        found = torch.cat(list(loader)).tolist()
        assert {pid for _, pid in found} <= set(loader.pids()) and {worker for worker, _ in found} <= {0, 1}
        assert mp.get_worker_info() is None and not hasattr(data, "value")

    def test_duplicating_data_with_drop_last(self):
        data, found = torch.arange(9), []
        for rank in range(4):
            sampler = DistributedSampler(data, 4, rank)
            found += torch.cat(list(mp.DataLoader(data, 2, drop_last=True, sampler=sampler))).tolist()
        assert len(found) == len(set(found)) == 8

    def test_typing(self):
        def create() -> mp.DataLoader[list[torch.Tensor]]:
            return mp.DataLoader(self.data)

        assert type(create()) is mp.DataLoader

    def test_splits_indexing_type(self):
        for lengths in ([5], [1.0]):
            assert len(list(mp.DataLoader(random_split(OnlyInts(), lengths)[0]))) == 5

    @pytest.mark.parametrize("persistent", [False, True])
    def test_fd_limit_exceeded(self, persistent, tmp_path):
        # A batch needs no descriptor, so that the limit isn't reached.
        program = tmp_path / "program.py"
        program.write_text(
            "import multiproc as mp, resource, torch\n"
            "if __name__ == '__main__':\n"
            "    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
            f"    options = dict(num_workers=1, persistent_workers={persistent})\n"
            "    loader = mp.DataLoader(torch.zeros(200, 2, 2), **options)\n"
            "    print(len(list(loader)))\n"
        )
        result = run_program([sys.executable, str(program)])
        assert (result.stdout, result.stderr, result.returncode) == ("200\n", "", 0)

    @pytest.mark.filterwarnings("ignore:.*Shuffler")
    def test_multiprocessing_iterdatapipe(self):
        pipe = IterableWrapper([[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]).map(add_one).filter(has_four)
        for context in (None, mp.get_context("forkserver")):
            loader = mp.DataLoader(pipe, 2, shuffle=True, num_workers=2, multiprocessing_context=context)
            # Without a sharding filter each worker has all of the pipe.
            assert [batch.tolist() for batch in loader] == [[[2, 3, 4, 5]]] * 2

    def check_length(self, replacement):
        sampler = RandomSampler(self.data, replacement=replacement, num_samples=25)
        assert len(mp.DataLoader(self.data, sampler=sampler)) == len(list(sampler)) == 25
        loader = mp.DataLoader(self.data, batch_size=6, sampler=sampler)
        assert len(loader) == len(list(loader)) == 5

    def test_random_sampler_len_with_replacement(self):
        self.check_length(True)

    def test_random_sampler_len_without_replacement(self):
        self.check_length(False)

    @pytest.mark.parametrize("kind", ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1"])
    def test_numpy_scalars(self, kind):
        of = np.dtype(kind).type
        batch = next(iter(mp.DataLoader(ListDataset([of(1)] * 4), 2)))
        assert batch.dtype is torch.as_tensor(np.zeros(1, kind)).dtype and batch.tolist() == [1, 1]

    def test_excessive_thread_creation_warning(self, recwarn):
        count = len(os.sched_getaffinity(0))
        mp.DataLoader(self.data, num_workers=count)
        assert not recwarn
        with pytest.warns(UserWarning, match="excessive worker creation might get DataLoader running slow"):
            mp.DataLoader(self.data, num_workers=count + 1)


class TestTorchCollate:
    def test_default_convert_mapping_keep_type(self):
        data = CustomDict(a=1, b=2)
        assert convert(data) == data and type(convert(data)) is CustomDict

    def test_default_convert_sequence_keep_type(self):
        data = CustomList([1, 2, 3])
        assert convert(data) == data and type(convert(data)) is CustomList

    def test_default_convert_sequence_dont_keep_type(self):
        assert convert(range(2)) == default_convert(range(2)) == [0, 1]

    def test_default_collate_mapping_keep_type(self):
        batch = mp.collate([CustomDict(a=1, b=2), CustomDict(a=3, b=4)])
        assert type(batch) is CustomDict
        assert {name: column.tolist() for name, column in batch.items()} == {"a": [1, 3], "b": [2, 4]}

    def test_default_collate_sequence_keep_type(self):
        batch = mp.collate([CustomList([1, 2, 3]), CustomList([4, 5, 6])])
        assert type(batch) is CustomList
        assert [column.tolist() for column in batch] == [[1, 4], [2, 5], [3, 6]]

    def test_default_collate_bad_numpy_types(self):
        assert mp.collate(np.array(["a", "b"])) == ["a", "b"]
        for samples in (np.array([[["a"]]]), np.array([object()]), np.array([[[object()]]])):
            with pytest.raises(TypeError):
                mp.collate(samples)

    def test_default_collate_numpy_memmap(self):
        rows = np.arange(8).reshape(4, 2)
        with tempfile.TemporaryFile() as file:
            np.memmap(file, dtype=rows.dtype, mode="w+", shape=rows.shape)[:] = rows
            mapped = np.memmap(file, dtype=rows.dtype, mode="r", shape=rows.shape)
            assert mp.collate(list(mapped)).tolist() == rows.tolist()

    def test_default_collate_shared_tensor(self):
        # A batch is in shared memory in any process. torch's `is_shared` asks for a file of torch.
        for sample in (torch.zeros(1), np.zeros(1)):
            batch = mp.collate([sample])
            queue = mp.Queue()
            queue.put(batch)
            queue.get()[0] = 7
            assert batch.tolist() == [[7]]


class TestTorchDataLoaderDeviceType:
    @pytest.mark.filterwarnings("ignore:.*nested tensors")
    @pytest.mark.parametrize("context", ["spawn", "forkserver"])
    def test_nested_tensor_multiprocessing(self, context):
        data = ListDataset([torch.nested.nested_tensor([torch.randn(5)]) for _ in range(4)])
        loader = mp.DataLoader(data, num_workers=1, collate_fn=clone_all, multiprocessing_context=context)
        for batch, sample in zip(loader, data.samples, strict=True):
            assert batch[0].is_nested and torch.equal(batch[0].unbind()[0], sample.unbind()[0])
        with pytest.raises(RuntimeError, match="not currently supported by the default collate_fn"):
            next(iter(mp.DataLoader(data, num_workers=1)))

    @pytest.mark.parametrize("context", ["spawn", "forkserver"])
    def test_sparse_tensor_multiprocessing(self, context):
        data = ListDataset([torch.randn(5, 5).to_sparse() for _ in range(4)])
        loader = mp.DataLoader(data, num_workers=1, collate_fn=clone_all, multiprocessing_context=context)
        for batch, sample in zip(loader, data.samples, strict=True):
            assert batch[0].is_sparse and torch.equal(batch[0].to_dense(), sample.to_dense())


class TestTorchWorkers:
    def test_ind_worker_queue(self):
        # In torch, workers take turns. Here any free worker makes the next batch.
        for size in (8, 32):
            for workers in (1, 2):
                loader = mp.DataLoader(WorkerOf(), size, num_workers=workers, timeout=50)
                for i, (ids, indices) in enumerate(loader):
                    assert len(set(ids.tolist())) == 1 and set(ids.tolist()) <= set(range(workers))
                    assert indices.tolist() == list(range(i * size, (i + 1) * size))

    def test_conv_after_fork(self):
        for batch in mp.DataLoader(Convolution(), num_workers=1):
            assert batch.shape == (1, 1, 1, 23999)

    def test_in_order_iterable_ds(self):
        loader = mp.DataLoader(Halves(10), num_workers=2, in_order=True)
        assert [int(one) for one in loader] == [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]

    @pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
    @pytest.mark.filterwarnings("ignore:.*pin_memory")
    def test_pin_memory_no_cuda(self):
        data = ListDataset([{"tensor": torch.full((4, 2), i), "more": {"number": i}} for i in range(4)])
        for batch in mp.DataLoader(data, 2, pin_memory=True):
            assert not batch["tensor"].is_pinned() and not batch["more"]["number"].is_pinned()
