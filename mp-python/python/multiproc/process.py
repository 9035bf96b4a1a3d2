"""``Process``, and what goes with it: CPython's, but started and watched by the library."""

import json
import os
import sys
from multiprocessing import process as _process
from multiprocessing import spawn as _spawn
from multiprocessing import util as _util
from multiprocessing.context import set_spawning_popen

from . import _multiproc
from ._child import Preparation
from .reduction import DupFd, pickler

__all__ = ["Process", "active_children", "current_process", "parent_process"]

active_children = _process.active_children
current_process = _process.current_process
parent_process = _process.parent_process

_preload = ["__main__"]


def set_forkserver_preload(module_names):
    """Sets the modules that the fork server imports before it makes processes."""
    if not all(type(name) is str for name in module_names):
        raise TypeError("module_names must be a list of strings")
    _preload[:] = module_names


def _command(method, data):
    """Returns the command that starts a worker, or the fork server."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    begin = (
        "import sys\n"
        "try:\n import multiproc._child as child\n"
        f"except ImportError:\n sys.path.append({here!r})\n import multiproc._child as child\n"
        "child.main()"
    )
    command = [os.fsdecode(_spawn.get_executable()), *_util._args_from_interpreter_flags(), "-c", begin]
    if method == "forkserver":
        main = data.get("init_main_from_path")
        command.append(json.dumps([_preload, main, data["sys_path"]]))
    return command


class _Popen:
    """The started process, as ``BaseProcess`` uses it."""

    DupFd = DupFd

    def __init__(self, process_obj, method):
        self.method = method
        self.returncode = None
        data = _spawn.get_preparation_data(process_obj.name)
        data.pop("start_method", None)
        set_spawning_popen(self)
        try:
            self._child = _multiproc.start(
                (Preparation(data, method), process_obj),
                command=_command(method, data),
                name=process_obj.name,
                method=method,
                daemon=bool(process_obj.daemon),
                pickler=pickler(),
            )
        finally:
            set_spawning_popen(None)
        self.pid = self._child.pid
        self.sentinel = self._child.sentinel

    def duplicate_for_child(self, fd):
        return fd

    def poll(self, flag=os.WNOHANG):
        if self.returncode is None:
            self.returncode = self._child.poll() if flag else self._child.wait()
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            self.returncode = self._child.wait(timeout)
        return self.returncode

    def terminate(self):
        if self.poll() is None:
            self._child.terminate()

    def kill(self):
        if self.poll() is None:
            self._child.kill()

    def interrupt(self):
        if self.poll() is None:
            os.kill(self.pid, 2)

    def close(self):
        pass


class Process(_process.BaseProcess):
    """A process that runs a function. The same as ``multiprocessing.Process``."""

    _start_method = None
    _method = None

    @staticmethod
    def _Popen(process_obj):
        from . import context

        return _Popen(process_obj, process_obj._method or context.get_start_method())


class SpawnProcess(Process):
    _method = "spawn"


class ForkServerProcess(Process):
    _method = "forkserver"
