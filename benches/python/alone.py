"""Figures of ``multiproc`` that no other library's queue, pool or loader has.

    pip install torch numpy ./mp-python ./examples/python/rust_dataset
    python benches/python/alone.py [--rounds 5] [--json FILE]

- A put of 64 MiB compared with ``memcpy`` to memory that was written before. A get returns an array in the
  shared memory itself: a copy fails.
- A batch of one 28×28 image that a worker in Rust makes: its time without the time that the same batch takes
  without workers, and the wait for a batch that is ready. Images in other memory than the worker's fail.
- Time until 8 new processes have imported torch, with and without ``set_forkserver_preload``.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np

import multiproc

SIZE = 64 << 20
BATCHES = 3000
PROCESSES = 8


def long_put():
    """Returns milliseconds of a copy, a put and a get of 64 MiB."""
    source = np.ones(SIZE, np.uint8)
    target = np.zeros_like(source)
    queue = multiproc.Queue()
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        np.copyto(target, source)
        copied = time.perf_counter()
        queue.put(source)
        put = time.perf_counter()
        got = queue.get()
        ended = time.perf_counter()
        assert multiproc.is_shared(got), "a get has copied"
        assert got[0] == got[-1] == 1
        del got
        times.append((copied - begun, put - copied, ended - put))
    return [1e3 * min(column) for column in zip(*times, strict=True)]


class Arena:
    """Addresses of the shared memory of an extension."""

    def __init__(self):
        with open("/proc/self/maps") as maps:
            shared = [line.split()[0].split("-") for line in maps if "/memfd:mp" in line]
        self.ranges = [(int(low, 16), int(high, 16)) for low, high in shared]

    def contains(self, tensor):
        return any(low <= tensor.data_ptr() < high for low, high in self.ranges)


def batches(**settings):
    """Returns microseconds of a batch."""
    import digits

    iterator = iter(digits.Images(BATCHES, batch_size=1, **settings))
    next(iterator)
    begun = time.perf_counter()
    last = None
    for last in iterator:
        pass
    elapsed = time.perf_counter() - begun
    images, classes = last
    assert classes.tolist() == [(BATCHES - 1) % 10] and images.shape == (1, 1, 28, 28)
    if settings:
        arena = Arena()
        assert arena.contains(images) and arena.contains(classes), "a batch was copied"
    return 1e6 * elapsed / (BATCHES - 1)


def ready_batch():
    """Returns microseconds of a request for a batch that its worker has already sent."""
    import digits

    count = 32
    iterator, times = iter(digits.Images(count, batch_size=1, num_workers=1, prefetch_factor=count)), []
    next(iterator)
    time.sleep(0.5)  # The worker makes the others.
    for _ in range(count - 1):
        begun = time.perf_counter()
        next(iterator)
        times.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(times)


def import_torch(queue):
    import torch

    queue.put(torch.__version__)


def starts(preloaded):
    """Returns milliseconds until 8 processes have imported torch, after a first one has."""
    if preloaded:
        multiproc.set_forkserver_preload(["__main__", "torch"])
    context, queue, times = multiproc.get_context("forkserver"), multiproc.Queue(), []
    for count in (1, PROCESSES):
        begun = time.perf_counter()
        processes = [context.Process(target=import_torch, args=(queue,)) for _ in range(count)]
        for process in processes:
            process.start()
        versions = {queue.get(timeout=120) for _ in processes}
        times.append(time.perf_counter() - begun)
        assert len(versions) == 1
        for process in processes:
            process.join(30)
            assert process.exitcode == 0
    return 1e3 * times[-1]


def starts_of_a_program(preloaded):
    """Returns the result of ``starts`` in another program: a fork server begins with what is preloaded."""
    command = [sys.executable, __file__, "--starts", "preloaded" if preloaded else "plain"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    return float(ran.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--starts", choices=["preloaded", "plain"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.starts:
        print(starts(options.starts == "preloaded"))
        return
    import torch  # noqa: F401, batches are tensors then

    long_put()  # Warm-up: the memory of later puts was written before, as the copy's.
    rounds = {}
    for _ in range(options.rounds):
        copied, put, got = long_put()
        alone = min(batches() for _ in range(3))
        with_worker = min(batches(num_workers=1) for _ in range(3))
        for name, unit, figures in [
            ("64 MiB: put", "ms", {"multiproc": put, "memcpy": copied}),
            ("64 MiB: get", "ms", {"multiproc": got}),
            ("Rust worker: overhead of a batch", "µs", {"multiproc": max(0.0, with_worker - alone)}),
            ("Rust worker: wait for a ready batch", "µs", {"multiproc": ready_batch()}),
            (
                "8 processes with torch, preloaded",
                "ms",
                {"multiproc": starts_of_a_program(True), "without preload": starts_of_a_program(False)},
            ),
        ]:
            row = rounds.setdefault(name, (unit, {}))
            for contender, figure in figures.items():
                row[1].setdefault(contender, []).append(figure)
    rows = {}
    for name, (unit, figures) in rounds.items():
        rows[name] = {"unit": unit}
        for contender, values in figures.items():
            median, spread = statistics.median(values), (max(values) - min(values)) / 2
            rows[name][contender] = median
            print(f"{name:40} {contender:16} {median:9.2f} ± {spread:.2f} {unit}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
