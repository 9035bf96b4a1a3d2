"""Arrays and tensors whose memory is resized, freed, or smaller than their shape, while they are sent."""

import pickle

import pytest

import multiproc as mp
from programs import run_program

np = pytest.importorskip("numpy")

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch isn't installed")


def through_queue(obj):
    queue = mp.Queue()
    queue.put(obj)
    return queue.get(timeout=20)


class Call:
    """Calls a function while it is pickled."""

    def __init__(self, function):
        self.function = function

    def __reduce__(self):
        self.function()
        return int, (0,)


@pytest.mark.parametrize("view", [memoryview, pickle.PickleBuffer])
def test_buffer_stays_while_its_message_is_pickled(view):
    buffer = bytearray(1 << 20)
    exported = view(buffer)

    def free():
        exported.release()
        buffer.clear()

    with pytest.raises(BufferError):
        mp.Queue().put([exported, Call(free)])


@needs_torch
def test_tensor_with_a_resized_storage_raises():
    for size in (0, 100):
        tensor = torch.ones(1000, 1000)
        tensor.untyped_storage().resize_(size)
        with pytest.raises(RuntimeError, match="resized"):
            mp.Queue().put(tensor)
        with pytest.raises(RuntimeError, match="resized"):
            mp.collate([tensor, tensor])
    tensor = torch.ones(1 << 20)
    with pytest.raises(RuntimeError, match="resized"):
        mp.Queue().put([tensor, Call(lambda: tensor.untyped_storage().resize_(0))])


@needs_torch
@pytest.mark.parametrize("put", ["mp.Queue().put(tensor)", "mp.collate([tensor, tensor])"])
def test_storage_stays_while_it_is_copied(put):
    program = f"""
import multiproc as mp, sys, threading, torch
def replace():
    go.wait(20)
    tensor.data = torch.zeros(0)
# The other thread runs when this one lets it: while the elements are copied.
sys.setswitchinterval(20)
for _ in range(100):
    tensor, go = torch.ones(4 << 20), threading.Event()
    thread = threading.Thread(target=replace)
    thread.start()
    go.set()
    in_time = False
    try:
        {put}
        # On a busy machine, it may be late.
        in_time = len(tensor) == 0
    except RuntimeError as error:
        # It was early: torch's `is_neg`, which is called before the copy, lets other threads run too.
        assert "replaced by another thread" in str(error), error
    thread.join(20)
    if in_time:
        break
assert in_time
"""
    assert run_program(program) == ("", "", 0)


@needs_torch
def test_data_replaced_while_its_form_is_read_raises(monkeypatch):
    is_neg = torch.Tensor.is_neg

    # torch lets other threads run here.
    def replace(tensor):
        tensor.data = torch.zeros(0)
        return is_neg(tensor)

    monkeypatch.setattr(torch.Tensor, "is_neg", replace)
    with pytest.raises(RuntimeError, match="replaced by another thread"):
        mp.Queue().put(torch.ones(1000))


@needs_torch
@pytest.mark.parametrize("shape", [(2**61,), (2**61 + 1,), (2**62, 1), (2**40, 0, 2**40)])
def test_tensor_of_any_size_without_memory_arrives(shape):
    tensor = torch.zeros(1, dtype=torch.float64).expand(shape) if 0 not in shape else torch.empty(shape)
    assert through_queue(tensor).shape == shape


def test_part_within_an_array_is_sent_with_it():
    array = np.arange(5000.0)
    part, whole = through_queue((array[10:20], array))
    assert (whole == array).all() and (part == array[10:20]).all()
    part[0] = -1
    assert whole[10] == -1
