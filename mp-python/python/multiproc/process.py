"""``Process`` and related functions: CPython's classes, with processes that are started and watched by the
library."""

from __future__ import annotations

import functools
import os
import pickle
import resource
import signal
import sys
from multiprocessing import process as _process
from multiprocessing import spawn as _spawn
from multiprocessing import util as _util
from multiprocessing.context import set_spawning_popen
from multiprocessing.process import AuthenticationString, BaseProcess

from . import _multiproc
from ._child import Preparation
from .reduction import DupFd, pickler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AuthenticationString",
    "BaseProcess",
    "Process",
    "active_children",
    "current_process",
    "parent_process",
]

active_children = _process.active_children
current_process = _process.current_process
parent_process = _process.parent_process

_preload = ["__main__"]


def set_forkserver_preload(module_names: Iterable[str]) -> None:
    """Sets the modules that the fork server imports before it makes processes."""
    module_names = list(module_names)
    if not all(type(name) is str for name in module_names):
        raise TypeError("module_names must be a list of strings")
    _preload[:] = module_names


# Imports this copy of the package, regardless of the working directory and of `sys.path`.
_BEGIN = """\
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
from importlib.machinery import PathFinder
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{here!r}]) if name == {name!r} else None
sys.meta_path.insert(0, Finder)
import {name}._child as child
sys.meta_path.remove(Finder)
child.main()
"""


def _command(method, data, preload=_preload):
    """Returns the command that starts a worker, or the fork server, which imports the modules ``preload``."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    executable = os.fsdecode(_spawn.get_executable() or "")
    if not executable:
        raise RuntimeError("the path of the Python interpreter is not known: set it by set_executable()")
    begin = _BEGIN.format(here=here, name=__package__)
    command = [executable, *_util._args_from_interpreter_flags(), "-c", begin]
    if method == "forkserver":
        import json

        main = {key: data[key] for key in ("init_main_from_name", "init_main_from_path") if key in data}
        command.append(json.dumps([preload, main, data["sys_path"]]))
    return command


def _preparation(name):
    """Returns the data with which a new process imports the main module and unpickles its function."""
    data = _spawn.get_preparation_data(name)
    data.pop("start_method", None)
    # A program that is read from the standard input has a path that doesn't exist.
    if not os.path.exists(data.get("init_main_from_path", "/")):
        del data["init_main_from_path"]
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    if tracker is not None:
        data["tracker_fd"] = DupFd(_tracker_fd(tracker))
    return data


def _tracker_fd(tracker):
    try:
        return tracker.getfd()
    except BlockingIOError as error:
        most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        raise RuntimeError(
            f"could not start the resource tracker of multiprocessing: {error.strerror}. The limit is "
            f"RLIMIT_NPROC = {most} (processes, ulimit -u)"
        ) from error


def _has_main(data):
    """Returns ``True`` if the process imports the main module. Main modules of packages, folders and archives
    run their code unconditionally.
    """
    name = data.get("init_main_from_name", "__main__")
    return "init_main_from_path" in data or name.rpartition(".")[2] != "__main__"


@functools.cache
def _register_at_fork():
    """Makes a process created by `os.fork` ignore its parent's child processes when it exits."""

    def forget():
        for process in [process for process in _process._children if isinstance(process, Process)]:
            _process._children.discard(process)

    os.register_at_fork(after_in_child=forget)


class _Popen:
    """The started process, as ``BaseProcess`` uses it."""

    DupFd = DupFd
    # `BaseProcess.start` reads it. `Process.sentinel` asks for the descriptor, so that processes whose
    # sentinel is not used have none.
    sentinel = None

    def __init__(self, process_obj, method):
        self.method = method
        self.returncode = None
        _register_at_fork()
        set_spawning_popen(self)
        try:
            data = _preparation(process_obj.name)
            self._child = self._start(process_obj, data)
        finally:
            set_spawning_popen(None)
        self.pid = self._child.pid

    def _start(self, process_obj, data):
        has_main = _has_main(data)
        try:
            return _multiproc.start(
                (Preparation(data, self.method), process_obj),
                command=_command(self.method, data),
                name=process_obj.name,
                method=self.method,
                has_main=has_main,
                daemon=bool(process_obj.daemon),
            )
        except (pickle.PicklingError, AttributeError) as error:
            if pickler(has_main) is not None:
                raise
            raise pickle.PicklingError(
                f"{error} (a process of start method {self.method!r} gets pickled objects: pickle writes "
                "functions and classes that have a name in a module; install cloudpickle for others)"
            ) from error

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
            os.kill(self.pid, signal.SIGINT)

    def close(self):
        del self._child


class Process(_process.BaseProcess):
    """A process that runs a function. The same as ``multiprocessing.Process``."""

    # Start method of `multiprocessing` in the process: its default is not changed.
    _start_method = None
    _method = None

    @staticmethod
    def _Popen(process_obj):
        from . import context

        return _Popen(process_obj, process_obj._method or context.get_start_method())

    @property
    def sentinel(self) -> int:
        """Descriptor that is readable when the process has ended, for ``wait``. Messages that the process has
        sent are readable before.
        """
        self._check_closed()
        if self._popen is None:
            raise ValueError("process not started")
        return self._popen._child.sentinel()

    def interrupt(self) -> None:
        """Sends SIGINT to the process."""
        self._check_closed()
        self._popen.interrupt()


class SpawnProcess(Process):
    """A process that executes a new interpreter."""

    _method = "spawn"


class ForkServerProcess(Process):
    """A process that is a copy of the fork server."""

    _method = "forkserver"
