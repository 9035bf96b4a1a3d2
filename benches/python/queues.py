"""Queues of Python objects: multiproc compared with multiprocessing, torch's, faster-fifo and pyzmq.

    python benches/python/queues.py [--rounds 5] [--quick] [--json FILE]

A round trip goes to another process and back. All queues are measured in one run, in turn. The number of every
answer is checked, and the elements of one in eight: a wrong one ends the benchmark. Of each round, a fifth more
round trips are made before the clock starts. Figures are medians of the rounds, with half of the distance
between the lowest and the highest.
"""

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import pickle
import statistics
import sys
import tempfile
import time

import numpy as np
import torch

import multiproc

KIB, MIB = 1 << 10, 1 << 20


class Zmq:
    """One direction of a pair of sockets over ipc, with pickle 5 and its buffers as frames."""

    def __init__(self):
        self.path = "ipc://" + tempfile.mktemp(prefix="queues-", dir="/tmp")
        self.socket = None

    def __getstate__(self):
        return self.path, None

    def __setstate__(self, state):
        self.path, self.socket = state

    def open(self, binds):
        import zmq

        if self.socket is None:
            self.socket = zmq.Context.instance().socket(zmq.PAIR)
            self.socket.set_hwm(0)
            (self.socket.bind if binds else self.socket.connect)(self.path)

    def put(self, obj):
        self.open(True)
        buffers = []
        head = pickle.dumps(obj, 5, buffer_callback=buffers.append)
        self.socket.send_multipart([head, *buffers], copy=False)

    def get(self):
        self.open(False)
        head, *buffers = self.socket.recv_multipart(copy=False)
        return pickle.loads(head.buffer, buffers=[frame.buffer for frame in buffers])


class FasterFifo:
    def __init__(self):
        import faster_fifo
        import faster_fifo_reduction  # noqa: F401

        self.queue = faster_fifo.Queue(256 * MIB)

    def put(self, obj):
        self.queue.put(obj, timeout=60)

    def get(self):
        return self.queue.get(timeout=60)


def peers():
    """Returns for each peer: its context of processes, its queue, and whether it takes tensors or arrays."""
    ours, std, theirs = (
        multiproc.get_context("spawn"),
        multiprocessing.get_context("spawn"),
        torch.multiprocessing.get_context("spawn"),
    )
    return {
        "multiproc": (ours, ours.Queue, "tensors"),
        "multiproc, numpy": (ours, ours.Queue, "arrays"),
        "torch Queue": (theirs, theirs.Queue, "tensors"),
        "torch SimpleQueue": (theirs, theirs.SimpleQueue, "tensors"),
        "multiprocessing": (std, std.Queue, "arrays"),
        "faster-fifo": (std, FasterFifo, "arrays"),
        "pyzmq": (std, Zmq, "arrays"),
    }


def array(size, kind):
    made = np.arange(size // 4, dtype=np.float32)
    return torch.from_numpy(made) if kind == "tensors" else made


def payload(row, kind, i):
    if row == "small dict":
        return {"id": i, "name": "resize", "scale": 0.5, "done": False}
    if row == "two 16 KB":
        return {"id": i, "pixels": array(16 * KIB, kind), "labels": array(16 * KIB, kind)}
    return {"id": i, "pixels": array(MIB, kind)}


def check(row, sent, got):
    assert got["id"] == sent["id"]
    if row != "small dict" and got["id"] == 7:
        assert type(got["pixels"]) is type(sent["pixels"])
        assert float(got["pixels"][-1]) == float(sent["pixels"][-1])


def serve(there, back):
    """Runs in the other process: answers, or takes a number of messages and then answers with their sum."""
    torch.set_num_threads(1)
    back.put("ready")
    while True:
        message = there.get()
        if message is None:
            return
        if isinstance(message, int):
            total = 0
            for _ in range(message):
                total += len(there.get())
            back.put(total)
        else:
            back.put(message)


class Peer:
    def __init__(self, name, context, make, kind):
        self.name, self.kind = name, kind
        self.there, self.back = make(), make()
        if isinstance(self.there, Zmq):
            self.there.open(True)
        self.process = context.Process(target=serve, args=(self.there, self.back), daemon=True)
        self.process.start()
        self.figures = {}

    def round_trip(self, row, count):
        messages = [payload(row, self.kind, i) for i in range(8)]
        # The first ones find both processes asleep and caches cold: they are not counted.
        for i in range(-(count // 5), count):
            if i == 0:
                begun = time.perf_counter()
            message = messages[i % 8]
            self.there.put(message)
            check(row, message, self.back.get())
        self.add(row, (time.perf_counter() - begun) / count * 1e6)

    def one_way(self, count):
        message = os.urandom(4 * KIB)
        begun = time.perf_counter()
        self.there.put(count)
        for _ in range(count):
            self.there.put(message)
        assert self.back.get() == 4 * KIB * count
        self.add("4 KiB one way", count / (time.perf_counter() - begun) / 1e3)

    def add(self, row, figure):
        self.figures.setdefault(row, []).append(figure)

    def end(self):
        self.there.put(None)
        self.process.join(10)
        self.process.kill()


ROWS = {
    "small dict": ("µs", 4000),
    "two 16 KB": ("µs", 1000),
    "1 MiB": ("µs", 200),
    "4 KiB one way": ("k/s", 20000),
}


def summary(values):
    return statistics.median(values), (max(values) - min(values)) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--only", help="peers to measure, by the beginnings of their names, with commas")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    versions = {name: importlib.metadata.version(name) for name in ["torch", "numpy", "faster-fifo", "pyzmq"]}
    print("Python", sys.version.split()[0], *[f"{name} {version}" for name, version in versions.items()])
    chosen = {
        name: peer
        for name, peer in peers().items()
        if not options.only or name.startswith(tuple(options.only.split(",")))
    }
    running = [Peer(name, *peer) for name, peer in chosen.items()]
    for peer in running:
        assert peer.back.get() == "ready"
    for round in range(options.rounds + 1):
        print(f"round {round} of {options.rounds}", file=sys.stderr)
        for row, (_, count) in ROWS.items():
            count = max(20, count // (10 if options.quick or round == 0 else 1))
            for peer in running:
                slow = peer.name.startswith("torch") and row not in ("small dict", "4 KiB one way")
                number = max(20, count // 10) if slow else count
                if row == "4 KiB one way":
                    peer.one_way(number)
                else:
                    peer.round_trip(row, number)
        if round == 0:
            # Warm-up.
            for peer in running:
                peer.figures.clear()
    for peer in running:
        peer.end()
    result = {"versions": versions, "rows": {}}
    for row, (unit, _) in ROWS.items():
        print(f"\n{row} ({unit})")
        base = None
        for peer in running:
            median, spread = summary(peer.figures[row])
            base = base or median
            ratio = base / median if unit == "k/s" else median / base
            print(f"  {peer.name:20} {median:10.1f} ± {spread:6.1f}   {ratio:6.1f} times")
            result["rows"].setdefault(row, {})[peer.name] = {"median": median, "spread": spread, "unit": unit}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
