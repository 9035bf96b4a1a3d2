"""The pages of the manual: their programs run, and their lists are complete."""

import importlib
import multiprocessing
import operator
import pathlib
import re
import subprocess
import sys

import pytest

import multiproc

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
README = DOCS.parent / "mp-python" / "README.md"

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the manual is not here")


def programs(path):
    text = path.read_text() if path.exists() else ""
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def examples():
    for path in [DOCS / "guide" / "python.md", README]:
        for number, program in enumerate(programs(path)):
            yield pytest.param(program, id=f"{path.stem}-{number}")


@pytest.mark.parametrize("program", list(examples()))
def test_page_program_runs(program, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(program)
    ran = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=50)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""


def rows(section):
    text = (DOCS / "python-names.md").read_text()
    body = text.partition(f"## {section}\n")[2].partition("\n## ")[0]
    for line in body.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            for name in re.findall(r"`([^`]+)`", cells[0]):
                yield name, cells[1]


SECTIONS = ["multiprocessing, torch.multiprocessing", "Submodules", "Only here"]
# torch's, as of 2.15. It need not be installed.
TORCH = """ENV_VAR_PARALLEL_START ProcessContext ProcessExitedException ProcessRaisedException SpawnContext
get_all_sharing_strategies get_sharing_strategy init_reductions set_sharing_strategy spawn
start_processes""".split()


def test_names_page_has_every_name():
    listed = dict(rows("multiprocessing, torch.multiprocessing"))
    missing = {*multiprocessing.__all__, *TORCH} - {*listed}
    assert not missing


# Submodules of both packages, and submodules of this package alone.
SUBMODULES = """connection context managers pool process queues reduction shared_memory sharedctypes spawn
synchronize""".split()
MORE = "arrays collate data_loader typed".split()


def public_names(package, name):
    module = importlib.import_module(f"{package}.{name}")
    own = (n for n, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    return {n for n in (getattr(module, "__all__", None) or own) if not n.startswith("_")}


@pytest.mark.parametrize(
    ["package", "name"],
    [("multiprocessing", name) for name in SUBMODULES]
    + [("multiproc", name) for name in SUBMODULES + MORE],
)
def test_names_page_has_names_of_submodule(package, name):
    listed = {name for section in SECTIONS for name, _ in rows(section)}
    # "synchronize" stands for its classes. Names of `multiproc` itself needn't be repeated.
    names = {n for n in public_names(package, name) if not {name, f"{name}.{n}"} & listed}
    assert not (names if package == "multiprocessing" else names - listed)


@pytest.mark.parametrize("section", SECTIONS[:2])
def test_names_page_status_matches_modules(section):
    wrong = []
    for name, here in rows(section):
        try:
            module, _, attribute = f"multiproc.{name}".rpartition(".")
            __import__(module)
            present = hasattr(sys.modules[module], attribute)
        except ImportError:
            present = False
        if present != (here in ("same", "better", "differs")):
            wrong.append((name, here))
    assert not wrong


def test_only_here_lists_exactly_our_names():
    listed = {name for name, _ in rows("Only here")}
    assert {*multiproc.__all__} - {*multiprocessing.__all__, *TORCH} == {n for n in listed if "." not in n}
    for name in listed:
        operator.attrgetter(name)(multiproc)
