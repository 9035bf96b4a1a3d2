"""Datasets in Rust as data loaders: the extension of ``examples/python/rust_dataset``."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from mappings import in_shared_memory
from programs import run_program

digits = pytest.importorskip(
    "digits", reason="the extension of examples/python/rust_dataset is not installed: pip install it"
)
np = pytest.importorskip("numpy")


def classes(batches):
    return [int(number) for batch in batches for number in batch[1]]


def stopped(loader):
    """Stops the workers, so that a batch takes any time."""
    deadline = time.monotonic() + 20
    while not loader.pids and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in loader.pids:
        os.kill(pid, signal.SIGSTOP)


def go_on(loader):
    for pid in loader.pids:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_writable_shared_arrays(workers):
    loader = digits.Images(10, batch_size=4, num_workers=workers, as_="numpy")
    assert len(loader) == 3
    batches = list(loader)
    assert [images.shape for images, _ in batches] == [(4, 1, 28, 28), (4, 1, 28, 28), (2, 1, 28, 28)]
    assert classes(batches) == list(range(10))
    for images, numbers in batches:
        assert images.dtype == np.float32 and numbers.dtype == np.int64
        assert in_shared_memory(images.ctypes.data) and in_shared_memory(numbers.ctypes.data)
        images[:] = 7
        assert (images == 7).all()


def test_batches_are_tensors_once_torch_is_imported():
    torch = pytest.importorskip("torch")
    loader = digits.Images(8, batch_size=4, num_workers=1)
    for images, numbers in loader:
        assert type(images) is torch.Tensor and images.dtype is torch.float32
        assert numbers.dtype is torch.int64 and in_shared_memory(images.data_ptr())
        kept = images.mul_(2)
    del loader, numbers, images
    assert kept.shape == (4, 1, 28, 28) and kept.sum() > 0


def test_order_is_the_same_for_any_workers():
    def epochs(workers):
        loader = digits.Images(40, batch_size=8, shuffle=True, seed=5, num_workers=workers)
        return [classes(loader) for _ in range(2)]

    first, second = epochs(0)
    assert [first, second] == epochs(2)
    assert first != second and sorted(first) == sorted(second)


def test_set_epoch_repeats_an_epoch():
    loader = digits.Images(40, batch_size=8, shuffle=True, num_workers=1)
    orders = [classes(loader) for _ in range(3)]
    loader.set_epoch(1)
    assert classes(loader) == orders[1]


@pytest.mark.parametrize("after_iter", [False, True])
def test_state_resumes_after_delivered_batches(after_iter):
    arguments = dict(batch_size=4, shuffle=True, seed=3, num_workers=2)
    loader = digits.Images(40, **arguments)
    loader.set_epoch(6)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (6, 3)
    rest = classes(batches)

    other = digits.Images(40, **arguments)
    if after_iter:
        batches = iter(other)
        next(batches)
        other.load_state_dict(state)
    else:
        other.load_state_dict(state)
        assert (other.state_dict()["epoch"], other.state_dict()["batch"]) == (6, 3)
        batches = iter(other)
    assert classes(batches) == rest and len(rest) == 28
    assert other.state_dict()["epoch"] == 7


def test_state_of_another_order_is_refused():
    state = digits.Images(40, batch_size=4, seed=3)
    loader = digits.Images(40, batch_size=5, seed=3)
    with pytest.raises(ValueError, match="batch_size"):
        loader.load_state_dict(_state_of(state))
    with pytest.raises(ValueError, match="state"):
        loader.load_state_dict({"epoch": 0})
    with pytest.raises(ValueError, match="can't be read"):
        loader.load_state_dict({"epoch": 0, "state": b"nonsense"})


def _state_of(loader):
    batches = iter(loader)
    next(batches)
    return loader.state_dict()


def test_failed_sample_is_a_load_error():
    loader = digits.Images(12, broken=6, batch_size=4, num_workers=1)
    batches = iter(loader)
    assert len(next(batches)[1]) == 4
    with pytest.raises(digits.LoadError, match="this digit can't be drawn") as caught:
        next(batches)
    error = caught.value
    assert (error.epoch, error.batch, error.index, error.worker) == (0, 1, 6, 0)
    assert isinstance(error, RuntimeError) and error.signal is None
    assert len(next(batches)[1]) == 4
    with pytest.raises(StopIteration):
        next(batches)


def test_skipped_sample_shortens_its_batch():
    loader = digits.Images(12, broken=6, batch_size=4, num_workers=1, on_error="skip_sample")
    assert classes(loader) == [0, 1, 2, 3, 4, 5, 7, 8, 9, 0, 1]
    assert loader.metrics()["skipped_samples"] == 1


def test_deadly_sample_is_a_load_error():
    loader = digits.Images(8, deadly=5, batch_size=4, num_workers=1, retries=1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(digits.LoadError) as caught:
        next(batches)
    assert caught.value.signal == signal.SIGABRT and caught.value.batch == 1


def test_killed_workers_cost_no_batch():
    loader = digits.Images(400, batch_size=4, num_workers=2)
    delivered = []
    for number, batch in enumerate(loader):
        delivered.append(batch)
        if number in (10, 40):
            os.kill(loader.pids[0], signal.SIGKILL)
    assert classes(delivered) == [number % 10 for number in range(400)]
    assert loader.metrics()["restarts"] >= 1


def test_ctrl_c_ends_a_wait():
    loader = digits.Images(4, batch_size=4, num_workers=1)
    stopped(loader)
    batches = iter(loader)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sent = []

    def interrupt():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.3, interrupt)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert time.monotonic() - sent[0] < 1
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
        go_on(loader)
    assert classes([next(batches)]) == [0, 1, 2, 3]


def test_threads_run_while_a_batch_is_awaited():
    loader = digits.Images(4, batch_size=4, num_workers=1)
    stopped(loader)
    got = []
    waiter = threading.Thread(target=lambda: got.extend(loader))
    waiter.start()
    turns, end = 0, time.monotonic() + 0.3
    while time.monotonic() < end:
        turns += 1
    go_on(loader)
    waiter.join(30)
    assert turns > 1000 and classes(got) == [0, 1, 2, 3]


def test_timeout_of_next_names_the_batch():
    loader = digits.Images(4, batch_size=4, num_workers=1, timeout=0.2)
    stopped(loader)
    batches = iter(loader)
    with pytest.raises(digits.LoadError, match="timed out after 0.2 seconds: batch 0 of epoch 0") as caught:
        next(batches)
    assert (caught.value.epoch, caught.value.batch, caught.value.index) == (0, 0, None)
    go_on(loader)


def test_batch_timeout_replaces_a_stopped_worker():
    loader = digits.Images(8, batch_size=4, num_workers=1, batch_timeout=0.3)
    next(iter(loader))
    stopped(loader)
    assert classes(loader) == list(range(8))


def test_struct_is_a_dict_of_columns():
    first, second = digits.Texts(5, batch_size=3, num_workers=1, as_="numpy")
    assert list(first) == ["number", "text", "letters"]
    assert first["text"] == ["number 0", "number 1", "number 2"]
    values, offsets = second["letters"]
    assert bytes(values) == b"numnumb" and list(offsets) == [0, 3, 7]


def test_distributed_ranks_share_the_samples(monkeypatch):
    whole = [classes(digits.Images(20, batch_size=5, distributed=(rank, 2))) for rank in (0, 1)]
    assert sorted(whole[0] + whole[1]) == sorted(number % 10 for number in range(20))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert classes(digits.Images(20, batch_size=5, distributed="env")) == whole[1]


@pytest.mark.parametrize(
    "arguments",
    [
        dict(batch_size=0),
        dict(as_="jax"),
        dict(on_error="hope"),
        dict(distributed="nccl"),
        dict(distributed=(2, 2)),
        dict(timeout=-1),
        dict(batch_timeout=float("nan")),
    ],
)
def test_impossible_settings_are_value_errors(arguments):
    with pytest.raises(ValueError):
        digits.Images(10, **arguments)


def test_failed_dataset_is_a_runtime_error():
    with pytest.raises(RuntimeError, match="there are no numbers"):
        digits.Texts(0)
    with pytest.raises(TypeError):
        digits.Images()
    with pytest.raises(TypeError, match="sampler"):
        digits.Images(10, sampler=None)


def test_use_after_fork_raises_and_parent_continues():
    loader = digits.Images(16, batch_size=4, num_workers=1)
    batches = iter(loader)
    next(batches)
    pid = os.fork()
    if pid == 0:
        try:
            next(batches)
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert len(list(batches)) == 3


@pytest.mark.parametrize("delivered", [0, 1])
def test_iter_during_load_state_dict_is_not_blocked(delivered):
    """A thread loads a state while another one makes a batch, for which it needs the GIL."""
    program = f"""
import digits, sys, threading, time
held, entered, leave, loading = False, threading.Event(), threading.Event(), threading.Event()
def fetched():
    if held:
        entered.set()
        leave.wait()
def load():
    loading.set()
    loader.load_state_dict(state)
def waits(thread):
    with open(f"/proc/self/task/{{thread.native_id}}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "S"
loader = digits.Images(8, batch_size=2, as_="numpy", called="fetched")
state = loader.state_dict()
batches = iter(loader)
if {delivered}:
    next(batches)
    state = loader.state_dict()
held = True
threads = [threading.Thread(target=next, args=(batches,)), threading.Thread(target=load)]
threads[0].start()
entered.wait()
# The second thread is interrupted only where it releases the GIL: within load_state_dict.
sys.setswitchinterval(1000)
threads[1].start()
loading.wait()
while not waits(threads[1]):
    time.sleep(0.01)
iter(loader)
leave.set()
for thread in threads:
    thread.join()
"""
    assert run_program(program) == ("", "", 0)


def test_exit_with_a_live_loader_is_clean():
    program = (
        "import digits\n"
        "loader = digits.Images(400, batch_size=4, num_workers=2)\n"
        "batches = iter(loader)\n"
        "kept = next(batches)\n"
        "print(loader.pids[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{done.stdout.strip()}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{done.stdout.strip()}")
