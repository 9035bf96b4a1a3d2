"""Ends of processes: exit functions, output and names of signals."""

import signal
import sys


def run_exit_functions():
    """Runs the functions registered with ``atexit`` and flushes the output, as at the interpreter's exit."""
    import atexit

    atexit._run_exitfuncs()
    flush_output()


def flush_output():
    """Flushes ``sys.stdout`` and ``sys.stderr``. A missing, closed or broken stream is ignored."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError, OSError):
            pass


def signal_of(code):
    """Returns the signal for a negative exit code, or its number if Python has no name for it."""
    try:
        return signal.Signals(-code)
    except ValueError:
        return -code


def signal_name(code):
    """Returns the name of the signal for a negative exit code."""
    found = signal_of(code)
    return getattr(found, "name", f"signal {found}")
