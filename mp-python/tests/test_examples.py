"""Examples: the commands on the page ``docs/guide/python.md`` run, and their results are right."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guide" / "python.md"
EXAMPLES = ROOT / "examples" / "python"
BUILT = "mp-python/target/debug/rust_to_python"

pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="the examples are not here")


def run(text):
    """Runs the command of the page that contains this text, and returns the lines that it prints."""
    block = PAGE.read_text().partition("## Examples\n")[2].partition("```sh\n")[2].partition("```")[0]
    (command,) = [line for line in block.splitlines() if text in line]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if program := os.environ.get("RUST_TO_PYTHON"):
        # cargo would rebuild the program with the features that it needs alone.
        command = program if command.startswith("cargo run") else command.replace(BUILT, program)
    done = subprocess.run(
        command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def accuracy(lines):
    (found,) = [float(match[1]) for line in lines if (match := re.search(r"^accuracy ([\d.]+)", line))]
    return found


@pytest.fixture
def rust_program():
    """Skips a test if ``examples/python/rust_to_python`` is not built."""
    if "RUST_TO_PYTHON" not in os.environ and not (ROOT / BUILT).exists():
        pytest.skip("examples/python/rust_to_python is not built, by cargo build in its folder")


def test_python_dataset_loses_no_batch():
    pytest.importorskip("torch")
    lines = run("python_dataset.py")
    assert accuracy(lines) >= 0.9 and "on 297 digits that were not trained on" in lines[-2]
    assert lines[-1] == "30 batches in each epoch, although a worker was killed"


def test_rust_dataset_trains_torch_without_copies():
    pytest.importorskip("torch")
    pytest.importorskip("digits", reason="the extension of examples/python/rust_dataset is not installed")
    lines = run("train_torch.py")
    assert accuracy(lines) >= 0.95 and "800 generated images that were not trained on" in lines[-2]
    assert lines[-1] == "copies a batch: 0"


def test_rust_program_starts_python(rust_program):
    lines = run("cargo run")
    assert lines[0] == "images/0: [0.0, 2.0, 4.0, 6.0], at most Some(6.0)"
    assert lines[-1] == "the worker has ended"


def test_python_program_starts_rust(rust_program):
    lines = run("host.py")
    assert lines[0] == "images/0: [0.0, 0.5, 1.0, 1.5], at most 1.5"
    assert lines[-1] == "the worker has ended"


def test_programs_name_missing_modules(rust_program):
    program = os.environ.get("RUST_TO_PYTHON", ROOT / BUILT)
    environment = os.environ | {"PYTHON": "/no/python"}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith(
        "rust_to_python: /no/python can't import multiproc and numpy: pip install ./mp-python numpy"
    )
    host = EXAMPLES / "rust_to_python" / "host.py"
    for words, text in [([], "arguments are required: program"), (["/none"], "/none is not a program")]:
        done = subprocess.run([sys.executable, host, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and text in done.stderr
    # Without its packages.
    command = [sys.executable, "-I", "-S", host, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "No module named 'multiproc': pip install ./mp-python numpy\n"
