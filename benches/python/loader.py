"""Batches a second of ``multiproc.DataLoader`` and of torch's, deaths, and starts of workers.

    python benches/python/loader.py [--rounds 5] [--batches 40] [--json loader.json]

Needs the package built with ``--release``, torch and two processors. Both loaders have the same dataset and
settings: two workers, batches of 64×3×224×224 float32 (38 MB), order kept, workers that persist, nothing
pinned. torch's workers are forked, its fastest way. The loaders take turns in each round, after an epoch that
isn't counted. The indices and the first and last elements of each batch are compared; a wrong one fails.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import time

import torch

import multiproc as mp

SHAPE = (3, 224, 224)
BATCH = 64


class Images(torch.utils.data.Dataset):
    """Each sample is a tensor of its own."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full(SHAPE, float(index)), index


class InPlace(Images):
    """Samples are written into the batch, in shared memory."""

    def __getbatch__(self, indices):
        pixels = mp.empty(len(indices), *SHAPE, dtype=torch.float32)
        for row, index in zip(pixels, indices, strict=True):
            row.fill_(float(index))
        return pixels, torch.tensor(indices)


class Small(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return index


def check(batch, number):
    pixels, indices = batch
    first = number * BATCH
    assert indices.tolist() == list(range(first, first + BATCH)), f"batch {number} has other samples"
    assert pixels[0, 0, 0, 0] == first and pixels[-1, -1, -1, -1] == first + BATCH - 1


def epoch(loader, batches):
    """Returns batches a second, from the first request of a batch to the last batch."""
    begin = time.perf_counter()
    count = 0
    for count, batch in enumerate(loader, 1):
        check(batch, count - 1)
    elapsed = time.perf_counter() - begin
    assert count == batches, f"{count} of {batches} batches"
    return batches / elapsed


def gap_after_death(batches):
    """Returns the longest wait for a batch after a worker is killed, and the median wait, in ms."""
    loader = mp.DataLoader(Images(batches * BATCH), BATCH, num_workers=2)
    epoch(loader, batches)
    waits, last = [], None
    for number, batch in enumerate(loader):
        now = time.perf_counter()
        if last is not None:
            waits.append(now - last)
        last = now
        check(batch, number)
        if number == batches // 2:
            os.kill(loader.pids()[0], signal.SIGKILL)
    assert number == batches - 1, "batches are missing"
    return 1e3 * max(waits[batches // 2 :]), 1e3 * statistics.median(waits)


def starts(workers):
    """Returns the time until all workers are ready, of the first epoch and of a later one, in ms."""
    loader = mp.DataLoader(Small(), 1, num_workers=workers)
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        iterator = iter(loader)
        while loader._team.ready() < workers:
            time.sleep(0.0005)
        times.append(1e3 * (time.perf_counter() - begin))
        pids = loader.pids()
        assert sorted(int(one) for one in iterator) == list(range(64))
        assert loader.pids() == pids
    return times


def summary(values):
    low, high = min(values), max(values)
    if len(values) >= 5:
        tenths = statistics.quantiles(values, n=10, method="inclusive")
        low, high = tenths[0], tenths[-1]
    return {"median": statistics.median(values), "spread": (high - low) / 2, "values": values}


def show(name, row, unit):
    print(f"{name:44} {row['median']:9.1f} ± {row['spread']:.1f} {unit}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--json", help="writes the figures into this file")
    options = parser.parse_args()
    batches, length = options.batches, options.batches * BATCH
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} processors")
    torch.set_num_threads(1)

    begin = time.perf_counter()
    next(iter(mp.DataLoader(Small(), num_workers=1)))
    cold = 1e3 * (time.perf_counter() - begin)
    begun = [starts(8) for _ in range(options.rounds)]

    peer = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
    loaders = {
        "torch": torch.utils.data.DataLoader(Images(length), BATCH, **peer),
        "unchanged dataset": mp.DataLoader(Images(length), BATCH, num_workers=2),
        "in place": mp.DataLoader(InPlace(length), BATCH, num_workers=2),
    }
    rates = {name: [] for name in loaders}
    for turn in range(options.rounds + 1):
        for name, loader in loaders.items():
            rate = epoch(loader, batches)
            if turn:
                rates[name].append(rate)
    del loaders, loader
    deaths = [gap_after_death(batches) for _ in range(options.rounds)]

    rows = {f"batches of 38 MB, {name}": summary(values) for name, values in rates.items()}
    for name, row in rows.items():
        show(name, row, "batches/s")
    for name in ("unchanged dataset", "in place"):
        ratios = [ours / theirs for ours, theirs in zip(rates[name], rates["torch"], strict=True)]
        row = rows[f"ratio to torch, {name}"] = summary(ratios)
        show(f"ratio to torch, {name}", row, "×")
    for name, values in {
        "longest wait after a death": [gap for gap, _ in deaths],
        "median wait for a batch": [median for _, median in deaths],
        "delay after a killed worker": [gap - median for gap, median in deaths],
        "8 workers ready, first epoch": [first for first, _ in begun],
        "8 workers ready, later epoch": [later for _, later in begun],
        "first batch of a program, torch imported": [cold],
    }.items():
        rows[name] = summary(values)
        show(name, rows[name], "ms")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"torch": torch.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
