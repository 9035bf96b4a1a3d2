"""A pytest plugin that reports tests as libtest does, for the project's summary of all tests.

With ``MP_RUN_AGAIN`` in the environment, a failed test runs a second time, by itself. ``MP_CLAIMS`` names a
folder that several runs share. Each file of tests then runs in the first of them that reaches it.
"""

import os

import pytest
from _pytest.runner import runtestprotocol

_counts = {"passed": 0, "failed": 0}
_names = []
_claimed = {}


def pytest_collection_finish(session):
    print(f"\nrunning {len(session.items)} tests", flush=True)


def _claims(path):
    """Returns ``True`` if this run executes the tests of a file."""
    folder = os.environ.get("MP_CLAIMS")
    if folder is None:
        return True
    if path not in _claimed:
        try:
            os.mkdir(os.path.join(folder, path.name))
            _claimed[path] = True
        except FileExistsError:
            _claimed[path] = False
    return _claimed[path]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if not _claims(item.path):
        return True
    if "MP_RUN_AGAIN" not in os.environ:
        return None
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(report.failed for report in reports):
        for report in reports:
            if report.failed:
                print(f"\n---- {item.nodeid} stdout ----\n{report.longreprtext}", flush=True)
        item._initrequest()
        again = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(report.failed for report in again):
            print(f"\ntest {item.nodeid} ... FAILED", flush=True)
            print(f"passed when run again by itself: {item.nodeid}", flush=True)
            _counts["failed"] += 1
            return True
        reports = again
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_runtest_logreport(report):
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "expected to fail"
        print(f"\nskipped test: {report.nodeid}: {reason}", flush=True)
        _counts["passed"] += 1
    elif report.failed:
        print(f"\ntest {report.nodeid} ... FAILED", flush=True)
        _counts["failed"] += 1
    elif report.when == "call":
        _counts["passed"] += 1
        _names.append(report.nodeid.rpartition("::")[2].partition("[")[0])


def pytest_sessionfinish(session, exitstatus):
    path = os.environ.get("MP_TESTS_RAN")
    if path is not None:
        with open(path, "a") as ran:
            ran.writelines(f"{name}\n" for name in _names)
    result = "ok" if exitstatus == 0 else "FAILED"
    passed, failed = _counts["passed"], _counts["failed"]
    print(f"\ntest result: {result}. {passed} passed; {failed} failed; 0 ignored", flush=True)
