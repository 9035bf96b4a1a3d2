"""Main modules of each kind, and what the processes that they start import."""

import sys

import pytest

import multiproc as mp
from programs import run_command, run_program, run_script

BODY = """
import multiproc as mp

def f(queue, name):
    queue.put((name, __name__))

if __name__ == "__main__":
    for method in mp.get_all_start_methods():
        queue = mp.Queue()
        process = mp.get_context(method).Process(target=f, args=(queue, method))
        process.start()
        print(*queue.get(timeout=20))
        process.join()
        assert process.exitcode == 0
"""
IMPORTED = "spawn __mp_main__\nforkserver __mp_main__\n"
BY_VALUE = "spawn __main__\nforkserver __main__\n"


class TestMainModules:
    """Scenarios of CPython's ``test_multiprocessing_main_handling.py``."""

    def test_basic_script(self, tmp_path):
        assert run_script(tmp_path, BODY) == (IMPORTED, "", 0)

    def test_basic_script_no_suffix(self, tmp_path):
        (tmp_path / "program").write_text(BODY)
        assert run_command([sys.executable, str(tmp_path / "program")]) == (IMPORTED, "", 0)

    def test_ipython_workaround(self, tmp_path):
        pytest.importorskip("cloudpickle")
        program = f"""
import sys, types
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
exec({BODY!r}, main.__dict__)
"""
        assert run_script(tmp_path, program) == (BY_VALUE, "", 0)

    def test_command_option(self):
        pytest.importorskip("cloudpickle")
        assert run_program(BODY) == (BY_VALUE, "", 0)

    def test_standard_input(self):
        pytest.importorskip("cloudpickle")
        assert run_command([sys.executable, "-"], input=BODY) == (BY_VALUE, "", 0)

    def test_module_in_package(self, tmp_path):
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "module.py").write_text(BODY)
        ran = run_command([sys.executable, "-m", "package.module"], cwd=tmp_path)
        assert ran == (IMPORTED, "", 0)

    def test_package(self, tmp_path):
        pytest.importorskip("cloudpickle")
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "__main__.py").write_text(BODY)
        assert run_command([sys.executable, "-m", "package"], cwd=tmp_path) == (BY_VALUE, "", 0)

    def test_directory(self, tmp_path):
        pytest.importorskip("cloudpickle")
        (tmp_path / "__main__.py").write_text(BODY)
        assert run_command([sys.executable, str(tmp_path)]) == (BY_VALUE, "", 0)

    def test_zipfile_main_is_sent_by_value(self, tmp_path):
        import zipfile

        pytest.importorskip("cloudpickle")
        with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
            archive.writestr("__main__.py", BODY)
        assert run_command([sys.executable, str(tmp_path / "app.zip")]) == (BY_VALUE, "", 0)

    def test_function_of_a_zipped_module(self, tmp_path):
        import zipfile

        with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
            archive.writestr("__main__.py", "import job\njob.main()\n")
            archive.writestr("job.py", BODY.replace('if __name__ == "__main__":', "def main():"))
        expected = "spawn job\nforkserver job\n"
        assert run_command([sys.executable, str(tmp_path / "app.zip")]) == (expected, "", 0)

    @pytest.mark.parametrize("method", mp.get_all_start_methods())
    def test_missing_guard_is_explained(self, tmp_path, method):
        program = f"""
import multiproc as mp
process = mp.get_context({method!r}).Process(target=print)
process.start()
process.join()
print(process.exitcode)
"""
        out, err, code = run_script(tmp_path, program)
        assert (out, code) == ("1\n", 0)
        assert "RuntimeError" in err and "freeze_support()" in err and "if __name__ == '__main__':" in err

    def test_failing_main_module_is_printed(self, tmp_path, method):
        program = f"""
import multiproc as mp
if __name__ != "__main__":
    raise ValueError("in the main module")
process = mp.get_context({method!r}).Process(target=print)
process.start()
process.join()
print(process.exitcode)
"""
        out, err, code = run_script(tmp_path, program)
        assert (out, code) == ("1\n", 0)
        assert err.count("ValueError: in the main module") == 1

    def test_modules_of_the_folder_hide_nothing(self, tmp_path):
        for name in ["json", "pickle", "multiproc", "_child", "traceback"]:
            (tmp_path / f"{name}.py").write_text("raise SystemExit('hidden')")
        (tmp_path / "app").mkdir()
        assert run_script(tmp_path / "app", BODY, cwd=tmp_path) == (IMPORTED, "", 0)

    def test_path_and_folder_are_the_parents(self, tmp_path):
        (tmp_path / "extra").mkdir()
        (tmp_path / "extra" / "job.py").write_text(
            "import os, sys\ndef f(q): q.put((os.getcwd(), sys.argv, sys.flags.optimize))\n"
        )
        program = """
import os, sys
sys.path.append(sys.argv[1])
os.chdir("/")
import job
import multiproc as mp
if __name__ == "__main__":
    for method in mp.get_all_start_methods():
        queue = mp.Queue()
        process = mp.get_context(method).Process(target=job.f, args=(queue,))
        process.start()
        print(queue.get(timeout=20) == ("/", sys.argv, 1))
        process.join()
"""
        (tmp_path / "program.py").write_text(program)
        command = [sys.executable, "-O", str(tmp_path / "program.py"), str(tmp_path / "extra")]
        assert run_command(command) == ("True\nTrue\n", "", 0)
