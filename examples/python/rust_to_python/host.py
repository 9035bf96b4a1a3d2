"""Starts a Rust program, and sends it batches.

    cargo build --manifest-path examples/python/rust_to_python/Cargo.toml
    python examples/python/rust_to_python/host.py mp-python/target/debug/rust_to_python
"""

import argparse
import os
import sys
from dataclasses import dataclass
from typing import Annotated

try:
    import multiproc
    import numpy as np
except ImportError as error:
    sys.exit(f"{error}: pip install ./mp-python numpy")


BATCH = "vision/batch/1(pixels:tensor<f32>,class:tensor<i64>,path:str)"
ANSWER = "vision/answer/1(path:str,brightness:tensor<f32>,highest:option<f64>)"


@multiproc.message("vision/job/1")
@dataclass
class Job:
    batches: Annotated[multiproc.TypedQueue, f"queue<{BATCH}>"]
    answers: Annotated[multiproc.TypedQueue, f"queue<{ANSWER}>"]
    scale: float


def main():
    parser = argparse.ArgumentParser(description="Starts a Rust program, and sends it batches.")
    parser.add_argument("program", help="path of rust_to_python, which cargo build makes in target/debug")
    program = parser.parse_args().program
    if not os.access(program, os.X_OK):
        parser.error(f"{program} is not a program: cargo build makes it")
    batches = multiproc.TypedQueue(BATCH, 4)
    answers = multiproc.TypedQueue(ANSWER, 4)
    job = Job(batches, answers, 0.5)
    worker = multiproc.start_guest([program, "guest"], job, name="worker")
    for number in range(3):
        pixels = np.full((4, 28, 28), number, np.float32) + np.arange(4, dtype=np.float32)[:, None, None]
        batches.put({"pixels": pixels, "class": np.arange(4), "path": f"images/{number}"})
    batches.shutdown()
    for number in range(3):
        answer = answers.get()
        print(f"{answer['path']}: {answer['brightness'].tolist()}, at most {answer['highest']}")
        assert answer["brightness"].tolist() == [0.5 * (number + i) for i in range(4)]
    assert worker.wait(10) == 0
    print("the worker has ended")


if __name__ == "__main__":
    main()
