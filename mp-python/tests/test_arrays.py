"""Arrays and tensors in messages: contents, sharing, and torch's scenarios on the CPU."""

import os
import signal
import sysconfig

import pytest

import multiproc as mp

np = pytest.importorskip("numpy")

try:
    import torch
except ImportError:
    torch = None

# Processes that import torch one by one would take a second each.
if torch is not None:
    mp.set_forkserver_preload(["torch"])

needs_torch = pytest.mark.skipif(torch is None, reason="torch isn't installed")
WAIT = 20


@pytest.fixture(params=["forkserver"])
def method(request):
    return request.param


def through_queue(obj):
    queue = mp.Queue()
    queue.put(obj)
    return queue.get()


def start(ctx, target, *args):
    process = ctx.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def join(*processes):
    for process in processes:
        process.join(WAIT)
        assert process.exitcode == 0


# Functions of processes.


def fill(queue, done):
    while (array := queue.get()) is not None:
        array[...] = 5
        done.put(array.sum().item())


def fill_tensors(tensors, done, value):
    for tensor in tensors:
        tensor.detach().fill_(value)
    done.put(value)


def send_back(queue, back):
    while (obj := queue.get()) is not None:
        back.put(obj)


def send_tensors(queue, count, done):
    for i in range(count):
        queue.put(torch.full((5, 5), i))
    done.get()


def check_is_shared(queue, back):
    back.put([tensor.is_shared() for tensor in queue.get()])


def check_leaf(queue, back, wait):
    variable = queue.get()
    back.put((variable.requires_grad, variable.is_leaf, type(variable) is torch.nn.Parameter))
    variable.detach().add_(1)
    back.put(variable)
    # Receivers keep memory alive that this process made.
    wait.get()


def accumulate_grad(variable, done):
    variable.grad[:] = variable + 1
    done.put(True)


def train(model, done):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    done.put(True)


def put_and_wait(queue, obj):
    queue.put(obj)
    signal.pause()


ARRAYS = {
    "int64": lambda: np.arange(1000),
    "float16": lambda: np.arange(10, dtype="f2"),
    "complex": lambda: np.arange(10) * 1j,
    "bool": lambda: np.arange(10) % 2 == 0,
    "big-endian": lambda: np.arange(1000, dtype=">i4"),
    "long double": lambda: np.arange(100, dtype="g"),
    "records": lambda: np.ones(100, [("a", "i4"), ("b", "f8")]),
    "field": lambda: np.ones(100, [("a", "i4"), ("b", "f8")])["b"],
    "dates": lambda: np.array(["2020-01-01", "2021-01-01"], "M8[D]"),
    "durations": lambda: np.arange(1000, dtype="m8[s]"),
    "objects": lambda: np.array([1, "a", None], object),
    "text": lambda: np.array(["a", "bc"]),
    "zero-size": lambda: np.zeros((0, 3)),
    "0-d": lambda: np.array(5.0),
    "negative strides": lambda: np.arange(2000)[::-2],
    "columns": lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "gaps": lambda: np.arange(60).reshape(6, 10)[1:4, 2:9:3],
    "broadcast": lambda: np.broadcast_to(np.arange(3.0), (1000, 3)),
    "unaligned": lambda: np.frombuffer(bytes(range(81)), "u1")[1:].view("i8"),
}


class TestNumpy:
    @pytest.mark.parametrize("name", ARRAYS)
    def test_array_arrives(self, name):
        array = ARRAYS[name]()
        got = through_queue(array)
        assert type(got) is np.ndarray
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert (got == array).all()
        assert got.flags.writeable == array.flags.writeable

    def test_read_only_array_stays_read_only(self):
        array = np.arange(5000)
        array.flags.writeable = False
        got = through_queue(array)
        with pytest.raises(ValueError, match="read-only"):
            got[0] = 1
        # The array can't be made writable, nor can a view of it that was sent to another process.
        with pytest.raises(ValueError):
            got.flags.writeable = True
        assert not through_queue(got[1:]).flags.writeable

    def test_overlapping_elements_are_sent_once(self):
        # Copies would have 32 TiB.
        got = through_queue(np.broadcast_to(np.full(1, 7, "u1"), (1 << 45,)))
        assert got.shape == (1 << 45,) and got.strides == (0,) and got[12345] == 7
        windows = np.lib.stride_tricks.sliding_window_view(np.arange(1000), 500)
        got = through_queue(windows)
        assert (got == windows).all() and got.strides == windows.strides

    def test_views_of_one_message_overlap(self):
        base = np.arange(10_000)
        left, right = through_queue([base[:6000], base[4000:]])
        left[5000] = -1
        assert right[1000] == -1
        assert base[5000] == 5000

    def test_subclass_arrives_as_itself(self):
        got = through_queue(np.ma.masked_array(np.arange(2000), np.arange(2000) % 2 == 0))
        assert type(got) is np.ma.MaskedArray and got.sum() == 1000 * 1000
        assert type(through_queue(np.matrix([[1, 2]]))) is np.matrix

    @pytest.mark.skipif(
        bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        reason="this interpreter reserves no memory, so a copy of 4 TiB is begun",
    )
    def test_memory_runs_out_with_memory_error(self, tmp_path):
        with open(tmp_path / "sparse", "wb") as file:
            file.truncate(1 << 42)
        queue = mp.Queue()
        for _ in range(3):
            with pytest.raises(MemoryError):
                queue.put([bytes(100_000), np.memmap(tmp_path / "sparse", "u1", "r")])
            with pytest.raises(MemoryError):
                mp.empty(1 << 50, "u1")
        assert queue.empty()
        queue.put([np.arange(100_000)])
        assert queue.get()[0][-1] == 99_999

    def test_too_large_shape_is_named(self):
        with pytest.raises(MemoryError, match=r"\(1073741824, 8589934592\) and type int16 is too large"):
            mp.empty(1 << 30, 1 << 33, dtype="i2")

    def test_memoryview_keeps_format_and_shape(self):
        view = memoryview(np.arange(6, dtype="i4").reshape(2, 3))
        got = through_queue(view)
        assert (got.format, got.shape) == (view.format, view.shape) and got.tolist() == view.tolist()
        got = through_queue(memoryview(b"abc" * 1000))
        assert got.readonly and got == b"abc" * 1000

    @pytest.mark.parametrize("make", [bytes, bytearray, lambda data: data.decode("latin-1")])
    @pytest.mark.parametrize("size", [0, 100, 16_383, 16_384, 65_536, 1_000_000])
    def test_long_bytes_arrive_among_others(self, make, size):
        data = make(os.urandom(size))
        obj = {"a": 1, "data": data, "again": [data, make(b"xyz" * 30_000)], "b": 2}
        got = through_queue(obj)
        assert got == obj and type(got["data"]) is type(data)
        assert got["data"] is got["again"][0]


class TestShared:
    @pytest.mark.parametrize("make", [mp.zeros, mp.empty])
    def test_array_is_sent_without_a_copy(self, ctx, make):
        queue, done = ctx.Queue(), ctx.Queue()
        process = start(ctx, fill, queue, done)
        array = make((3, 4), "f8")
        array[...] = 0
        for part, total in [(array[:, 1], 15.0), (array[::-1], 60.0)]:
            queue.put(part)
            assert done.get(timeout=WAIT) == total
            assert (part == 5).all()
        queue.put(None)
        join(process)

    def test_field_of_records_is_shared(self):
        records = mp.zeros(10, [("a", "i4"), ("b", "f8")])
        field = through_queue(records["b"])
        records["b"][3] = 7
        assert field[3] == 7
        assert through_queue(records)["b"][3] == 7

    def test_received_array_is_sent_on_without_a_copy(self, ctx):
        queue, back = ctx.Queue(), ctx.Queue()
        process = start(ctx, send_back, queue, back)
        array = mp.share(np.arange(1000))
        queue.put(array)
        got = back.get(timeout=WAIT)
        array[5] = -1
        assert got[5] == -1
        queue.put(None)
        join(process)

    def test_shape_and_type_take_all_forms(self):
        assert mp.empty(2, 3, dtype="i4").shape == mp.empty((2, 3), "i4").shape == (2, 3)
        assert mp.zeros(4, np.float32).tolist() == [0.0] * 4
        assert mp.full((2,), 7, "i2").tolist() == [7, 7]
        assert mp.zeros((), "i4").shape == ()
        assert mp.zeros((0, 2), "i4").shape == (0, 2)
        for bad in [(-1, "i4"), ((2, -3), "i4")]:
            with pytest.raises(ValueError):
                mp.empty(*bad)
        with pytest.raises(TypeError):
            mp.empty(3, object)
        with pytest.raises(TypeError):
            mp.empty(1.5, "i4")

    def test_share_takes_containers(self):
        array = np.arange(5)
        shared = mp.share({"a": [array, array], "b": (array[1:],)})
        assert shared["a"][0] is shared["a"][1]
        got = through_queue(shared)
        shared["a"][0][2] = 9
        assert got["a"][0][2] == 9
        assert mp.share(shared["a"][0]) is shared["a"][0]
        with pytest.raises(TypeError, match="can't move float to shared memory, only tensors and modules of"):
            mp.share([1.0])
        with pytest.raises(TypeError):
            mp.share(np.array([None]))

    def test_is_shared_detects_arrays_of_the_package(self):
        array = np.arange(6)
        assert mp.is_shared(mp.share(array)[::-2]) and not mp.is_shared(array)
        assert mp.is_shared(through_queue(array))
        with pytest.raises(TypeError, match="not list"):
            mp.is_shared([array])


class TestErrors:
    def test_error_names_the_path(self):
        class Local:
            pass

        obj = Local.__new__(Holder)
        obj.parts = {"meta": [1, (2, Local())]}
        queue = mp.Queue()
        with pytest.raises(Exception) as caught:
            queue.put([np.zeros(1000), obj])
        path = "value[1].parts['meta'][1][1]: TestErrors.test_error_names_the_path.<locals>.Local"
        # Since Python 3.14, pickle adds notes of its own before it.
        assert caught.value.__notes__[-1] == path
        assert queue.empty()
        queue.put(1)
        assert queue.get() == 1

    def test_circular_object_ends_the_search(self):
        items = [lambda: 0]
        items.insert(0, items)
        with pytest.raises(Exception, match="lambda") as caught:
            mp.Queue().put(items)
        assert caught.value.__notes__


class Holder:
    pass


TENSORS = {
    "float": lambda: torch.randn(5),
    "bfloat16": lambda: torch.randn(5).bfloat16(),
    "float8": lambda: torch.randn(8).to(torch.float8_e4m3fn),
    "bool": lambda: torch.tensor([True, False]),
    "uint16": lambda: torch.zeros(4, dtype=torch.uint16),
    "complex": lambda: torch.randn(5, dtype=torch.complex64),
    "conjugate": lambda: torch.randn(5, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(5, dtype=torch.complex64).conj().imag,
    "0-d": lambda: torch.tensor(3),
    "zero-size": lambda: torch.empty(0, 3),
    "transposed": lambda: torch.randn(100, 50).t(),
    "expanded": lambda: torch.arange(3.0).expand(4000, 3),
    "sparse": lambda: torch.eye(50).to_sparse(),
    "csr": lambda: torch.eye(50).to_sparse_csr(),
    "quantised": lambda: torch.quantize_per_tensor(torch.randn(1000), 0.1, 10, torch.qint8),
    "parameter": lambda: torch.nn.Parameter(torch.randn(3), requires_grad=False),
    "gradient": lambda: torch.randn(3, requires_grad=True),
}


@needs_torch
@pytest.mark.filterwarnings("ignore")
class TestTensors:
    @pytest.mark.parametrize("name", TENSORS)
    def test_tensor_arrives(self, name):
        tensor = TENSORS[name]()
        got = through_queue(tensor)
        assert type(got) is type(tensor)
        assert (got.dtype, got.shape, got.layout) == (tensor.dtype, tensor.shape, tensor.layout)
        assert got.requires_grad == tensor.requires_grad
        if tensor.is_quantized:
            assert torch.equal(got.int_repr(), tensor.int_repr()) and got.q_scale() == tensor.q_scale()
        else:
            dense = (lambda t: t.to_dense()) if tensor.layout != torch.strided else lambda t: t
            assert torch.equal(dense(got).to(torch.complex64), dense(tensor).to(torch.complex64))

    def test_meta_tensor_arrives(self):
        got = through_queue(torch.empty(5, 2, device="meta", dtype=torch.int8))
        assert got.is_meta and got.shape == (5, 2) and got.dtype is torch.int8

    def test_subclass_keeps_its_class_and_attributes(self):
        tensor = torch.randn(1000).as_subclass(Named)
        tensor.label = "x"
        got = through_queue(tensor)
        assert type(got) is Named and got.label == "x" and torch.equal(got, tensor)

    def test_storages_arrive(self):
        tensor = torch.arange(1000.0)
        got = through_queue(tensor.untyped_storage())
        assert type(got) is torch.UntypedStorage and got.nbytes() == 4000
        got = through_queue(tensor.storage())
        assert got.dtype is torch.float32 and got[7] == 7

    def test_shared_memory_of_torch_is_kept(self):
        for strategy in ["file_descriptor", "file_system"]:
            before = torch.multiprocessing.get_sharing_strategy()
            torch.multiprocessing.set_sharing_strategy(strategy)
            try:
                base = torch.zeros(100).share_memory_()
                got = through_queue([base[10:20], base])
            finally:
                torch.multiprocessing.set_sharing_strategy(before)
            base[15] = 3
            assert got[0][5] == 3 and got[1][15] == 3
            assert got[0].is_shared()

    def test_descriptors_do_not_leak(self):
        base = torch.zeros(100).share_memory_()
        queue = mp.Queue()

        def send():
            queue.put(base)
            assert queue.get().is_shared()

        send()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            send()
        assert len(os.listdir("/proc/self/fd")) <= before

    def test_hogwild_trains_one_memory(self, ctx):
        for share in [lambda model: model.share_memory(), mp.share]:
            model = torch.nn.Linear(2, 1)
            before = model.weight.detach().clone()
            assert share(model) is model
            done = ctx.Queue()
            processes = [start(ctx, train, model, done) for _ in range(2)]
            join(*processes)
            assert (model.weight < before - 1).all()

    def test_share_keeps_tied_weights_and_views(self):
        base = torch.randn(10, 10)
        model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 10))
        model[1].weight = model[0].weight
        mp.share(model)
        assert model[1].weight is model[0].weight
        got = through_queue(model)
        assert got[1].weight is got[0].weight
        row, column = base[3], base[:, 4]
        values = base.clone()
        mp.share([base, row, column])
        assert torch.equal(base, values)
        base[3, 4] = 7
        assert row[4] == 7 and column[3] == 7
        assert mp.is_shared(row) and mp.is_shared(model[0].weight) and mp.is_shared(through_queue(values))
        assert not mp.is_shared(values) and mp.is_shared(values.share_memory_())

    def test_tensor_in_shared_memory_is_filled_there(self, ctx):
        tensors = [mp.zeros(2, 3), mp.share(torch.zeros(5)), mp.empty((4,), torch.bfloat16)]
        done = ctx.Queue()
        join(start(ctx, fill_tensors, tensors, done, 3))
        for tensor in tensors:
            assert (tensor == 3).all()


if torch is not None:

    class Named(torch.Tensor):
        pass


@needs_torch
class TestTorchMultiprocessing:
    """Scenarios of torch's test_multiprocessing.py."""

    def simple_fill(self, ctx, make):
        queue, done = ctx.Queue(), ctx.Queue()
        process = start(ctx, fill, queue, done)
        tensor = make()
        queue.put(tensor)
        assert done.get(timeout=WAIT) == 5 * tensor.numel()
        assert (tensor == 5).all()
        # Memory that a process made outlives the process.
        queue.put(None)
        join(process)

    def receive(self, ctx):
        queue, done = ctx.Queue(), ctx.Queue()
        process = start(ctx, send_tensors, queue, 3, done)
        tensors = [queue.get(timeout=WAIT) for _ in range(3)]
        done.put(None)
        join(process)
        for i, tensor in enumerate(tensors):
            assert torch.equal(tensor, torch.full((5, 5), i))

    def test_fd_sharing(self, ctx):
        self.simple_fill(ctx, lambda: torch.zeros(5, 5).share_memory_())
        self.receive(ctx)

    def test_fs_sharing(self, ctx):
        before = torch.multiprocessing.get_sharing_strategy()
        torch.multiprocessing.set_sharing_strategy("file_system")
        try:
            self.simple_fill(ctx, lambda: torch.zeros(5, 5).share_memory_())
            self.receive(ctx)
        finally:
            torch.multiprocessing.set_sharing_strategy(before)

    def test_arena_sharing(self, ctx):
        self.simple_fill(ctx, lambda: mp.zeros(5, 5))

    def test_fd_preserve_sharing(self, ctx):
        queue, back = ctx.Queue(), ctx.Queue()
        process = start(ctx, send_back, queue, back)
        tensor = torch.zeros(5, 5).share_memory_()
        queue.put([tensor, tensor[0]])
        whole, row = back.get(timeout=WAIT)
        row.fill_(4)
        assert (whole[0] == 4).all() and (tensor[0] == 4).all()
        queue.put(None)
        join(process)

    def test_fd_pool(self, ctx):
        with ctx.Pool(2) as pool:
            for i, tensor in enumerate(pool.map(make_tensor, range(10))):
                assert torch.equal(tensor, torch.full((5,), i))

    def test_inherit_tensor(self, ctx):
        tensor = torch.zeros(5, 5).share_memory_()
        done = ctx.Queue()
        join(start(ctx, fill_tensors, [tensor], done, 4))
        assert (tensor == 4).all()

    def autograd(self, ctx, variable):
        queue, back, wait = ctx.Queue(), ctx.Queue(), ctx.Queue()
        process = start(ctx, check_leaf, queue, back, wait)
        queue.put(variable)
        grad, leaf, is_parameter = back.get(timeout=WAIT)
        assert (grad, leaf) == (variable.requires_grad, variable.is_leaf)
        assert is_parameter is (type(variable) is torch.nn.Parameter)
        got = back.get(timeout=WAIT)
        assert got.requires_grad == variable.requires_grad
        wait.put(None)
        join(process)
        return got

    @pytest.mark.parametrize("requires_grad", [True, False])
    def test_variable_sharing(self, ctx, requires_grad):
        variable = torch.arange(1.0, 26).view(5, 5).requires_grad_(requires_grad)
        got = self.autograd(ctx, variable)
        assert torch.equal(got.detach(), torch.arange(2.0, 27).view(5, 5))
        assert torch.equal(variable.detach(), torch.arange(1.0, 26).view(5, 5))

    @pytest.mark.parametrize("requires_grad", [True, False])
    def test_leaf_variable_sharing(self, ctx, requires_grad):
        variable = torch.arange(1.0, 26).view(5, 5).share_memory_().requires_grad_(requires_grad)
        self.autograd(ctx, variable)
        # Both refer to the same memory.
        assert torch.equal(variable.detach(), torch.arange(2.0, 27).view(5, 5))

    def test_non_leaf_variable_sharing(self):
        variable = torch.randn(3, requires_grad=True) * 2
        with pytest.raises(RuntimeError, match="requires_grad"):
            mp.Queue().put(variable)

    def test_parameter_sharing(self, ctx):
        parameter = torch.nn.Parameter(torch.arange(1.0, 26).view(5, 5).share_memory_())
        got = self.autograd(ctx, parameter)
        assert type(got) is torch.nn.Parameter
        assert torch.equal(parameter.detach(), torch.arange(2.0, 27).view(5, 5))

    def test_integer_parameter_serialization_cpu(self, ctx):
        queue, back = ctx.Queue(), ctx.Queue()
        process = start(ctx, send_back, queue, back)
        parameter = torch.nn.Parameter(torch.tensor([1, 2]), requires_grad=False)
        queue.put(parameter)
        got = back.get(timeout=WAIT)
        assert type(got) is torch.nn.Parameter and got.tolist() == [1, 2]
        queue.put(None)
        join(process)

    def test_autograd_sharing(self, ctx):
        variable = torch.arange(5.0).requires_grad_()
        variable.grad = torch.zeros(5)
        mp.share(variable)
        grad, done = variable.grad, ctx.Queue()
        join(start(ctx, fill_tensors, [grad], done, 2))
        assert (variable.grad == 2).all()

    def test_empty_shared(self, ctx):
        queue, back = ctx.Queue(), ctx.Queue()
        process = start(ctx, send_back, queue, back)
        queue.put(torch.tensor([]).share_memory_())
        assert back.get(timeout=WAIT).numel() == 0
        queue.put(None)
        join(process)

    def test_is_shared(self, ctx):
        queue, back = ctx.Queue(), ctx.Queue()
        process = start(ctx, check_is_shared, queue, back)
        shared = torch.randn(5, 5).share_memory_()
        assert shared.is_shared() and not torch.randn(5, 5).is_shared()
        queue.put([shared, shared[1:]])
        assert back.get(timeout=WAIT) == [True, True]
        join(process)

    def test_mixed_types_producers(self, ctx):
        queue, back = ctx.Queue(), ctx.Queue()
        process = start(ctx, send_back, queue, back)
        for obj in [torch.randn(5), np.arange(5), {"a": torch.randn(2), 3: [np.ones(2)]}, "text", None, 5]:
            if obj is not None:
                queue.put(obj)
                got = back.get(timeout=WAIT)
                assert type(got) is type(obj)
        queue.put(None)
        join(process)

    def test_tensor_of_a_killed_process_stays(self, ctx):
        queue = ctx.Queue()
        process = start(ctx, put_and_wait, queue, torch.arange(100_000))
        tensor = queue.get(timeout=WAIT)
        process.kill()
        process.join(WAIT)
        assert process.exitcode == -signal.SIGKILL
        assert torch.equal(tensor, torch.arange(100_000))


def make_tensor(i):
    return torch.full((5,), i)
