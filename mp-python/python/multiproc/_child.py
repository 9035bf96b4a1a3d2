"""The main program of worker processes."""

import json
import os
import signal
import sys


def main():
    from . import _multiproc

    sys.exit(_multiproc.child_main())


def preload():
    """Imports what the fork server's processes begin with. Runs in the server, once."""
    modules, main_path, sys_path = json.loads(sys.argv[1])
    sys.path[:] = sys_path
    from multiprocessing import process, spawn

    if "__main__" in modules and main_path is not None:
        process.current_process()._inheriting = True
        try:
            spawn.import_main_path(main_path)
        finally:
            del process.current_process()._inheriting
    for module in modules:
        if module != "__main__":
            try:
                __import__(module)
            except ImportError:
                pass
    if len(os.listdir("/proc/self/task")) > 1:
        # Libraries such as OpenBLAS end their threads when the process is forked, and begin them again at
        # their next use. A process with threads can't be copied.
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


class Preparation:
    """What a process needs before its function can be unpickled. Unpickling it prepares the process."""

    def __init__(self, data, method):
        self.data, self.method = data, method

    def __reduce__(self):
        return prepare, (self.data, self.method)


def prepare(data, method):
    from multiprocessing import process, spawn

    from . import context

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    process.current_process()._inheriting = True
    try:
        spawn.prepare(data)
    finally:
        del process.current_process()._inheriting
    context.set_start_method(method, force=True)


def run(call):
    """Runs the process that the parent sent, and returns the exit code."""
    import atexit

    _, started = call
    code = started._bootstrap(parent_sentinel=_parent_sentinel())
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _parent_sentinel():
    try:
        return os.pidfd_open(os.getppid())
    except OSError:
        return None
