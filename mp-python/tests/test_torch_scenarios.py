"""Tensors between processes: further scenarios of torch's ``test_multiprocessing.py`` on the CPU."""

import os

import pytest

import multiproc as mp

torch = pytest.importorskip("torch")

# Processes that import torch one by one would take a second each.
mp.set_forkserver_preload(["torch"])
WAIT = 20


@pytest.fixture
def file_system():
    """The sharing strategy whose tensors have names."""
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    yield
    torch.multiprocessing.set_sharing_strategy(before)


def through_queue(obj):
    queue = mp.Queue()
    queue.put(obj)
    return queue.get(timeout=WAIT)


def run(ctx, target, *args):
    process = ctx.Process(target=target, args=args)
    process.start()
    process.join(WAIT)
    assert process.exitcode == 0


def fill_with_four(queue):
    for tensor in queue.get(timeout=WAIT):
        tensor.fill_(4)


def fill_and_add(tensor):
    tensor.fill_(4)
    return tensor + 1


def send_meta(queue):
    queue.put(torch.ones(5, 5, device="meta", dtype=torch.int8))


def backward(power):
    torch.rand(3).requires_grad_().mean().backward()
    return power**2


class TestTorchMultiprocessing:
    def test_fs_preserve_sharing(self, file_system):
        # The views share memory, as in torch. Here each view has a storage of its own in that memory.
        tensor = torch.randn(5, 5)
        sent = [tensor.untyped_storage(), tensor, tensor[2], tensor[:, 1]]
        storage, whole, row, column = through_queue(sent)
        for got, one in zip((whole, row, column), sent[1:], strict=True):
            assert torch.equal(got, one)
        whole.fill_(7)
        assert (row == 7).all() and (column == 7).all()
        assert torch.empty(0).set_(storage, 0, (25,)).tolist() == [7] * 25

    def test_fs_pool(self, forkserver, file_system):
        with forkserver.Pool(2) as pool:
            private = [torch.zeros(2, 2) for _ in range(4)]
            shared = [torch.zeros(2, 2).share_memory_() for _ in range(4)]
            for tensors in (private, shared):
                assert all((result == 5).all() for result in pool.map(fill_and_add, tensors, 1))
        # torch moves a sent tensor into shared memory. Here a private tensor is copied.
        assert all((tensor == 0).all() for tensor in private)
        assert all((tensor == 4).all() for tensor in shared)

    def test_sent_private_tensor_is_copied(self, forkserver):
        tensor, queue = torch.zeros(5, 5), mp.Queue()
        queue.put([tensor, tensor[:, 1]])
        run(forkserver, fill_with_four, queue)
        assert (tensor == 0).all()
        mp.share(tensor)
        queue.put([tensor, tensor[:, 1]])
        run(forkserver, fill_with_four, queue)
        assert (tensor == 4).all()

    def test_fs(self, file_system):
        # torch makes a file for a tensor in a message. Here the tensor is in the program's shared memory.
        before = set(os.listdir("/dev/shm"))
        queue = mp.Queue()
        queue.put(torch.UntypedStorage(32))
        assert set(os.listdir("/dev/shm")) == before
        assert queue.get(timeout=WAIT).nbytes() == 32

    def test_fs_is_shared(self, file_system):
        tensor = torch.randn(5, 5)
        assert not tensor.is_shared()
        assert tensor.share_memory_().is_shared() and through_queue(tensor).is_shared()

    def test_autograd_fine_with_spawn(self):
        backward(1)
        with mp.get_context("spawn").Pool(2) as pool:
            assert pool.map(backward, [1, 2, 3]) == [1, 4, 9]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
    def test_empty_tensor_sharing(self, dtype):
        got = through_queue(torch.tensor([], dtype=dtype))
        assert got.dtype is dtype and got.shape == (0,)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
    def test_empty_tensor_sharing_meta(self, dtype):
        got = through_queue(torch.tensor([], dtype=dtype, device="meta"))
        assert got.is_meta and got.dtype is dtype and got.shape == (0,)

    def test_tensor_sharing_meta(self):
        got = through_queue(torch.tensor([1.0], device="meta"))
        assert got.is_meta and got.dtype is torch.float32 and got.shape == (1,)

    def test_meta_simple(self, forkserver):
        queue = mp.Queue()
        tensor = torch.zeros(5, 5, device="meta")
        queue.put([tensor, tensor[:, 1]])
        run(forkserver, fill_with_four, queue)
        run(forkserver, send_meta, queue)
        got = queue.get(timeout=WAIT)
        assert got.is_meta and got.shape == (5, 5) and got.dtype is torch.int8
