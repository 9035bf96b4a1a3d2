"""Types of the public names, as a program with annotations sees them."""

import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).with_name("typed_program.py")


def check(path, cache):
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, path]
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=100)
    return ran.stdout.splitlines(), ran.stderr


def test_typed_program_passes_strict_mypy(tmp_path):
    pytest.importorskip("mypy")
    lines, errors = check(PROGRAM, tmp_path)
    assert errors == "" and lines == ["Success: no issues found in 1 source file"]
    # The check can fail.
    text = PROGRAM.read_text()
    assert text.count("jobs.put(3)") == 1
    wrong = tmp_path / "wrong.py"
    wrong.write_text(text.replace("jobs.put(3)", "jobs.put('3')"))
    lines, errors = check(wrong, tmp_path)
    assert errors == "" and len(lines) == 2 and 'Argument 1 to "put"' in lines[0], lines
