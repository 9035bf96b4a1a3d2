"""``DataLoader``: states, and epochs that continue from them."""

import itertools
import json
import os
import random
import time

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import IterableDataset, default_collate  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

import multiproc as mp  # noqa: E402
from loader_tasks import WORKERS, Numbers, Parts, RandomParts, equal  # noqa: E402


class StatefulParts(IterableDataset):
    """Dataset whose iterator has a state, and counts the samples that it has drawn since it was created."""

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


def test_state_is_small_and_counts_delivered_batches():
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
    """Sampler whose iterations each begin one number later."""

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
    with pytest.raises(ValueError, match="a map-style dataset, this loader has an iterable dataset"):
        mp.DataLoader(Parts(), 2).load_state_dict(state)
    for other in [{}, {"version": 1}, {"version": 1, "kind": "map", "begun": True, "epoch": 0}, None, [1]]:
        with pytest.raises(ValueError, match="not a DataLoader state: "):
            mp.DataLoader(range(20), 2).load_state_dict(other)
    parts = mp.DataLoader(Parts(), 2, num_workers=2)
    next(iter(parts))
    with pytest.raises(ValueError, match="of 2 workers, and this loader has 1"):
        mp.DataLoader(Parts(), 2, num_workers=1).load_state_dict(parts.state_dict())


class LateFirst(Numbers):
    """Dataset whose first sample waits for the fourth sample."""

    def __init__(self, path):
        super().__init__(12)
        self.path = str(path)

    def __getitem__(self, index):
        if index == 3:
            open(self.path, "w").close()
        end = time.monotonic() + 30
        while index == 0 and not os.path.exists(self.path):
            assert time.monotonic() < end
            time.sleep(0.005)
        return index


def test_state_counts_batches_that_came_early(tmp_path):
    loader = mp.DataLoader(LateFirst(tmp_path / "made"), 1, seed=1, num_workers=2, in_order=False)
    iterator = iter(loader)
    found = []
    while 0 not in found:
        found.append(int(next(iterator)))
    assert len(found) > 3
    state = loader.state_dict()
    assert state["batches"] == len(found) and "beyond" not in state
