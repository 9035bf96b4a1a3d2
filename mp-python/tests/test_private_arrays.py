"""Arrays of messages that several workers read: each worker has its own."""

import functools

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import Dataset  # noqa: E402

import multiproc as mp  # noqa: E402
from mappings import mapping_of  # noqa: E402

WAIT = 30
kept = {}


def keep(*values):
    kept["values"] = values


def add_one(array, barrier, _=None):
    """Adds one to the first element, in two workers, and returns it when both have done so."""
    barrier.wait(WAIT)
    array[0] += 1
    barrier.wait(WAIT)
    seen = int(array[0])
    barrier.wait(WAIT)
    return seen


def add_one_to_kept(_):
    return add_one(*kept["values"])


def first_kept():
    return kept["values"][0]


def mappings_of_kept():
    return [mapping_of(array.ctypes.data) for array in kept["values"]]


def overlap_of_kept():
    whole, part = kept["values"]
    whole[3] = 8
    return part.tolist()


@pytest.fixture(params=[np.zeros, torch.zeros], ids=["numpy", "torch"])
def array(request):
    return request.param(10_000)


def seen_by_function(array):
    with mp.Pool(2) as pool:
        return pool.map(functools.partial(add_one, array, mp.Barrier(2)), range(2), chunksize=1)


def test_each_worker_has_its_array_of_a_function(array):
    assert seen_by_function(array) == [1, 1]
    assert array[0] == 0


def test_each_worker_has_its_initializer_array(array):
    with mp.Pool(2, keep, (array, mp.Barrier(2))) as pool:
        assert pool.map(add_one_to_kept, range(2), chunksize=1) == [1, 1]


def test_array_in_shared_memory_stays_shared(array):
    shared = mp.share(array)
    assert seen_by_function(shared) == [2, 2]
    assert shared[0] == 2


def test_tensor_that_torch_shares_stays_shared():
    tensor = torch.zeros(10_000).share_memory_()
    assert seen_by_function(tensor) == [2, 2]


def test_array_that_a_worker_returns_is_a_copy(array):
    with mp.Pool(1, keep, (array,)) as pool:
        pool.apply(first_kept)[:] = 9
        assert pool.apply(first_kept)[0] == 0


def test_arrays_of_a_worker_have_one_mapping():
    with mp.Pool(1, keep, [np.zeros(20_000) for _ in range(50)]) as pool:
        mappings = pool.apply(mappings_of_kept)
    assert mappings == [mappings[0]] * 50 and mappings[0][1] == "rw-p"


def test_overlapping_arrays_overlap_in_a_worker():
    array = np.arange(6)
    with mp.Pool(1, keep, (array, array[2:])) as pool:
        assert pool.apply(overlap_of_kept) == [2, 8, 4, 5]


class Changing(Dataset):
    def __init__(self, array):
        self.array = array

    def __len__(self):
        return 3

    def __getitem__(self, index):
        self.array[0] += 1
        return int(self.array[0])


def test_array_of_a_dataset_is_new_in_each_epoch(array):
    loader = mp.DataLoader(Changing(array), num_workers=1, batch_size=None)
    assert [list(loader) for _ in range(2)] == [[1, 2, 3]] * 2
    assert array[0] == 0
