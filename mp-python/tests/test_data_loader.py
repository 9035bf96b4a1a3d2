"""``DataLoader``: scenarios of torch's ``test_dataloader.py``."""

import collections
import functools
import itertools
import os
import random
import sys
import textwrap

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

import multiproc as mp  # noqa: E402
from loader_tasks import (  # noqa: E402
    LABELS,
    PIXELS,
    WORKERS,
    AffinityDataset,
    Bulk,
    CountingDataset,
    ErrorDataset,
    Growing,
    InfoDataset,
    LargeIndexDataset,
    LargeIndexSampler,
    ListDataset,
    Numbers,
    Parts,
    Point,
    Record,
    SeedDataset,
    SegfaultDataset,
    SleepDataset,
    SlowFirst,
    ValueDataset,
    ended,
    equal,
    fail_in_init,
    pin_to_one_cpu,
    run_program,
    set_seed_of_worker,
)


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
        refuses("^timeout option should be non-negative", data, timeout=-1)
        refuses("^batch_timeout option should be non-negative", data, batch_timeout=-1)
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
        refuses("should specify a valid start method in", data, num_workers=1, multiprocessing_context="bad")
        refuses("valid context object", data, num_workers=1, multiprocessing_context=7, error=TypeError)
        refuses("forkserver", data, num_workers=1, multiprocessing_context="fork")

    @pytest.mark.parametrize("context", ["spawn", "forkserver", mp.get_context("forkserver")])
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
        assert "sleep_in_sample" in error.stack and "loader_tasks.py" in error.stack

    def test_error(self):
        with pytest.raises(ValueError, match="bad sample 0"):
            list(mp.DataLoader(ErrorDataset(5)))

    def test_error_workers(self):
        with pytest.raises(ValueError, match="bad sample 0") as raised:
            list(mp.DataLoader(ErrorDataset(5), 2, num_workers=2))
        cause = raised.value.__cause__
        assert "Caught ValueError in DataLoader worker process" in str(cause)
        assert "in __getitem__" in str(cause) and "loader_tasks.py" in str(cause)
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
            assert names == tuple(f"name {i}" for i in numbers.tolist())


class TestTorchNamedTupleDataLoader:
    def test_dataloader_with_namedtuple(self):
        data = ListDataset([Point(float(i), f"{i}") for i in range(4)])
        for batch in mp.DataLoader(data, 2, num_workers=1):
            assert type(batch) is Point and batch.label == tuple(f"{int(x)}" for x in batch.x)


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


def put_seeds(queue, number):
    queue.put((number, mp.get_worker_info().seed, torch.initial_seed(), random.random()))


def test_init_function_has_seed_of_its_worker():
    queue = mp.Queue()
    init = functools.partial(put_seeds, queue)
    iterator = iter(mp.DataLoader(range(4), seed=3, num_workers=2, worker_init_fn=init))
    one, other = (queue.get(timeout=50) for _ in range(2))
    assert len(list(iterator)) == 4
    assert {one[0], other[0]} == {0, 1}
    assert one[1] == one[2] and other[1] == other[2]
    assert one[1] != other[1] and one[3] != other[3]
