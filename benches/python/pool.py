"""Pool calls of multiproc compared with multiprocessing, in one run.

    python benches/python/pool.py [--rounds 7] [--json FILE]

Both pools have two workers and stay alive. Rounds of the two alternate; the figure is the median. The results
of every round are checked.
"""

import argparse
import json
import multiprocessing
import operator
import statistics
import sys
import time

import multiproc

WORKERS = 2
MANY = 1_000_000
SOME = 20_000


def inc(x):
    return x + 1


def add(x, y):
    return x + y


def map_list(pool):
    items = list(range(MANY))
    begin = time.perf_counter()
    results = pool.map(inc, items)
    return time.perf_counter() - begin, results == list(range(1, MANY + 1))


def map_range(pool):
    begin = time.perf_counter()
    results = pool.map(inc, range(MANY))
    return time.perf_counter() - begin, results == list(range(1, MANY + 1))


def map_builtin(pool):
    items = [float(x) for x in range(MANY)]
    begin = time.perf_counter()
    results = pool.map(operator.neg, items)
    return time.perf_counter() - begin, results == [-x for x in items]


def starmap(pool):
    items = [(x, x) for x in range(MANY // 4)]
    begin = time.perf_counter()
    results = pool.starmap(add, items)
    return time.perf_counter() - begin, results == [2 * x for x in range(MANY // 4)]


def map_one_by_one(pool):
    begin = time.perf_counter()
    results = pool.map(inc, range(SOME), chunksize=1)
    return time.perf_counter() - begin, results == list(range(1, SOME + 1))


def imap(pool):
    begin = time.perf_counter()
    results = list(pool.imap(inc, range(SOME)))
    return time.perf_counter() - begin, results == list(range(1, SOME + 1))


def imap_unordered(pool):
    begin = time.perf_counter()
    results = sorted(pool.imap_unordered(inc, range(SOME), chunksize=10))
    return time.perf_counter() - begin, results == list(range(1, SOME + 1))


def apply(pool):
    begin = time.perf_counter()
    results = [pool.apply(inc, (x,)) for x in range(2000)]
    return time.perf_counter() - begin, results == list(range(1, 2001))


def apply_async(pool):
    begin = time.perf_counter()
    results = [result.get() for result in [pool.apply_async(inc, (x,)) for x in range(SOME)]]
    return time.perf_counter() - begin, results == list(range(1, SOME + 1))


def map_bytes(pool):
    items = [bytes([x]) * (1 << 20) for x in range(64)]
    begin = time.perf_counter()
    results = pool.map(len, items, chunksize=1)
    return time.perf_counter() - begin, results == [1 << 20] * 64


ROWS = [
    (map_list, "map of a list, 1 M ints"),
    (map_range, "map of a range, 1 M ints"),
    (map_builtin, "map of a list, 1 M floats, a function of C"),
    (starmap, "starmap, 250 K pairs"),
    (map_one_by_one, "map, 20 K ints, chunksize 1"),
    (imap, "imap, 20 K ints"),
    (imap_unordered, "imap_unordered, 20 K ints, chunksize 10"),
    (apply, "apply, 2 K calls"),
    (apply_async, "apply_async, 20 K calls"),
    (map_bytes, "map, 64 items of 1 MiB"),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    rounds, rows = options.rounds, {}
    ours = multiproc.get_context("forkserver").Pool(WORKERS)
    theirs = multiprocessing.get_context("fork").Pool(WORKERS)
    print(f"Python {sys.version.split()[0]}, {WORKERS} workers, median of {rounds} rounds")
    print("| call | multiprocessing, ms | multiproc, ms | times faster |\n|---|---|---|---|")
    with ours, theirs:
        for row, name in ROWS:
            times = {ours: [], theirs: []}
            for _ in range(rounds):
                for pool in (theirs, ours):
                    seconds, is_right = row(pool)
                    assert is_right, f"{name}: wrong results of {pool}"
                    times[pool].append(seconds)
            fast, slow = statistics.median(times[ours]), statistics.median(times[theirs])
            rows[name] = {"multiproc": fast * 1e3, "multiprocessing": slow * 1e3}
            print(f"| {name} | {slow * 1e3:.1f} | {fast * 1e3:.1f} | {slow / fast:.1f} |", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
