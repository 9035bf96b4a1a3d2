"""A pytest plugin that reports tests as libtest does, for the project's summary of all tests."""

import os

_counts = {"passed": 0, "failed": 0}
_names = []


def pytest_collection_finish(session):
    print(f"\nrunning {len(session.items)} tests", flush=True)


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
    result = "ok" if session.exitstatus == 0 else "FAILED"
    passed, failed = _counts["passed"], _counts["failed"]
    print(f"\ntest result: {result}. {passed} passed; {failed} failed; 0 ignored", flush=True)
