"""CUDA tensors between processes, by torch.multiprocessing: the peer of the program `cuda` of this package, which runs it.

    python3 torch_cuda.py --serve [--pairs N] [--device cuda|cpu] [--quick]
    python3 torch_cuda.py --only warm_4k,cold        # alone, a round of each

As a server it takes lines `ROW ROUND` from the standard input, and answers lines of JSON: rows, notes, and at last `{"done": row}` or
`{"failed": row, "why": ...}`. Processes are started once, by `spawn`; `--pairs` says how many fresh pairs are held ready for rows that need
new processes. `--device cpu` is a rehearsal of processes, queues and output: times mean nothing there.

Times between processes are of CLOCK_MONOTONIC, which they share. Producers use the default stream, since a queue's feeder thread
records the event for the receiver on the default stream. What is done for torch's sake: caches are warm, outputs are made before, gradients are off,
acknowledgements go by a SimpleQueue, both kinds of queues are measured, and where that helps (`_kept`) the receiver keeps a
tensor of the same allocation, so that the allocation's handle is not opened anew for each message.
"""

import argparse
import collections
import gc
import json
import queue as queues
import random
import sys
import time
import traceback

import torch
import torch.multiprocessing as tmp

now = time.monotonic_ns
WORKERS = 5
OBSERVER = 3
MIB = 1 << 20
# The longest that one job may take.
DEADLINE = 18
KINDS = {"queue": "torch_queue", "simple": "torch_simplequeue"}


class Gpu:
    """What a worker has: the device, its default stream, and memory for results."""

    def __init__(self, device, wires):
        self.cuda = device == "cuda"
        self.device = torch.device("cuda:0" if self.cuda else "cpu")
        self.wires = wires
        self.scratch = None
        self.sync = lambda: None

    def start(self, bare=False):
        """A context in which the kernels of the rows have run; `bare`: and no memory of the caching allocator's."""
        torch.set_grad_enabled(False)
        torch.set_num_threads(1)
        if self.cuda:
            torch.cuda.init()
            torch.cuda.set_device(self.device)
            self.sync = torch.cuda.current_stream(self.device).synchronize
        self.scratch = torch.zeros(1024, device=self.device)
        x = self.filled(1024, 1.0)
        torch.mul(x.narrow(0, 0, 1024), 2.0, out=self.scratch)
        x.add_(1)
        x.clone()
        assert x[:64].sum().item() == 128.0
        self.sync()
        del x
        if bare:
            self.scratch = None
            self.clean()

    def filled(self, n, value):
        """A new tensor, filled by a kernel."""
        x = torch.empty(n, device=self.device)
        x.fill_(value)
        return x

    def clean(self):
        gc.collect()
        if self.cuda:
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()

    def reserved(self):
        return torch.cuda.memory_reserved(self.device) if self.cuda else 0

    def allocated(self):
        return torch.cuda.memory_allocated(self.device) if self.cuda else 0


def do_start(gpu, bare=False):
    gpu.start(bare)
    return {}


def do_clean(gpu):
    gpu.clean()
    return {}


def do_free(gpu):
    return {"free": torch.cuda.mem_get_info(gpu.device)[0] if gpu.cuda else 0}


def do_make(gpu, kind, lane, elements, warm, count, keep=False):
    """Puts new tensors, each when the one before was acknowledged."""
    to, acks = gpu.wires[kind][lane], gpu.wires["acks"][0]
    kept = None
    if keep:
        # One allocation of the driver's for all of the tensors, and one of them the receiver keeps.
        gpu.clean()
        block = torch.empty(4 * elements, device=gpu.device)
        del block
        kept = gpu.filled(elements, -1.0)
        to.put((0, kept))
    reserved, began = [], []
    for i in range(warm + count):
        began.append(now())
        x = gpu.filled(elements, float(i))
        to.put((now(), x))
        # It has to live until then.
        assert acks.get() == i
        del x
        if i + 1 in (10, 100, warm + count):
            reserved.append(gpu.reserved())
    if keep:
        assert acks.get() == "kept"
        del kept
    return {"reserved": reserved, "began": began}


def do_take(gpu, kind, lane, warm, count, keep=False):
    """Runs a kernel over each, and acknowledges."""
    source, acks, out, sync = gpu.wires[kind][lane], gpu.wires["acks"][0], gpu.scratch, gpu.sync
    done, launched, ends = [], [], []
    kept = source.get() if keep else None
    mul = torch.mul
    for i in range(warm + count):
        t0, x = source.get()
        mul(x if x.numel() == 1024 else x.narrow(0, 0, 1024), 2.0, out=out)
        t_launched = now()
        sync()
        t1 = now()
        del x
        if i >= warm:
            done.append(t1 - t0)
            launched.append(t_launched - t0)
            ends.append(t1)
        if i % 50 == 0:
            assert out[0].item() == 2.0 * i, (out[0].item(), i)
        acks.put(i)
    if keep:
        del kept
        gpu.clean()
        acks.put("kept")
    return {"done": done, "launched": launched, "ends": ends}


def do_floor(gpu, warm, count):
    out, sync = gpu.scratch, gpu.sync
    x = gpu.filled(1024, 3.0)
    samples = []
    for i in range(warm + count):
        t0 = now()
        torch.mul(x, 2.0, out=out)
        sync()
        if i >= warm:
            samples.append(now() - t0)
    assert out[1023].item() == 6.0
    return {"ns": samples}


def do_send_frozen(gpu, kind, lane, rows, columns, count, views):
    """Sends one tensor again and again, or each row of it."""
    to, acks = gpu.wires[kind][lane], gpu.wires["acks"][0]
    numbers = torch.arange(rows, dtype=torch.float32, device=gpu.device)
    base = numbers.view(rows, 1).expand(rows, columns).contiguous()
    if not gpu.cuda:
        base.share_memory_()
    gpu.sync()
    began = now()
    for i in range(count):
        to.put(base.narrow(0, i % rows, 1) if views else base)
    assert acks.get() == count
    return {"began": began}


def do_get_frozen(gpu, kind, lane, count):
    source, acks = gpu.wires[kind][lane], gpu.wires["acks"][0]
    sums = []
    # What it keeps has the allocation's handle stay open.
    kept = None
    for i in range(count):
        x = source.get()
        if kept is None:
            kept = x
        if i % 100 == 99:
            sums.append(x.view(-1)[:64].sum().item())
    ended = now()
    del x, kept
    acks.put(count)
    return {"ended": ended, "sums": sums}


# How many tensors are acknowledged at once, and how many such groups are on their way.
GROUP = 100
GROUPS = 4


class Window:
    """Keeps what was sent until it is acknowledged, group by group."""

    def __init__(self, acks):
        self.acks, self.groups, self.current = acks, collections.deque(), []

    def sent(self, x):
        self.current.append(x)
        if len(self.current) == GROUP:
            self.groups.append(self.current)
            self.current = []
            if len(self.groups) > GROUPS:
                self.acks.get()
                self.groups.popleft()

    def finish(self):
        while self.groups:
            self.acks.get()
            self.groups.popleft()


def do_relay_make(gpu, kind, count):
    to, window = gpu.wires[kind][1], Window(gpu.wires["acks"][0])
    began = now()
    for i in range(count):
        x = gpu.filled(1024, float(i % 100))
        to.put(x)
        window.sent(x)
    window.finish()
    return {"began": began}


def do_relay(gpu, kind, count):
    """Passes copies on: torch refuses to send a CUDA tensor that was received."""
    source, to, acks = gpu.wires[kind][1], gpu.wires[kind][2], gpu.wires["acks"][0]
    window = Window(gpu.wires["acks"][1])
    for i in range(count):
        x = source.get()
        copy = x.clone()
        # When this is dropped, torch waits for the stream.
        del x
        to.put(copy)
        window.sent(copy)
        if i % GROUP == GROUP - 1:
            acks.put(i)
    window.finish()
    return {}


def do_relay_take(gpu, kind, count):
    source, acks = gpu.wires[kind][2], gpu.wires["acks"][1]
    for i in range(count):
        x = source.get()
        if i % GROUP == GROUP - 1:
            assert x[:64].sum().item() == 64.0 * 99, i
        del x
        if i % GROUP == GROUP - 1:
            acks.put(i)
    return {"ended": now()}


def do_hop(gpu, kind, first, hops):
    """Waits for the other process's event, adds one, records its own, and tells."""
    source, to = (gpu.wires[kind][0], gpu.wires[kind][2]) if first else (gpu.wires[kind][2], gpu.wires[kind][0])
    stream = mine = others = None
    if first:
        values = gpu.filled(1024, 0.0)
        gpu.sync()
        to.put(values)
    else:
        values = source.get()
    if gpu.cuda:
        stream = torch.cuda.current_stream(gpu.device)
        mine = torch.cuda.Event(interprocess=True)
        mine.record(stream)
        to.put(mine.ipc_handle())
        others = torch.cuda.Event.from_ipc_handle(gpu.device, source.get())
    else:
        to.put(b"")
        source.get()
    # The second one says that it is there.
    if first:
        source.get()
    else:
        to.put("there")
    began = now()
    for i in range(hops):
        if i > 0 or not first:
            source.get()
            if others is not None:
                others.wait(stream)
        values.add_(1)
        if mine is not None:
            mine.record(stream)
        to.put(i)
    gpu.sync()
    ended = now()
    if first:
        # The last hop is the other one's: both stay until it has looked.
        assert source.get() == hops - 1
        assert source.get() == "seen"
        value = 0.0
    else:
        value = values[1023].item()
        del values
        to.put("seen")
    return {"began": began, "ended": ended, "value": value}


def do_alloc_free(gpu, size, rounds, each):
    samples = []
    empty, device = torch.empty, gpu.device
    for round_ in range(rounds + 1):
        t0 = now()
        for _ in range(each):
            x = empty(size, dtype=torch.uint8, device=device)
            del x
        taken = (now() - t0) / each
        gpu.sync()
        if round_ > 0:
            samples.append(taken)
    return {"ns": samples}


def do_broadcast(gpu, kind, elements, warm, count):
    samples, acks = [], gpu.wires["acks"][0]
    lanes = [gpu.wires[kind][lane] for lane in range(1, WORKERS)]
    for i in range(warm + count):
        x = gpu.filled(elements, float(i))
        t0 = now()
        for lane in lanes:
            lane.put(x)
        last = max(acks.get() for _ in lanes)
        del x
        if i >= warm:
            samples.append(last - t0)
    return {"ns": samples}


def do_receive(gpu, kind, lane, count):
    source, acks, out = gpu.wires[kind][lane], gpu.wires["acks"][0], gpu.scratch
    for i in range(count):
        x = source.get()
        torch.mul(x.narrow(0, 0, 1024), 2.0, out=out)
        gpu.sync()
        t1 = now()
        del x
        if i % 20 == 0:
            assert out[0].item() == 2.0 * i
        acks.put(t1)
    return {}


def do_two_streams(gpu, warm, count):
    samples = []
    x, out = gpu.filled(1024, 3.0), gpu.scratch
    if not gpu.cuda:
        return {"ns": [0.0]}
    gpu.sync()
    one, two = torch.cuda.Stream(gpu.device), torch.cuda.Stream(gpu.device)
    event = torch.cuda.Event()
    with torch.cuda.stream(two):
        for i in range(warm + count):
            t0 = now()
            event.record(one)
            two.wait_event(event)
            torch.mul(x, 2.0, out=out)
            two.synchronize()
            if i >= warm:
                samples.append(now() - t0)
    return {"ns": samples}


def do_ping(gpu, kind, warm, count):
    to, source = gpu.wires[kind][1], gpu.wires[kind][0]
    samples = []
    for i in range(warm + count):
        t0 = now()
        to.put(i)
        back = source.get()
        if i >= warm:
            samples.append(now() - t0)
        assert back == i
    return {"ns": samples}


def do_pong(gpu, kind, count):
    source, to = gpu.wires[kind][1], gpu.wires[kind][0]
    for _ in range(count):
        to.put(source.get())
    return {}


def give_back(gpu, exchanged, errors):
    """What both sides of `killed` do when the other one is gone."""
    before = [gpu.reserved(), gpu.allocated()]
    try:
        gpu.sync()
        gpu.clean()
    except Exception as error:
        errors.append(repr(error))
    after = [gpu.reserved(), gpu.allocated()]
    return {
        "exchanged": exchanged,
        "errors": len(errors),
        "first_error": errors[0][:300] if errors else None,
        "reserved": [before[0], after[0]],
        "allocated": [before[1], after[1]],
    }


def do_stream(gpu):
    to, begun, stop = gpu.wires["bounded"], gpu.wires["begun"], gpu.wires["stop"]
    # Its process may end with messages that no process takes.
    to.cancel_join_thread()
    alive, errors, count = collections.deque(maxlen=8), [], 0
    x = None
    while not stop.poll(0):
        try:
            if x is None:
                x = gpu.filled(4 * MIB, float(count))
            to.put(x, timeout=0.02)
            alive.append(x)
            x = None
            count += 1
            if count == 3:
                begun.put("producer")
        except queues.Full:
            pass
        except Exception as error:
            errors.append(repr(error))
            time.sleep(0.005)
    x = None
    alive.clear()
    return give_back(gpu, count, errors)


def do_drain(gpu):
    source, begun, stop = gpu.wires["bounded"], gpu.wires["begun"], gpu.wires["stop"]
    errors, count = [], 0
    x = None
    while not stop.poll(0):
        try:
            x = source.get(timeout=0.02)
            torch.mul(x.narrow(0, 0, 1024), 2.0, out=gpu.scratch)
            x.fill_(7.0)
            x = None
            count += 1
            if count == 3:
                begun.put("consumer")
        except queues.Empty:
            pass
        except Exception as error:
            errors.append(repr(error))
            time.sleep(0.005)
    x = None
    for _ in range(20):
        try:
            x = source.get(timeout=0.1)
            x = None
        except queues.Empty:
            break
        except Exception as error:
            errors.append(repr(error))
    return give_back(gpu, count, errors)


JOBS = {name[3:]: function for name, function in list(globals().items()) if name.startswith("do_")}


def worker(device, jobs, replies, wires):
    """The function of each process: job after job."""
    gpu = Gpu(device, wires)
    replies.put(("ok", {}))
    while True:
        job = jobs.get()
        if job is None:
            break
        name, options = job
        try:
            reply = ("ok", JOBS[name](gpu, **options))
        except BaseException:
            reply = ("error", traceback.format_exc(limit=4))
        replies.put(reply)
    gpu.scratch = None
    gpu.clean()


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
        for one in self.workers + [one for pair in self.pairs for one in pair[:2]]:
            one.reply(55)
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

    def exchange(self, maker, taker, kind, elements, warm, count, keep=False, lane=2):
        same = dict(kind=kind, lane=lane, warm=warm, count=count, keep=keep)
        return self.both([(maker, "make", dict(elements=elements, **same)), (taker, "take", same)])

    def warm(self, name, elements):
        warm, count = self.count(50, 10), self.count(300, 20)
        for kind, who in KINDS.items():
            for keep in (False, True):
                _, taken = self.exchange(self.workers[0], self.workers[2], kind, elements, warm, count, keep)
                label = who + ("_kept" if keep else "")
                tell(name, label, "us", us(taken["done"]))
                tell(name + "_launched", label, "us", us(taken["launched"]))

    def row_warm_4k(self):
        self.warm("warm_4k", 1024)

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
