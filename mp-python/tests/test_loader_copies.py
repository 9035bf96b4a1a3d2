"""``DataLoader``: the workers' copies of the dataset, which are new in each epoch."""

import os
import signal
import time

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import Dataset, IterableDataset, get_worker_info  # noqa: E402

import multiproc as mp  # noqa: E402
from loader_tasks import CountingDataset, ListDataset, Once, ended  # noqa: E402
from mappings import mapping_of  # noqa: E402


class Counter(IterableDataset):
    def __init__(self):
        self.i = 0

    def __iter__(self):
        while self.i < 4:
            self.i += 1
            yield self.i


class Lines(IterableDataset):
    """Opens its file once, and says which files of this name its process has."""

    file = None

    def __init__(self, path):
        self.path = str(path)

    def __iter__(self):
        if self.file is None:
            self.file = open(self.path)
        for line in self.file:
            yield line.strip(), self.count_open()

    def count_open(self):
        paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(path) == self.path for path in paths)


class Range(IterableDataset):
    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        return iter(range(self.start, self.end))


def take_part(worker):
    info = get_worker_info()
    data, size = info.dataset, -(-(info.dataset.end - info.dataset.start) // info.num_workers)
    data.start += worker * size
    data.end = min(data.start + size, data.end)


def numbers(batches):
    return [int(one) for one in batches]


def test_iterated_copy_is_new_in_each_epoch():
    loader = mp.DataLoader(Counter(), num_workers=1)
    assert numbers(loader) == [1, 2, 3, 4]
    pids = loader.pids()
    assert numbers(loader) == [1, 2, 3, 4]
    assert loader.pids() == pids


def test_iterated_copy_is_new_after_a_break():
    loader = mp.DataLoader(Counter(), num_workers=1)
    iterator = iter(loader)
    assert [int(next(iterator)) for _ in range(2)] == [1, 2]
    del iterator
    assert numbers(loader) == [1, 2, 3, 4]


def test_file_of_a_copy_is_opened_and_closed(tmp_path):
    path = tmp_path / "lines"
    path.write_text("a\nb\nc\n")
    loader = mp.DataLoader(Lines(path), num_workers=1, batch_size=None)
    epochs, end = 0, time.monotonic() + 30
    # The copy of an epoch is dropped at some time during the next epoch.
    while epochs < 3 or counts[-1] > 1:
        assert time.monotonic() < end
        texts, counts = zip(*loader, strict=True)
        assert texts == ("a", "b", "c")
        epochs += 1


def test_indexed_copy_is_new_in_each_epoch():
    loader = mp.DataLoader(CountingDataset(), num_workers=1)
    assert [numbers(loader) for _ in range(3)] == [[1, 2, 3, 4]] * 3


@pytest.mark.parametrize("dataset", [Counter(), CountingDataset()], ids=["iterated", "indexed"])
def test_two_iterators_have_copies_of_their_own(dataset):
    loader = mp.DataLoader(dataset, num_workers=1)
    pairs = zip(loader, loader, strict=True)
    assert [(int(one), int(other)) for one, other in pairs] == [(i, i) for i in range(1, 5)]


@pytest.mark.parametrize("dataset", [Counter(), CountingDataset()], ids=["iterated", "indexed"])
def test_persistent_workers_keep_their_copy(dataset):
    loader = mp.DataLoader(dataset, num_workers=1, persistent_workers=True)
    first, pids = numbers(loader), loader.pids()
    assert first == [1, 2, 3, 4]
    assert numbers(loader) == ([] if isinstance(dataset, Counter) else [5, 6, 7, 8])
    assert loader.pids() == pids


@pytest.mark.parametrize("persistent", [None, True, False])
def test_worker_init_fn_divides_in_each_epoch(persistent):
    loader = mp.DataLoader(
        Range(3, 9),
        num_workers=2,
        worker_init_fn=take_part,
        batch_size=None,
        persistent_workers=persistent,
    )
    assert [sorted(loader) for _ in range(3)] == [list(range(3, 9))] * 3


class Inits(Dataset):
    """Returns the process id, and the number and the seeds of the calls of ``init`` with this copy."""

    def __init__(self, path, workers):
        self.path = str(path)
        self.all_here = mp.Barrier(workers)
        self.is_first = True
        self.seeds = []

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.is_first:
            # Waits until all workers have a sample.
            self.all_here.wait(30)
            self.is_first = False
        return os.getpid(), len(self.seeds), self.seeds[0]

    def init(self, worker):
        seed = mp.get_worker_info().seed
        self.seeds.append(seed)
        with open(self.path, "a") as file:
            file.write(f"{worker} {seed}\n")


def call_init(worker):
    get_worker_info().dataset.init(worker)


def test_worker_init_fn_runs_once_per_worker_and_epoch(tmp_path):
    path = tmp_path / "calls"
    loader = mp.DataLoader(
        Inits(path, 2), num_workers=2, batch_size=None, worker_init_fn=call_init, prefetch_factor=1
    )
    seen = []
    for _ in range(3):
        path.write_text("")
        samples = list(loader)
        calls = [line.split() for line in path.read_text().splitlines()]
        assert sorted(worker for worker, _ in calls) == ["0", "1"]
        assert {count for _, count, _ in samples} == {1}
        assert {seed for _, _, seed in samples} == {int(seed) for _, seed in calls}
        seen += [seed for _, seed in calls]
    assert len(set(seen)) == 6


def test_seed_of_worker_init_fn_follows_the_seed(tmp_path):
    calls = []
    for run in range(2):
        path = tmp_path / f"calls {run}"
        loader = mp.DataLoader(
            Inits(path, 1), num_workers=1, batch_size=None, worker_init_fn=call_init, seed=-3
        )
        list(loader)
        calls.append(path.read_text().splitlines())
    assert calls[0] == calls[1] and len(calls[0]) == 1


class BigArray(Dataset):
    def __init__(self):
        self.array = np.zeros(100 << 20, dtype=np.uint8)
        self.label = 0

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.label, int(self.array[0]), mapping_of(self.array.ctypes.data)[2]


def test_unchanged_array_is_not_copied_again():
    data = BigArray()
    loader = mp.DataLoader(data, num_workers=1, batch_size=None)
    (label, first, inode), _ = loader
    assert (label, first) == (0, 0) and inode != "0"
    pids = loader.pids()
    assert list(loader) == [[0, 0, inode]] * 2
    data.label = 5
    assert [label for label, _, _ in loader] == [5, 5]
    data.array = np.ones(100 << 20, dtype=np.uint8)
    assert [first for _, first, _ in loader] == [1, 1]
    assert loader.pids() == pids


def test_array_at_the_address_of_a_freed_one_is_noticed():
    data = ListDataset([np.zeros(1 << 20, dtype=np.uint8)])
    loader = mp.DataLoader(data, num_workers=1)
    for value in range(4):
        assert next(iter(loader))[0, 0] == value
        data.samples = None
        data.samples = [np.full(1 << 20, value + 1, dtype=np.uint8)]


def test_other_strides_of_a_tensor_are_noticed():
    data = ListDataset([torch.arange(4).view(2, 2)])
    loader = mp.DataLoader(data, num_workers=1)
    assert next(iter(loader)).tolist() == [[[0, 1], [2, 3]]]
    data.samples[0].t_()
    assert next(iter(loader)).tolist() == [[[0, 2], [1, 3]]]
    data.samples = [data.samples[0].t()]
    assert next(iter(loader)).tolist() == [[[0, 1], [2, 3]]]


class Closing(CountingDataset):
    """Creates a file when a copy in a worker is dropped."""

    def __init__(self, path):
        super().__init__()
        self.path, self.owner = str(path), os.getpid()

    def __del__(self):
        if os.getpid() != self.owner:
            open(self.path, "w").close()


def test_copy_is_dropped_when_its_epoch_ends(tmp_path):
    loader = mp.DataLoader(Closing(tmp_path / "dropped"), num_workers=1)
    for _ in range(2):
        assert numbers(loader) == [1, 2, 3, 4]
        end = time.monotonic() + 10
        while not os.path.exists(tmp_path / "dropped") and time.monotonic() < end:
            time.sleep(0.01)
        os.remove(tmp_path / "dropped")


def test_changed_dataset_keeps_the_processes():
    data = ListDataset([np.zeros(3), np.ones(3)])
    loader = mp.DataLoader(data, num_workers=2)
    assert len(list(loader)) == 2
    pids = loader.pids()
    data.samples = [np.full(3, 7.0)]
    assert [one.tolist() for one in loader] == [[[7, 7, 7]]]
    loader.collate_fn = len
    assert list(loader) == [1]
    assert loader.pids() == pids


class KilledInEpoch(CountingDataset):
    def __init__(self, path):
        super().__init__()
        self.once = Once(path)
        self.kills = False

    def __getitem__(self, index):
        if self.kills and index == 2 and self.once.first():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_replacement_in_the_second_epoch_has_a_new_copy(tmp_path):
    data = KilledInEpoch(tmp_path / "killed")
    loader = mp.DataLoader(data, num_workers=1)
    assert numbers(loader) == [1, 2, 3, 4]
    data.kills = True
    assert sorted(numbers(loader)) == [1, 1, 2, 2]
    assert numbers(loader) == [1, 2, 3, 4]


def test_idle_worker_killed_between_epochs_costs_nothing():
    loader = mp.DataLoader(Counter(), num_workers=1)
    assert numbers(loader) == [1, 2, 3, 4]
    (pid,) = loader.pids()
    os.kill(pid, signal.SIGKILL)
    assert ended(pid)
    assert numbers(loader) == [1, 2, 3, 4]


class Unreadable(Dataset):
    def __len__(self):
        return 2

    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise ValueError("refused to be read")


def test_dataset_that_cannot_be_read_is_an_error():
    loader = mp.DataLoader(Unreadable(), num_workers=2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="refused to be read"):
            list(loader)


class SlowToRead(Dataset):
    def __len__(self):
        return 2

    def __setstate__(self, state):
        time.sleep(0.6)

    def __getstate__(self):
        return {"slow": True}

    def __getitem__(self, index):
        return index


def test_batch_timeout_leaves_time_to_read_the_dataset():
    loader = mp.DataLoader(SlowToRead(), num_workers=1, batch_timeout=0.3, retries=0)
    assert numbers(loader) == [0, 1]
    assert numbers(loader) == [0, 1]


def test_state_after_an_epoch_begins_a_new_copy():
    loader = mp.DataLoader(Counter(), num_workers=1, seed=4)
    assert numbers(loader) == [1, 2, 3, 4]
    state = loader.state_dict()
    assert not state["begun"] and "lanes" not in state
    other = mp.DataLoader(Counter(), num_workers=2, seed=4)
    other.load_state_dict(state)
    assert sorted(numbers(other)) == [1, 1, 2, 2, 3, 3, 4, 4]
