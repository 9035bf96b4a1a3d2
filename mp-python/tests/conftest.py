"""Fixtures of all tests: deadlines, start methods, and the check that a run leaves no processes and files."""

import faulthandler
import gc
import os
import signal
import time

import pytest

DEADLINE = 120
# Names that `ps` shows for processes which live as long as their parent. The last one is torch's.
SERVERS = {"mp-forkserver", "mp-next-worker", "torch_shm_manag"}
SHM = "/dev/shm"

_stderr = None
_files_before = set()


def pytest_configure(config):
    global _stderr
    config.addinivalue_line("markers", f"deadline(seconds): replaces the {DEADLINE} seconds a test may take")
    # Output is not captured yet, so a dump of the threads reaches the terminal.
    _stderr = os.dup(2)
    # A shell starts background jobs with SIGINT and SIGQUIT ignored, which programs of tests would inherit.
    for number, handler in [(signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)]:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_sessionstart(session):
    _files_before.update(_shm_names())


@pytest.fixture(autouse=True)
def _deadline(request):
    """Ends the run with a dump of all threads if the test takes too long, even in a blocking C function."""
    marker = request.node.get_closest_marker("deadline")
    faulthandler.dump_traceback_later(marker.args[0] if marker else DEADLINE, exit=True, file=_stderr)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=["spawn", "forkserver"])
def method(request):
    """Name of a start method."""
    return request.param


@pytest.fixture
def ctx(method):
    """Context of a start method."""
    import multiproc

    return multiproc.get_context(method)


@pytest.fixture
def forkserver():
    """Context of the fork server, for tests that need one start method only."""
    import multiproc

    return multiproc.get_context("forkserver")


@pytest.fixture(scope="module", params=["spawn", "forkserver"])
def pool(request):
    """A pool of two workers, for all tests of a file."""
    import multiproc

    with multiproc.get_context(request.param).Pool(2) as pool:
        yield pool
    pool.join()


@pytest.fixture
def one():
    """A pool of one worker that starts fast."""
    import multiproc

    with multiproc.get_context("forkserver").Pool(1) as pool:
        yield pool


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    """Fails the run if it has left processes or files."""
    left = _wait_for_none(_children)
    files = _wait_for_none(_files)
    if left or files:
        report = session.config.pluginmanager.get_plugin("terminalreporter")
        if report:
            report.write_line("")
            for name in [f"process {text}" for text in left] + [f"{SHM}/{name}" for name in files]:
                report.write_line(f"{name} was left by the tests", red=True)
        if exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _wait_for_none(find):
    """Returns what stays found for 5 seconds. Another run may have files that it does not use at the moment."""
    gc.collect()
    end = time.monotonic() + 5
    found = set(find())
    while found and time.monotonic() < end:
        time.sleep(0.05)
        found &= set(find())
    return found


def _children():
    """Returns the child processes of this process, without servers and without children that have ended."""
    found = []
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            with open(f"/proc/{pid}/stat") as file:
                name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
            with open(f"/proc/{pid}/cmdline") as file:
                command = file.read().replace("\0", " ")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        # Servers of the standard library. Its fork server is torch's start method since Python 3.14.
        theirs = "resource_tracker" in command or "multiprocessing.forkserver" in command
        if int(parent) == os.getpid() and state != "Z" and name not in SERVERS and not theirs:
            found.append(f"{pid} ({name}) {command}")
    return found


def _shm_names():
    try:
        return set(os.listdir(SHM))
    except OSError:
        return set()


def _files():
    """Returns new files that no process uses. Files in use may belong to other programs."""
    new = _shm_names() - _files_before
    if not new:
        return new
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/maps") as file:
                maps = file.read()
            opened = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        new = {name for name in new if f"{SHM}/{name}" not in maps and f"{SHM}/{name}" not in opened}
    return new
