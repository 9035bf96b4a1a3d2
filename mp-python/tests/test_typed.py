"""Messages with a schema, and guests: programs that share memory without pickle."""

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

import multiproc
from mappings import in_shared_memory, mapping_of
from multiproc import TypedQueue

np = pytest.importorskip("numpy")

BATCH = "vision/batch/1(pixels:tensor<f32>,class:tensor<i64>,path:str)"
LONG = "a/message/1(" + ",".join(f"number_with_a_long_name_{i}:u64" for i in range(8)) + ")"


@multiproc.message("point/1")
@dataclass
class Point:
    x: int
    y: float
    label: None | str
    tags: list[str]


@multiproc.message("scene/1")
@dataclass
class Scene:
    center: Point
    weights: dict[str, float]
    raw: bytes
    pixels: Annotated[np.ndarray, "shared<u8>"]


def batch(number):
    return {"pixels": np.full((2, 3), number, np.float32), "class": np.arange(2), "path": f"{number}.png"}


def through(schema, value, **arguments):
    messages = TypedQueue(schema)
    messages.put(value)
    return messages.get(timeout=10, **arguments)


def test_batch_arrives_as_writable_shared_arrays():
    got = through(BATCH, batch(3), as_="numpy")
    assert list(got) == ["pixels", "class", "path"] and got["path"] == "3.png"
    assert (got["pixels"] == 3).all() and got["pixels"].dtype == np.float32
    assert got["class"].tolist() == [0, 1]
    assert in_shared_memory(got["pixels"].ctypes.data)
    got["pixels"][:] = 7
    assert got["pixels"].sum() == 42


def test_batch_arrives_as_tensors_of_torch():
    torch = pytest.importorskip("torch")
    value = {"pixels": torch.ones(4, 6)[:, ::2], "class": torch.zeros(0, dtype=torch.int64), "path": ""}
    got = through(BATCH, value)
    assert type(got["pixels"]) is torch.Tensor and got["pixels"].shape == (4, 3)
    assert in_shared_memory(got["pixels"].data_ptr()) and got["class"].shape == (0,)
    assert got["pixels"].add_(1).sum() == 24


def test_values_of_each_type_round_trip():
    schema = (
        "all/1(a:u8,b:i64,c:u64,d:f32,e:f64,f:bool,g:str,h:list<u8>,i:list<list<i16>>,j:option<str>,"
        "k:map<list<f64>>,l:list<option<bool>>)"
    )
    value = dict(a=255, b=-(2**63), c=2**64 - 1, d=0.5, e=1e300, f=True, g="é" * 9000, h=b"\0" * 40000)
    value |= dict(i=[[1, -2], []], j=None, k={"x": [1.5], "": []}, l=[None, False])
    assert through(schema, value) == value
    value |= dict(j="here", h=b"", i=[[7] * 1000], k={})
    assert through(schema, value) == value


def test_dict_changed_by_its_values_is_sent():
    class Number:
        def __float__(self):
            value["k"].clear()
            return 1.5

    value = {"k": {"a": Number(), "b": 2.0}}
    assert through("n/1(k:map<f64>)", value) == {"k": {"a": 1.5, "b": 2.0}}


def test_dataclasses_round_trip():
    pixels = np.arange(6, dtype=np.uint8)
    scene = Scene(Point(-1, 2.5, None, ["a", "b"]), {"w": 0.25}, b"\x01\xff", pixels)
    got = through(Scene, scene, as_="numpy")
    assert type(got) is Scene and got.center == scene.center
    assert (got.weights, got.raw, got.pixels.tolist()) == ({"w": 0.25}, b"\x01\xff", list(range(6)))
    assert Scene.__schema__ == (
        "scene/1(center:point/1(x:i64,y:f64,label:option<str>,tags:list<str>),weights:map<f64>,raw:list<u8>,"
        "pixels:shared<u8>)"
    )


def test_frozen_arrays_are_read_only():
    got = through("f/1(x:frozen<f64>)", {"x": np.arange(4.0)[::-1]}, as_="numpy")["x"]
    assert got.tolist() == [3, 2, 1, 0] and in_shared_memory(got.ctypes.data)
    with pytest.raises(ValueError):
        got[0] = 1
    torch = pytest.importorskip("torch")
    got = through("f/1(x:frozen<f64>)", {"x": torch.arange(4.0, dtype=torch.float64)}, as_="torch")["x"]
    assert got.add_(1).tolist() == [1, 2, 3, 4]


def test_large_frozen_tensor_is_mapped_for_torch():
    torch = pytest.importorskip("torch")
    messages = TypedQueue("f/1(x:frozen<f32>)")
    messages.put({"x": torch.ones(3, 1 << 16)[1:]})
    got = messages.get(as_="torch")["x"]
    assert mapping_of(got.data_ptr())[1] == "rw-p" and got.shape == (2, 1 << 16)
    assert got.add_(1).eq(2).all()



def test_shared_arrays_are_the_same_memory():
    messages = TypedQueue("s/1(x:shared<i32>)")
    messages.put({"x": np.zeros((2, 4), np.int32)})
    mine = messages.get(as_="numpy")["x"]
    messages.put({"x": mine[:, 1::2]})
    view = messages.get(as_="numpy")["x"]
    view[:] = 5
    assert mine.tolist() == [[0, 5, 0, 5]] * 2


@pytest.mark.parametrize(
    ("schema", "value", "error", "text"),
    [
        (BATCH, {**batch(1), "path": 4}, TypeError, r"message.path must be str, not int"),
        (BATCH, {**batch(1), "more": 4}, TypeError, r"'more'"),
        (BATCH, {"pixels": batch(1)["pixels"]}, TypeError, r"message.class is missing"),
        (BATCH, {**batch(1), "class": np.zeros(2)}, TypeError, r"class must have elements of type i64"),
        (BATCH, {**batch(1), "class": [1, 2]}, TypeError, r"message.class must be tensor<i64>"),
        (Scene, {"center": 5}, TypeError, r"message.center must be a dict or an object .*point/1.*, not int"),
        (BATCH, 5, TypeError, r"message must be a dict or an object with the fields of vision/.*, not int"),
        ("n/1(x:option<u8>)", "x", TypeError, r"with the fields of n/1\(x:option<u8>\), not str"),
        ("n/1(x:u8)", {"x": 256}, OverflowError, "message.x: 256 is out of range for u8"),
        ("n/1(x:u8)", {"x": True}, TypeError, "message.x"),
        ("n/1(x:f64)", {"x": "1"}, TypeError, "message.x"),
        ("n/1(x:list<map<bool>>)", {"x": [{}, {"k": 1}]}, TypeError, r'message.x\[1\]\["k"\] must be bool'),
        ("n/1(x:queue<point/1(x:u8)>)", {"x": 1}, TypeError, "message.x must be queue"),
        (Scene, {"center": Point(1, 2.0, None, [3])}, TypeError, r"message.center.tags\[0\] must be str"),
    ],
)
def test_wrong_values_name_their_path(schema, value, error, text):
    messages = TypedQueue(schema)
    with pytest.raises(error, match=text):
        messages.put(value)
    assert messages.qsize() == 0


@pytest.mark.parametrize(
    "text",
    ["", "x", "x(", "x(a)", "x(a:)", "x(a:u9)", "x(a:u8,a:u8)", "x(a:u8)y", "(a:u8)", "x(a:tensor<str>)",
     "x(a:list<u8)", "x(a:queue<u8>)", "x(a:" + "list<" * 99 + "u8" + ">" * 99 + ")"],
)  # fmt: skip
def test_malformed_schemas_are_value_errors(text):
    with pytest.raises(ValueError, match="is not a schema"):
        TypedQueue(text)


def test_full_empty_and_shut_down_are_raised():
    messages = TypedQueue("n/1(x:u8)", 1)
    with pytest.raises(queue.Empty):
        messages.get_nowait()
    with pytest.raises(queue.Empty):
        messages.get(timeout=0.05)
    messages.put({"x": 1})
    assert messages.full() and messages.qsize() == 1
    with pytest.raises(queue.Full):
        messages.put_nowait({"x": 2})
    messages.shutdown()
    assert list(messages) == [{"x": 1}]
    with pytest.raises(multiproc.ShutDown):
        messages.put({"x": 2})


def echo(requests, answers):
    for value in requests:
        value["pixels"] = value["pixels"] * 2
        answers.put(value)


def test_queues_connect_processes(ctx):
    requests, answers = TypedQueue(BATCH, 4), TypedQueue(BATCH)
    process = ctx.Process(target=echo, args=(requests, answers))
    process.start()
    for number in range(3):
        requests.put(batch(number))
    requests.shutdown()
    got = [answers.get(timeout=30) for _ in range(3)]
    process.join(30)
    assert [value["pixels"].sum().item() for value in got] == [0, 12, 24] and process.exitcode == 0


def put_long(messages):
    messages.put({f"number_with_a_long_name_{i}": i for i in range(8)})


def test_long_schema_needs_a_registration(ctx):
    messages = TypedQueue(LONG)
    assert len(LONG) > 128 and repr(messages) == f"<multiproc.TypedQueue of {LONG}>"
    process = ctx.Process(target=put_long, args=(messages,))
    process.start()
    process.join(30)
    assert process.exitcode == 1
    multiproc.register_schema(LONG)
    messages.put({f"number_with_a_long_name_{i}": i for i in range(8)})
    assert list(messages.get().values()) == list(range(8))


def test_queue_of_another_schema_is_refused_by_both_texts():
    inner, other = "n/1(x:u8)", TypedQueue("n/2(x:u8)")
    messages = TypedQueue(f"m/1(q:queue<{inner}>)")
    with pytest.raises(TypeError, match=r"must be a queue of n/1\(x:u8\), not of n/2\(x:u8\)"):
        messages.put({"q": other})
    messages.put({"q": TypedQueue(inner)})
    got = messages.get()["q"]
    got.put({"x": 9})
    assert got.schema == inner and got.get() == {"x": 9}


GUEST = """
import multiproc, os, signal, sys
job = multiproc.child()
for value in job["requests"]:
    if value["path"] == "exit":
        sys.exit(7)
    if value["path"] == "die":
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    value["pixels"] += 1
    job["answers"].put(value)
try:
    multiproc.child()
except RuntimeError as error:
    assert "before" in str(error)
else:
    raise SystemExit(3)
"""
JOB = f"job/1(requests:queue<{BATCH}>,answers:queue<{BATCH}>)"


def guest(program=GUEST):
    requests, answers = TypedQueue(BATCH, 4), TypedQueue(BATCH)
    job = {"requests": requests, "answers": answers}
    return multiproc.start_guest([sys.executable, "-c", program], job, JOB), requests, answers


def test_guest_shares_queues_and_tensors():
    worker, requests, answers = guest()
    for number in range(3):
        requests.put(batch(number))
    got = [answers.get(timeout=30, as_="numpy")["pixels"].sum() for _ in range(3)]
    requests.shutdown()
    assert got == [6, 12, 18] and worker.wait(30) == 0


@pytest.mark.parametrize(("word", "code"), [("exit", 7), ("die", -signal.SIGKILL)])
def test_end_of_a_guest_is_reported(word, code):
    worker, requests, answers = guest()
    requests.put({**batch(1), "path": word})
    assert worker.wait(30) == code
    requests.put(batch(2))
    with pytest.raises(queue.Empty):
        answers.get(timeout=0.1)


def test_killed_guest_ends_a_wait():
    worker, requests, answers = guest()
    requests.put(batch(1))
    answers.get(timeout=30)
    worker.kill()
    with pytest.raises(multiproc.PeerLost):
        answers.get()
    assert worker.wait(30) == -signal.SIGKILL


def test_close_ends_a_wait_of_another_thread():
    waiting, errors = TypedQueue(BATCH), []
    begun = threading.Event()

    def wait():
        begun.set()
        try:
            waiting.get()
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert begun.wait(30)
    waiting.close()
    thread.join(30)
    assert errors == ["TypedQueue is closed in this process"]


def test_schema_of_another_type_is_refused():
    with pytest.raises(TypeError, match="a schema is a text"):
        TypedQueue(3)


def test_child_outside_a_guest_raises():
    with pytest.raises(RuntimeError, match="not started as a guest"):
        multiproc.child()


def test_guest_wait_returns_the_exit_code():
    worker, _, _ = guest("import sys; sys.exit(5)")
    assert worker.wait(30) == 5


def test_start_guest_without_a_program_raises():
    with pytest.raises(RuntimeError, match="nosuchprogram"):
        multiproc.start_guest(["/nosuchprogram"], {"x": 1}, "n/1(x:u8)")
    with pytest.raises(RuntimeError, match="empty"):
        multiproc.start_guest([], {"x": 1}, "n/1(x:u8)")


def test_guest_ends_with_its_parent():
    program = (
        "import multiproc, os, sys, signal\n"
        "up = multiproc.TypedQueue('pid/1(pid:u32)')\n"
        "code = 'import multiproc, os, signal\\nup = multiproc.child()[\"up\"]\\n'\n"
        "code += 'up.put({\"pid\": os.getpid()})\\nsignal.pause()'\n"
        "schema = f'job/2(up:queue<{up.schema}>)'\n"
        "guest = multiproc.start_guest([sys.executable, '-c', code], {'up': up}, schema)\n"
        "print(up.get(timeout=30)['pid'], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60)
    pid, deadline = done.stdout.strip(), time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pid and not os.path.exists(f"/proc/{pid}")


@pytest.fixture
def rust_program():
    """Path of the program of ``examples/python/rust_to_python``."""
    path = os.environ.get("RUST_TO_PYTHON") or shutil.which("rust_to_python")
    if path is None:
        pytest.skip("the program of examples/python/rust_to_python is not built: cargo install --path it")
    return path


def test_rust_guest_refuses_other_arguments(rust_program):
    worker = multiproc.start_guest([rust_program, "guest"], {"x": 1}, "n/1(x:u8)")
    assert worker.wait(30) == 1
