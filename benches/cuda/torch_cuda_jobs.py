"""The processes of `torch_cuda.py`: what each of them does when it is told."""

import collections
import gc
import queue as queues
import time
import traceback

import torch

now = time.monotonic_ns
WORKERS = 5
MIB = 1 << 20


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


def do_make(gpu, kind, lane, elements, warm, count, keep=False, ready=False):
    """Puts new tensors, each when the one before was acknowledged; `ready`: when its kernel has run."""
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
        x = gpu.filled(elements, float(i + 1))
        if ready:
            gpu.sync()
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
    got, done, launched, ends = [], [], [], []
    kept = source.get() if keep else None
    mul = torch.mul
    for i in range(warm + count):
        t0, x = source.get()
        t_got = now()
        mul(x if x.numel() == 1024 else x.narrow(0, 0, 1024), 2.0, out=out)
        t_launched = now()
        sync()
        t1 = now()
        del x
        if i >= warm:
            done.append(t1 - t0)
            got.append(t_got - t0)
            launched.append(t_launched - t0)
            ends.append(t1)
        if i % 50 == 0:
            assert out[0].item() == 2.0 * (i + 1), (out[0].item(), i)
        acks.put(i)
    if keep:
        del kept
        gpu.clean()
        acks.put("kept")
    return {"got": got, "done": done, "launched": launched, "ends": ends}


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
