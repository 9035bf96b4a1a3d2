"""Python half of a pool worker, called from Rust through ``multiproc.pool``."""

import itertools
import os
import pickle
import sys
import threading
import traceback
from multiprocessing import process as _process
from multiprocessing import util as _util
from multiprocessing.pool import ExceptionWithTraceback, MaybeEncodingError

from ._process_end import flush_output, run_exit_functions


def _begin(number, start):
    """Prepares this worker and calls the initializer.

    Unpickling ``start`` has already imported the main module.
    """
    _, parent, initializer, initargs = start
    _util._close_stdin()
    _process._process_counter = itertools.count(1)
    _process._children = set()
    name = _process.current_process().name
    current = _process.BaseProcess(name=f"{name}-{number + 1}")
    current._identity = (number + 1,)
    current._config["daemon"] = True
    _process._current_process = current
    _process._parent_process = _process._ParentProcess(*parent, os.pidfd_open(parent[1]))
    _process.BaseProcess._after_fork()
    if initializer is not None:
        initializer(*initargs)


def _end():
    """Runs the exit functions of a worker."""
    try:
        _util._exit_function()
        run_exit_functions()
    finally:
        threading._shutdown()
        flush_output()


def _exit(error):
    """Runs the exit functions after a task called ``sys.exit``. Returns the exit code."""
    code = error.code
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    _end()
    return code or 0


def _trace(error):
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()


def _wrap(error):
    wrapped = ExceptionWithTraceback(error, error.__traceback__)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception as reason:
        # The caller gets the text of the exception and its traceback.
        wrapped.exc = MaybeEncodingError(reason, error)
    return wrapped


def _unsendable(error, value):
    return MaybeEncodingError(error, value)


def _apply(target):
    function, args, kwds = target
    return function(*args, **kwds)
