"""``DataLoader``: order of the batches, random numbers, and copies."""

import random

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import Dataset, default_collate  # noqa: E402

import multiproc as mp  # noqa: E402
from loader_tasks import Numbers, RandomParts, equal  # noqa: E402
from multiproc import _multiproc  # noqa: E402


def is_shared(tensor):
    storage = tensor.untyped_storage()
    return _multiproc._contains(storage.data_ptr(), storage.nbytes())


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


def test_inline_loader_restores_generator_states():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    list(mp.DataLoader(Numbers(), 5, seed=2))
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_torch_seed_fixes_the_shuffle():
    def order():
        torch.manual_seed(21)
        return [batch.tolist() for batch in mp.DataLoader(range(30), 4, shuffle=True)]

    assert order() == order()


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


def test_iterable_workers_have_random_numbers_of_their_own():
    batches = list(mp.DataLoader(RandomParts(), 1, seed=3, num_workers=2))
    assert len({float(number) for _, number in batches}) == 23
