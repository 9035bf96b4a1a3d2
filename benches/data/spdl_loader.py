"""SPDL's pipelines of threads in the rows of the benchmark `data`; arguments, input and output as of torch_loader.py."""

import ctypes
import os
import sys
import time
from functools import partial
from importlib.metadata import version

import numpy
from PIL import Image
from spdl.pipeline import PipelineBuilder, SharedMemorySegmentPool, iterate_in_subprocess

ROW, VARIANT, BATCHES, FOLDER, DECODER = sys.argv[1:]
BATCHES = int(BATCHES)
HOW, THREADS = VARIANT.split(" ")
SIDE = 224
LIBRARY = ctypes.CDLL(DECODER)
LIBRARY.mp_bench_decode.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
PATHS = sorted(os.path.join(FOLDER, name) for name in os.listdir(FOLDER) if name.endswith(".jpg"))


def filled(indices):
    batch = numpy.empty((len(indices), 3, SIDE, SIDE), dtype=numpy.float32)
    for row, index in zip(batch, indices):
        row.fill(index)
    return batch


def by_pil(indices):
    batch = numpy.empty((len(indices), SIDE, SIDE, 3), dtype=numpy.uint8)
    for row, index in zip(batch, indices):
        image = Image.open(PATHS[index % len(PATHS)])
        left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
        row[:] = image.crop((left, top, left + SIDE, top + SIDE))
    return batch


def by_ours(indices):
    """By the decoder of the Rust rows."""
    batch = numpy.empty((len(indices), SIDE, SIDE, 3), dtype=numpy.uint8)
    for row, index in zip(batch, indices):
        if LIBRARY.mp_bench_decode(PATHS[index % len(PATHS)].encode(), row.ctypes.data, row.nbytes) != 0:
            raise RuntimeError("an image can't be decoded")
    return batch


def numbers(indices):
    return numpy.array(indices, dtype=numpy.int64)


def ends(batch):
    return int(batch[0, 0, 0, 0]) + int(batch[-1, -1, -1, -1])


def pixels(batch):
    return int(batch[0].sum()) + int(batch[-1].sum())


def total(batch):
    return int(batch.sum())


class Large:
    """Items of 32 MiB, each of which begins and ends with its number."""

    def __init__(self, count):
        self.count = count
        self.item = numpy.full(32 << 20, 7, dtype=numpy.uint8)

    def __iter__(self):
        numbers = self.item.view(numpy.int64)
        for number in range(self.count):
            numbers[0] = numbers[-1] = number
            yield self.item


def large_items():
    """GB a second of a process that hands its items over in a pool of segments of shared memory."""
    segments = int(THREADS)
    arena = SharedMemorySegmentPool((32 << 20) + 4096, segments)
    items = iterate_in_subprocess(partial(Large, BATCHES), buffer_size=segments, arena=arena)

    def round_():
        start = time.perf_counter()
        check, count = 0, 0
        for item in items:
            numbers = item.view(numpy.int64)
            check += (count + 1) * (int(numbers[0]) + int(numbers[-1]))
            count += 1
            del item, numbers
        took = time.perf_counter() - start
        assert count == BATCHES, count
        return count * (32 << 20) / took / 1e9, check

    return round_


def main():
    if ROW == "items_32m":
        round_ = large_items()
        print("versions", f"SPDL {version('spdl')}", sep="\t", flush=True)
        for _ in sys.stdin:
            print("round", *round_(), sep="\t", flush=True)
        return
    size, make, check = {
        "transfer": (64, filled, ends),
        "decode": (16, by_ours if HOW == "same" else by_pil, pixels),
        "numbers_256": (256, numbers, total),
        "number": (1, numbers, total),
    }[ROW]
    batches = [list(range(size * k, size * (k + 1))) for k in range(BATCHES)]
    print("versions", f"SPDL {version('spdl')}", sep="\t", flush=True)
    for _ in sys.stdin:
        builder = PipelineBuilder().add_source(batches).pipe(make, concurrency=int(THREADS), output_order="input").add_sink(4)
        pipeline = builder.build(num_threads=int(THREADS))
        start = time.perf_counter()
        sum_, count = 0, 0
        with pipeline.auto_stop():
            for number, batch in enumerate(pipeline):
                sum_ += (number + 1) * check(batch)
                count += 1
            took = time.perf_counter() - start
        assert count == BATCHES, count
        print("round", count / took, sum_, sep="\t", flush=True)


if __name__ == "__main__":
    main()
