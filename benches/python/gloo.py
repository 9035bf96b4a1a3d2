"""Send and receive of torch.distributed's gloo on two hosts, for `cargo xtask net --figures`.

    python gloo.py RANK ADDRESS               the address is that of rank 0, which answers

Prints lines `figure NAME VALUE`.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

PORT = 6390
ROUNDS = 3000
BYTES = 512 << 20
SIZES = [1 << 20, 16 << 20]


def figure(name, value):
    print("figure", name, value, flush=True)


def answer(small, done):
    for _ in range(ROUNDS):
        dist.recv(small, 1)
        dist.send(done, 1)
    for size in SIZES:
        large = torch.zeros(size, dtype=torch.uint8)
        for _ in range(BYTES // size):
            dist.recv(large, 1)
        dist.send(done, 1)


def measure(small, done):
    times = []
    for _ in range(ROUNDS):
        since = time.perf_counter()
        dist.send(small, 0)
        dist.recv(done, 0)
        times.append(time.perf_counter() - since)
    times = sorted(times[ROUNDS // 10 :])
    figure("rtt-p50", times[len(times) // 2] * 1e6)
    figure("rtt-p99", times[len(times) * 99 // 100] * 1e6)
    for size in SIZES:
        large = torch.ones(size, dtype=torch.uint8)
        since = time.perf_counter()
        for _ in range(BYTES // size):
            dist.send(large, 0)
        dist.recv(done, 0)
        figure(f"gbs-{size >> 20}-MiB", BYTES / (time.perf_counter() - since) / 1e9)


def main():
    rank, address = int(sys.argv[1]), sys.argv[2]
    # Otherwise gloo looks up the name of its host.
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    print("ready", flush=True)
    dist.init_process_group("gloo", init_method=f"tcp://{address}:{PORT}", rank=rank, world_size=2)
    small, done = torch.ones(64, dtype=torch.uint8), torch.ones(1, dtype=torch.uint8)
    (answer if rank == 0 else measure)(small, done)
    dist.destroy_process_group()
    print("end", flush=True)


if __name__ == "__main__":
    main()
