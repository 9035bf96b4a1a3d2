"""The main program of worker processes."""

import os
import signal
import sys


def main():
    from . import _multiproc

    sys.exit(_multiproc.child_main())


def preload():
    """Imports the modules that processes inherit from the fork server. Called once, in the server."""
    import json
    import warnings

    modules, main, sys_path = json.loads(sys.argv[1])
    sys.path[:] = sys_path
    # Imported for the workers of pools.
    from . import pool  # noqa: F401

    for module in modules:
        try:
            if module == "__main__":
                _inherit(main)
            else:
                __import__(module)
        except ImportError:
            pass
        except Exception:
            # Each process imports its main module if the server has not, and shows why it can't.
            if module != "__main__":
                raise
    if len(os.listdir("/proc/self/task")) > 1:
        # Libraries such as OpenBLAS end their threads when the process is forked, and start them again at
        # their next use. A process with threads can't be copied.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def _inherit(data):
    """Prepares this process as a child process of ``multiprocessing``."""
    from multiprocessing import process, spawn

    process.current_process()._inheriting = True
    try:
        spawn.prepare(data)
    finally:
        del process.current_process()._inheriting


class Preparation:
    """Preparation of a new process, which happens when this object is unpickled."""

    def __init__(self, data, method):
        self.data, self.method = data, method

    def __reduce__(self):
        return prepare, (self.data, self.method)


def prepare(data, method):
    from . import context

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "tracker_fd" in data:
        from multiprocessing import resource_tracker

        resource_tracker._resource_tracker._fd = data.pop("tracker_fd").detach()
    _inherit(data)
    context.set_start_method(method, force=True)


def run(call):
    """Runs the process that the parent sent, and returns the exit code."""
    from ._process_end import run_exit_functions

    _, started = call
    code = started._bootstrap(parent_sentinel=_parent_sentinel())
    run_exit_functions()
    return code


def _parent_sentinel():
    try:
        return os.pidfd_open(os.getppid())
    except OSError:
        return None
