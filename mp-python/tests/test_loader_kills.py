"""``DataLoader``: deaths of workers, exceptions of datasets, and time-outs."""

import contextlib
import os
import random
import signal
import sys
import threading
import time

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import Dataset  # noqa: E402

import multiproc as mp  # noqa: E402
from loader_tasks import Numbers, Once, Parts, RandomParts, SleepDataset, equal  # noqa: E402
from pool_tasks import LONG  # noqa: E402


class KilledOnce(Numbers):
    def __init__(self, path, at):
        super().__init__()
        self.once, self.at = Once(path), at

    def __getitem__(self, index):
        if index == self.at and self.once.first():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Poisoned(Numbers):
    """One sample kills its process, and one sample raises an exception."""

    def __init__(self, kills=5, raises=9):
        super().__init__(16)
        self.kills, self.raises = kills, raises

    def __getitem__(self, index):
        if index == self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == self.raises:
            raise KeyError(f"no sample {index}")
        return index


class PartsKilledOnce(RandomParts):
    def __init__(self, path, at):
        super().__init__()
        self.once, self.at = Once(path), at

    def sample(self, number):
        if number == self.at and self.once.first():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().sample(number)


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
            # The worker that was killed last may not be replaced yet.
            with contextlib.suppress(ProcessLookupError):
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
    message = "is killed by signal: SIGKILL, in batch 1, at sample 5, after 1 retry: "
    with pytest.raises(mp.BatchLost, match=message) as raised:
        next(iterator)
    error = raised.value
    assert (error.batch, error.index, error.exitcode) == (1, 5, -signal.SIGKILL) and error.pid > 0
    assert "note" not in str(error)
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


def test_unpicklable_batch_raises():
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
    assert "note" not in str(raised.value)
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


class Deadly(Numbers):
    def __init__(self, kills):
        super().__init__(16)
        self.kills = kills

    def __getitem__(self, index):
        if index == 5:
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError(index)
        return super().__getitem__(index)


def test_skip_of_a_deadly_sample_keeps_random_numbers():
    options = dict(batch_size=4, seed=3, num_workers=1, retries=0, on_error="skip")
    raised, killed = (list(mp.DataLoader(Deadly(kills), **options)) for kills in (False, True))
    assert equal(killed, raised)


class StuckParts(Parts):
    def sample(self, number):
        time.sleep(LONG)


def test_iterable_times_out_in_any_order():
    loader = mp.DataLoader(StuckParts(), 2, num_workers=2, in_order=False, timeout=0.2)
    with pytest.raises(mp.BatchTimeout, match="timed out after 0.2 seconds"):
        next(iter(loader))
