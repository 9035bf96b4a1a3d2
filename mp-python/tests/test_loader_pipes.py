"""``DataLoader``: datapipes of torch, which the loader divides among workers and seeds."""

import os
import signal

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import MapDataPipe  # noqa: E402
from torch.utils.data.datapipes.iter import IterableWrapper  # noqa: E402

import multiproc as mp  # noqa: E402
from loader_tasks import Once  # noqa: E402


class KillOnce(Once):
    """Function that kills its process at a sample, the first time."""

    def __call__(self, sample):
        if sample == 20 and self.first():
            os.kill(os.getpid(), signal.SIGKILL)
        return sample


class PartOfMap(MapDataPipe):
    """Samples with the part that the loader assigns, by torch's older interface for sharding."""

    part = None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index, self.part

    def apply_sharding(self, parts, part):
        self.part = part, parts


def samples(loader):
    return [int(sample) for batch in loader for sample in batch]


def shuffled(size=5):
    return IterableWrapper(range(100)).shuffle(buffer_size=size).sharding_filter()


def load_rank(rank, path, queue):
    """Puts two epochs of each of two loaders, and the number of open descriptors after each, for two groups."""
    from torch import distributed

    for turn in range(2):
        distributed.init_process_group("gloo", init_method=f"file://{path}{turn}", rank=rank, world_size=2)
        torch.manual_seed(rank)
        epochs, descriptors = [], []
        for _ in range(2):
            loader = mp.DataLoader(shuffled(20), 5, shuffle=True, num_workers=2 * rank)
            epochs += [samples(loader) for _ in range(2)]
            descriptors.append(len(os.listdir("/proc/self/fd")))
        queue.put((turn, epochs, descriptors))
        distributed.destroy_process_group()


class TestTorchsScenarios:
    """Scenarios of ``IntegrationTestDataLoaderDataPipe`` and ``TestSharding``, by their names."""

    @pytest.mark.parametrize(("workers", "persistent"), [(0, None), (1, True), (2, None), (2, True)])
    def test_shuffler_iterdatapipe(self, workers, persistent):
        for size in (5, 33):
            loader = mp.DataLoader(
                shuffled(size), shuffle=True, num_workers=workers, persistent_workers=persistent
            )
            epochs = [samples(loader)]
            for seed in (123, 123, 321):
                torch.manual_seed(seed)
                epochs.append(samples(loader))
            assert all(sorted(epoch) == [*range(100)] for epoch in epochs)
            assert epochs[1] == epochs[2] != epochs[3]
            assert epochs[0] not in (epochs[1], epochs[3], [*range(100)])

    @pytest.mark.parametrize("workers", [0, 2])
    def test_old_dataloader(self, workers):
        one, two = IterableWrapper(range(10)).fork(num_instances=2)
        pipe = one.map(abs).zip(two).map(sum).sharding_filter()
        loader = mp.DataLoader(pipe, shuffle=False, num_workers=workers)
        assert sorted(samples(loader)) == sorted(samples(loader)) == [*range(0, 20, 2)]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_multi_sharding(self, workers):
        pipe = IterableWrapper(range(10)).sharding_filter().map(abs).sharding_filter()
        with pytest.raises(RuntimeError, match="Sharding twice on a single pipeline"):
            samples(mp.DataLoader(pipe, num_workers=workers))

    def test_legacy_custom_sharding_with_old_dataloader(self):
        parts = [part for _, part in mp.DataLoader(PartOfMap(), None, num_workers=1)]
        assert parts == [[0, 1]] * 8
        seen = list(mp.DataLoader(PartOfMap(), None, num_workers=2))
        assert [index for index, _ in seen] == [*range(8)]
        assert all(part in ([0, 2], [1, 2]) for _, part in seen)


class TestPipes:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_unshuffled_pipe_keeps_its_order(self, workers):
        pipe = IterableWrapper(range(6)).shuffle().map(int)
        loader = mp.DataLoader(pipe, 2, shuffle=False, num_workers=workers)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]

    def test_added_shuffler_has_all_elements(self):
        with pytest.warns(UserWarning, match="does not contain a `Shuffler`"):
            loader = mp.DataLoader(IterableWrapper(range(60)), shuffle=True)
        seen = samples(loader)
        assert sorted(seen) == [*range(60)] and seen != [*range(60)]

    def test_order_of_workers_is_the_callers_order(self):
        orders = []
        for workers in (0, 2):
            loader = mp.DataLoader(shuffled(), None, shuffle=True, num_workers=workers, seed=7)
            epochs = [[int(sample) for sample in loader] for _ in range(2)]
            assert epochs[0] != epochs[1]
            orders.append(epochs)
        assert orders[0] == orders[1]

    def test_killed_worker_keeps_the_order(self, tmp_path):
        orders = []
        for name in ("killed", "whole"):
            if name == "whole":
                (tmp_path / name).touch()
            pipe = shuffled().map(KillOnce(tmp_path / name))
            orders.append(samples(mp.DataLoader(pipe, 3, shuffle=True, num_workers=2, seed=1)))
        assert (tmp_path / "killed").exists()
        assert orders[0] == orders[1] and sorted(orders[0]) == [*range(100)]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_resumed_pipe_continues_its_order(self, workers):
        loader = mp.DataLoader(shuffled(), 3, shuffle=True, num_workers=workers)
        batches = iter(loader)
        seen = samples([next(batches) for _ in range(7)])
        state = loader.state_dict()
        rest = samples(batches)
        other = mp.DataLoader(shuffled(), 3, shuffle=True, num_workers=workers)
        other.load_state_dict(state)
        assert samples(other) == rest and sorted(seen + rest) == [*range(100)]

    def test_ranks_share_one_order(self, tmp_path):
        queue = mp.Queue()
        mp.spawn(load_rank, (tmp_path / "rendezvous", queue), nprocs=2)
        found = [queue.get(timeout=30) for _ in range(4)]
        for turn in range(2):
            ranks = [epochs for number, epochs, _ in found if number == turn]
            for parts in zip(*ranks, strict=True):
                assert [len(part) for part in parts] == [50, 50]
                assert sorted(sum(parts, [])) == [*range(100)]
        # All loaders use one group of torch's processes.
        assert all(last <= first for _, _, (first, last) in found), found
