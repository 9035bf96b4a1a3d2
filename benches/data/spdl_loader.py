"""SPDL's pipelines of threads in the rows of the benchmark `data`; arguments, input and output as of torch_loader.py."""

import ctypes
import os
import sys
import time
from importlib.metadata import version

import numpy
from PIL import Image
from spdl.pipeline import PipelineBuilder

ROW, VARIANT, BATCHES, FOLDER, DECODER = sys.argv[1:]
BATCHES = int(BATCHES)
HOW, THREADS = VARIANT.split(" ")
SIDE = 224
LIBRARY = ctypes.CDLL(DECODER)
LIBRARY.mp_bench_decode.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
PATHS = sorted(os.path.join(FOLDER, name) for name in os.listdir(FOLDER) if name.endswith(".png"))


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


def main():
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


main()
