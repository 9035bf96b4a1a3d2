"""The table ``scenarios.tsv``: each test of CPython and torch, and its counterpart in these tests."""

import ast
import collections
import csv
import importlib.util
import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).parent
PAGE = TESTS.parents[1] / "docs" / "reference" / "python.md"
OUTCOMES = ["passes", "differs", "not offered"]


def rows():
    with open(TESTS / "scenarios.tsv", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def find_tests(path, begin=""):
    """Returns the names of the tests of a file: ``begin``, and those of classes with the class."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        for part in [node] if isinstance(node, ast.FunctionDef) else getattr(node, "body", []):
            if isinstance(part, ast.FunctionDef) and part.name.startswith("test"):
                found.add(begin + ("" if part is node else f"{node.name}::") + part.name)
    return found


def test_each_row_has_an_outcome_and_a_reason():
    for row in rows():
        where = row["where or reason"]
        assert None not in row and row["outcome"] in OUTCOMES, row
        assert re.fullmatch(
            {"passes": r"test_\w+\.py::[\w:]+", "differs": r"test_\w+\.py::[\w:]+: .+", "not offered": ".+"}[
                row["outcome"]
            ],
            where,
        ), row
    names = collections.Counter((row["suite"], row["class"], row["scenario"]) for row in rows())
    assert [name for name, count in names.items() if count > 1] == []


def test_each_named_test_exists():
    known = set().union(*(find_tests(path, f"{path.name}::") for path in TESTS.glob("test_*.py")))
    named = {row["where or reason"].split(": ")[0] for row in rows() if row["outcome"] != "not offered"}
    assert named - known == set()


def test_each_scenario_of_this_cpython_has_a_row():
    try:
        spec = importlib.util.find_spec("test._test_multiprocessing")
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        pytest.skip("this interpreter comes without its tests")
    known = {f"{row['class']}::{row['scenario']}" for row in rows() if row["suite"] == "cpython"}
    assert find_tests(pathlib.Path(spec.origin)) - known == set()


def test_page_has_the_counts():
    counts = collections.Counter((row["suite"], row["outcome"]) for row in rows())
    for suite in dict.fromkeys(row["suite"] for row in rows()):
        numbers = [str(counts[suite, outcome]) for outcome in OUTCOMES]
        assert f"`{suite}` | {' | '.join(numbers)} |" in PAGE.read_text(), (suite, numbers)
