"""Tensors that native code or the ending interpreter frees: nothing crashes, hangs or is written."""

import pytest

from programs import run_program

pytest.importorskip("numpy")
pytest.importorskip("torch")

# `take` moves a tensor to native code. It returns the function that frees the tensor, and its argument.
# `at_exit` has the process call a native function after the interpreter's end, the last one first.
NATIVE = """
import ctypes, threading
from ctypes import byref, c_char_p, c_uint, c_void_p, py_object
libc, api = ctypes.CDLL(None), ctypes.pythonapi
api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = c_void_p, (py_object, c_char_p)
api.PyCapsule_SetName.argtypes = py_object, c_char_p
USED = b"used_dltensor"
def take(tensor):
    capsule = tensor.__dlpack__()
    managed = api.PyCapsule_GetPointer(capsule, b"dltensor")
    api.PyCapsule_SetName(capsule, USED)
    return c_void_p.from_address(managed + 56), c_void_p(managed)
def at_exit(function, argument):
    assert libc.__cxa_atexit(function, argument, None) == 0
def at_thread_end(free, tensor):
    key = c_uint()
    assert libc.pthread_key_create(byref(key), free) == 0
    assert libc.pthread_setspecific(key, tensor) == 0
libc.strdup.restype = c_void_p
at_exit(libc.puts, c_void_p(libc.strdup(b"end")))
import multiproc as mp, torch
def tensors():
    queue = mp.Queue()
    queue.put([torch.ones(10), torch.ones(100_000)])
    return queue.get() + [mp.empty((50,), torch.float32), torch.ones(20).share_memory_()]
"""

ENDS = {
    "exit_function": """
for tensor in tensors():
    at_exit(*take(tensor))
""",
    "end_of_a_thread": """
import os, time
def run():
    for tensor in tensors():
        at_thread_end(*take(tensor))
threads = [threading.Thread(target=run) for _ in range(3)]
for thread in threads:
    thread.start()
# torch's function takes the lock of the interpreter, so that it must not end meanwhile.
while any(os.path.exists(f"/proc/self/task/{thread.native_id}") for thread in threads):
    time.sleep(0.001)  # sleep: `join` returns before the native thread has ended
""",
    # The threads neither make nor free tensors in the loop: torch ends the process if a daemon does so now.
    "daemons_with_arrays": """
at_exit(libc.usleep, 100_000)
ready = threading.Semaphore(0)
def run():
    kept = tensors()
    ready.release()
    while True:
        arrays = [mp.empty((100,), "f4") for _ in range(10)]
for _ in range(3):
    threading.Thread(target=run, daemon=True).start()
for _ in range(3):
    ready.acquire()
""",
    "end_of_modules": """
import atexit, sys, types
class Owner:
    def __init__(self):
        self.tensors, self.me = tensors(), self
    def __del__(self):
        assert self.tensors[1][0] == 1
        self.tensors = None
mp.kept, torch.kept = Owner(), Owner()
sys.modules["kept"] = types.ModuleType("kept")
sys.modules["kept"].owner = Owner()
atexit.register(lambda owner=Owner(): owner.tensors[0].sum())
kept = tensors()
del sys.modules["multiproc"]
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_exit_with_native_owners_is_clean(end):
    assert run_program(NATIVE + ENDS[end]) == ("end\n", "", 0)
