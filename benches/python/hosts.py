"""Ray's queue and pool on two hosts, for `cargo xtask net --figures`.

    python hosts.py head ADDRESS              starts the first node, and blocks until the input ends
    python hosts.py measure HEAD ADDRESS      starts the second node, and measures

The actor of the queue is on the first node, and its callers are on the second one. Both nodes have processors
for two processes of the pool. Prints lines `figure NAME VALUE`.
"""

import subprocess
import sys
import time

import numpy as np
import ray
from ray.util.multiprocessing import Pool
from ray.util.queue import Queue

PORT = 6379
ROUNDS = 1000
PIPELINED, BATCH = 50_000, 1000
BYTES = 128 << 20
TASKS, ONE_BY_ONE = 100_000, 1_000


def start(address, *args):
    """Starts a node. Its processes end with the namespace of the host."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={address}"]
    command += ["--disable-usage-stats", "--object-store-memory=1000000000", *args]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout)


def figure(name, value):
    print("figure", name, value, flush=True)


def latency(queue):
    value = b"x" * 64
    times = []
    for _ in range(ROUNDS):
        since = time.perf_counter()
        queue.put(value)
        times.append(time.perf_counter() - since)
        if queue.size() > 4096:
            queue.get_nowait_batch(4096)
    times = sorted(times[ROUNDS // 10 :])
    figure("rtt-p50", times[len(times) // 2] * 1e6)
    figure("rtt-p99", times[len(times) * 99 // 100] * 1e6)
    queue.get_nowait_batch(queue.size())


def pipelined(queue):
    # Of one object, pickle would send a reference.
    batches = [[b"%064d" % (at + i) for i in range(BATCH)] for at in range(0, PIPELINED, BATCH)]
    since = time.perf_counter()
    ray.get([queue.actor.put_nowait_batch.remote(batch) for batch in batches])
    figure("pipelined-bytes", PIPELINED / (time.perf_counter() - since))
    assert queue.size() == PIPELINED
    queue.get_nowait_batch(PIPELINED)


def throughput(queue, size):
    """Sends arrays, with up to 64 MiB of calls that have no answer."""
    count, ahead = BYTES // size, max((64 << 20) // size, 1)
    arrays = [np.full(size, number % 251, np.uint8) for number in range(ahead)]
    since = time.perf_counter()
    pending = []
    for number in range(count):
        if len(pending) == ahead:
            ray.get(pending.pop(0))
        pending.append(queue.actor.put.remote(arrays[number % ahead]))
    ray.get(pending)
    figure(f"gbs-{size >> 20}-MiB", BYTES / (time.perf_counter() - since) / 1e9)
    assert queue.size() == count
    queue.get_nowait_batch(count)


def square(x):
    return x * x


def pool():
    with Pool(4) as workers:
        expected = [x * x for x in range(TASKS)]
        for name, count, chunk in (("tasks", TASKS, None), ("tasks-alone", ONE_BY_ONE, 1)):
            best = 0
            for _ in range(3 if chunk is None else 1):
                since = time.perf_counter()
                results = workers.map(square, range(count), chunksize=chunk)
                best = max(best, count / (time.perf_counter() - since))
                assert results == expected[:count]
            figure(name, best)


def measure(head, address):
    start(address, f"--address={head}:{PORT}", "--num-cpus=2")
    ray.init(address="auto", log_to_driver=False)
    queue = Queue(actor_options={"num_cpus": 0, "resources": {"first": 0.01}})
    latency(queue)
    pipelined(queue)
    for size in (1 << 20, 16 << 20):
        throughput(queue, size)
    queue.shutdown()
    pool()
    print("end", flush=True)


if sys.argv[1] == "head":
    first = ["--head", f"--port={PORT}", '--resources={"first": 1}', "--include-dashboard=false"]
    start(sys.argv[2], *first, "--num-cpus=2")
    print("ready", flush=True)
    sys.stdin.read()
    print("end", flush=True)
else:
    measure(*sys.argv[2:])
