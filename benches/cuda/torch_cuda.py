"""CUDA tensors between processes, by torch.multiprocessing: the peer of the program `cuda` of this package, which runs it.

    python3 torch_cuda.py --serve [--pairs N] [--device cuda|cpu] [--quick]
    python3 torch_cuda.py --only warm_4k,cold        # alone, a round of each

What its processes do is in `torch_cuda_jobs.py`, which has to lie beside it. As a server it takes lines `ROW ROUND` from the standard
input, and answers lines of JSON: rows, notes, and at last `{"done": row}` or `{"failed": row, "why": ...}`. Processes are started once,
by `spawn`; `--pairs` says how many fresh pairs are held ready for rows that need new processes. `--device cpu` is a rehearsal of
processes, queues and output: times mean nothing there.

Times between processes are of CLOCK_MONOTONIC, which they share. Producers use the default stream, since a queue's feeder thread
records the event for the receiver there. What is done for torch's sake: caches are warm, outputs are made before, gradients are off,
acknowledgements go by a SimpleQueue, both kinds of queues are measured, and where that helps (`_kept`) the receiver keeps a
tensor of the same allocation, so that the allocation's handle is not opened anew for each message.
"""

import argparse
import json
import queue as queues
import random
import sys
import time
import traceback

import torch
import torch.multiprocessing as tmp

from torch_cuda_jobs import MIB, WORKERS, worker

OBSERVER = 3
# The longest that one job may take.
DEADLINE = 18
KINDS = {"queue": "torch_queue", "simple": "torch_simplequeue"}


class Failed(Exception):
    pass


class Worker:
    def __init__(self, ctx, device, wires):
        # A process that has started doesn't keep its arguments: without this the queues would be gone before the child opens them.
        self.wires = wires
        self.jobs, self.replies = ctx.SimpleQueue(), ctx.Queue()
        self.process = ctx.Process(target=worker, args=(device, self.jobs, self.replies, wires), daemon=True)
        self.process.start()

    def ask(self, name, **options):
        self.jobs.put((name, options))

    def reply(self, seconds=DEADLINE):
        end = time.monotonic() + seconds
        while True:
            try:
                kind, value = self.replies.get(timeout=0.2)
                break
            except queues.Empty:
                if not self.process.is_alive():
                    raise Failed(f"a worker has ended: {self.process.exitcode}") from None
                if time.monotonic() > end:
                    raise Failed(f"a worker gave no answer within {seconds} s") from None
        if kind != "ok":
            raise Failed(value)
        return value

    def end(self):
        self.jobs.put(None)
        self.process.join(8)
        if self.process.is_alive():
            self.kill()
            raise Failed("a worker didn't end within 8 s, and was killed")

    def kill(self):
        self.process.kill()
        self.process.join(5)


def line(value):
    print(json.dumps(value), flush=True)


def note(text):
    line({"note": text})


def quantile(ordered, share):
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def tell(row, who, unit, samples):
    ordered = sorted(float(sample) for sample in samples)
    median, p10, p90 = (round(quantile(ordered, share), 4) for share in (0.5, 0.1, 0.9))
    line({"row": row, "who": who, "unit": unit, "median": median, "p10": p10, "p90": p90, "n": len(ordered)})


def us(samples):
    return [ns / 1000 for ns in samples]


class Server:
    def __init__(self, device, pairs, quick):
        self.ctx = tmp.get_context("spawn")
        self.device, self.quick = device, quick
        self.workers, self.pairs = [], []
        self.start_workers()
        self.pairs = [self.new_pair() for _ in range(pairs)]
        # The program that runs this has a deadline.
        for one in self.workers + [one for pair in self.pairs for one in pair[:2]]:
            one.reply(600)
        self.contexts()

    def lanes(self, count):
        return {
            "queue": [self.ctx.Queue() for _ in range(count)],
            "simple": [self.ctx.SimpleQueue() for _ in range(count)],
            "acks": [self.ctx.SimpleQueue() for _ in range(2)],
        }

    def start_workers(self):
        wires = self.lanes(WORKERS)
        self.workers = [Worker(self.ctx, self.device, wires) for _ in range(WORKERS)]

    def contexts(self):
        for one in self.workers:
            one.ask("start")
        for one in self.workers:
            one.reply()

    def new_pair(self):
        """Two processes that have done nothing but import torch, and what they need."""
        stopped, stop = self.ctx.Pipe(duplex=False)
        begun = self.ctx.Queue()
        wires = self.lanes(3) | {"bounded": self.ctx.Queue(4), "begun": begun, "stop": stopped}
        return [Worker(self.ctx, self.device, wires), Worker(self.ctx, self.device, wires), begun, stop]

    def pair(self):
        if self.pairs:
            return self.pairs.pop()
        pair = self.new_pair()
        for one in pair[:2]:
            one.reply(30)
        return pair

    def all_workers(self):
        if not self.workers:
            self.start_workers()
            for one in self.workers:
                one.reply(30)
            self.contexts()

    def drop_workers(self):
        for one in self.workers:
            one.process.kill()
        for one in self.workers:
            one.process.join(5)
        self.workers = []

    def count(self, many, few):
        return few if self.quick else many

    def row(self, name):
        if not hasattr(self, "row_" + name):
            raise Failed(f"there is no row {name}")
        self.all_workers()
        getattr(self, "row_" + name)()

    def both(self, jobs, seconds=DEADLINE):
        """Gives each worker its job, and returns all replies; an error of any is an error."""
        for one, name, options in jobs:
            one.ask(name, **options)
        replies, errors = [], []
        # One that fails may leave others waiting: then the first error is what counts.
        waiting = [one for one, _, _ in jobs]
        end = time.monotonic() + seconds
        found = {}
        while waiting and not errors:
            for one in list(waiting):
                try:
                    found[id(one)] = one.reply(0)
                    waiting.remove(one)
                except Failed as error:
                    if "gave no answer" not in str(error):
                        errors.append(str(error))
            if time.monotonic() > end:
                errors.append(f"no answer within {seconds} s")
        if errors:
            raise Failed(errors[0])
        for one, _, _ in jobs:
            replies.append(found[id(one)])
        return replies

    def free(self):
        self.workers[OBSERVER].ask("free")
        return self.workers[OBSERVER].reply()["free"]

    def free_at_least(self, wanted, seconds):
        end = time.monotonic() + seconds
        while True:
            free = self.free()
            if free >= wanted or time.monotonic() > end:
                return free
            time.sleep(0.01)

    def row_kernel_floor(self):
        one = self.workers[2]
        one.ask("floor", warm=50, count=self.count(1000, 50))
        tell("kernel_floor", "torch", "us", us(one.reply()["ns"]))

    def row_cpu_round_trip(self):
        warm, count = 100, self.count(3000, 100)
        for kind, who in KINDS.items():
            said, _ = self.both([
                (self.workers[0], "ping", dict(kind=kind, warm=warm, count=count)),
                (self.workers[1], "pong", dict(kind=kind, count=warm + count)),
            ])
            tell("cpu_round_trip", who, "us", us(said["ns"]))

    def row_two_streams(self):
        one = self.workers[0]
        one.ask("two_streams", warm=50, count=self.count(500, 20))
        tell("two_streams", "torch", "us", us(one.reply()["ns"]))

    def exchange(self, maker, taker, kind, elements, warm, count, keep=False, lane=2, ready=False):
        same = dict(kind=kind, lane=lane, warm=warm, count=count, keep=keep)
        return self.both([(maker, "make", dict(elements=elements, ready=ready, **same)), (taker, "take", same)])

    def warm(self, name, elements, ready=False):
        warm, count = self.count(50, 10), self.count(300, 20)
        for kind, who in KINDS.items():
            for keep in (False, True):
                pair = (self.workers[0], self.workers[2])
                _, taken = self.exchange(*pair, kind, elements, warm, count, keep, ready=ready)
                label = who + ("_kept" if keep else "")
                for what, row in (("done", ""), ("launched", "_launched"), ("got", "_got")):
                    tell(name + row, label, "us", us(taken[what]))

    def row_warm_4k(self):
        self.warm("warm_4k", 1024)

    def row_ready_4k(self):
        self.warm("ready_4k", 1024, ready=True)

    def row_warm_64m(self):
        self.warm("warm_64m", 16 * MIB)

    def row_cold(self):
        maker, taker, _, _ = self.pair()
        maker.ask("start", bare=True)
        taker.ask("start")
        maker.reply()
        taker.reply()
        made, taken = self.exchange(maker, taker, "simple", 1024, 0, 1)
        taker.end()
        maker.end()
        tell("cold", "torch_simplequeue", "us", us(taken["done"]))
        tell("cold_with_allocation", "torch_simplequeue", "us", us([taken["ends"][0] - made["began"][0]]))

    def frozen(self, name, rows, columns, count, views):
        for kind, who in KINDS.items():
            sent, got = self.both([
                (self.workers[0], "send_frozen",
                 dict(kind=kind, lane=2, rows=rows, columns=columns, count=count, views=views)),
                (self.workers[2], "get_frozen", dict(kind=kind, lane=2, count=count)),
            ])
            expected = [64.0 * (i % rows) if views else 0.0 for i in range(99, count, 100)]
            assert got["sums"] == expected, got["sums"]
            tell(name, who, "us", us([(got["ended"] - sent["began"]) / count]))

    def row_same_2000(self):
        self.frozen("same_2000", 1024, 1024, self.count(2000, 200), False)

    def row_views_1000(self):
        self.frozen("views_1000", 1000, 1024, self.count(1000, 200), True)

    def row_event_hop(self):
        hops = self.count(1000, 20)
        for kind, who in KINDS.items():
            a, b = self.both([
                (self.workers[0], "hop", dict(kind=kind, first=True, hops=hops)),
                (self.workers[2], "hop", dict(kind=kind, first=False, hops=hops)),
            ])
            assert b["value"] == 2.0 * hops, b
            tell("event_hop", who, "us", us([(b["ended"] - a["began"]) / (2 * hops)]))

    def row_alloc_free(self):
        one = self.workers[0]
        one.ask("alloc_free", size=MIB, rounds=self.count(20, 3), each=self.count(200, 20))
        tell("alloc_free", "torch", "us", us(one.reply()["ns"]))

    def row_reuse(self):
        count = self.count(1000, 120)
        # So that what is reserved is of this row.
        for one in (self.workers[2], self.workers[0]):
            one.ask("clean")
            one.reply()
        made, _ = self.exchange(self.workers[0], self.workers[2], "simple", 4 * MIB, 0, count)
        note(f"reuse: bytes reserved after 10, 100 and {count} exchanges of 16 MiB: {made['reserved']}")
        tell("reuse_reserved", "torch_simplequeue", "bytes", made["reserved"][-1:])

    def row_broadcast_4(self):
        warm, count = self.count(20, 3), self.count(100, 5)
        for kind, who in KINDS.items():
            jobs = [(self.workers[0], "broadcast", dict(kind=kind, elements=16 * MIB, warm=warm, count=count))]
            for lane in range(1, WORKERS):
                jobs.append((self.workers[lane], "receive", dict(kind=kind, lane=lane, count=warm + count)))
            said = self.both(jobs)[0]
            tell("broadcast_4", who, "us", us(said["ns"]))

    def row_relay(self):
        count = self.count(3000, 300)
        for kind, who in KINDS.items():
            made, _, taken = self.both([
                (self.workers[0], "relay_make", dict(kind=kind, count=count)),
                (self.workers[1], "relay", dict(kind=kind, count=count)),
                (self.workers[2], "relay_take", dict(kind=kind, count=count)),
            ])
            tell("relay", who, "1/s", [count / (taken["ended"] - made["began"]) * 1e9])

    def row_switch_floor(self):
        note("switch_floor: what it measures is the device's")

    def row_relay_memory(self):
        note("relay_memory: not for torch, whose relay has to copy")

    def row_killed(self):
        held, left = [], []
        for round_ in range(1, 3):
            alive, ended = self.killed_once(round_)
            held.append(alive)
            left.append(ended)
        tell("killed_survivor_holds", "torch", "bytes", held)
        tell("killed_left", "torch", "bytes", left)

    def killed_once(self, round_):
        before = self.free()
        survivor, victim, begun, stop = self.pair()
        survivor.ask("start")
        survivor.reply()
        with_survivor = self.free()
        victim.ask("start")
        victim.reply()
        kills_producer = round_ % 2 == 1
        (survivor if kills_producer else victim).ask("drain")
        (victim if kills_producer else survivor).ask("stream")
        for _ in range(2):
            begun.get(timeout=DEADLINE)
        moment = random.uniform(0.02, 0.06)
        time.sleep(moment)
        victim.kill()
        stop.send("stop")
        hung = False
        try:
            said = survivor.reply(4)
        except Failed as error:
            said, hung = str(error)[-500:], True
        alive = self.free_at_least(with_survivor, 1)
        if hung:
            survivor.kill()
        else:
            survivor.end()
        ended = self.free_at_least(before, 5)
        who = "producer" if kills_producer else "consumer"
        note(f"killed {round_}: the {who} after {moment * 1000:.1f} ms; a context takes {before - with_survivor} bytes; the survivor "
             f"holds {with_survivor - alive}, in the end {before - ended} are left; it says {said}")
        return with_survivor - alive, before - ended


ROWS = [name[4:] for name in dir(Server) if name.startswith("row_")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    server = Server(options.device, options.pairs, options.quick)
    line({"ready": "torch", "note": f"torch {torch.__version__}, Python {sys.version.split()[0]}"})
    if options.serve:
        names = (words[0] for words in map(str.split, sys.stdin) if words)
    else:
        names = options.only.split(",") if options.only else ROWS
    for name in names:
        try:
            server.row(name)
            line({"done": name})
        except Exception as error:
            why = str(error) if isinstance(error, Failed) else traceback.format_exc(limit=4)
            line({"failed": name, "why": why.strip()[-700:]})
            server.drop_workers()
    for one in server.workers + [one for pair in server.pairs for one in pair[:2]]:
        one.jobs.put(None)
    for one in server.workers + [one for pair in server.pairs for one in pair[:2]]:
        one.process.join(3)


if __name__ == "__main__":
    main()
