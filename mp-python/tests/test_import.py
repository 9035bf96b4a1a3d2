"""Imports, copies of the package, and flags of the interpreter."""

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import multiproc as mp
from multiproc import connection
from programs import run_command, run_program, run_script


class TestImport:
    def test_import_starts_nothing(self):
        program = """
import os, sys
before = set(os.listdir("/proc/self/fd"))
import multiproc as mp
assert len(os.listdir("/proc/self/task")) == 1
assert set(os.listdir("/proc/self/fd")) == before
maps = open("/proc/self/maps").read()
assert "memfd:" not in maps and "/dev/shm" not in maps, maps
heavy = {"numpy", "torch", "cloudpickle", "logging", "inspect", "dataclasses", "multiprocessing.pool"}
assert not heavy & set(sys.modules)
queue = mp.Queue()
queue.put(0)
assert "memfd:" in open("/proc/self/maps").read()
"""
        assert run_program(program) == ("", "", 0)

    def test_version_is_the_installed_packages(self):
        assert mp.__version__ == importlib.metadata.version("multiproc-rs")

    def test_import_is_fast(self, tmp_path):
        program = """
import resource
def time():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
before = time()
import multiproc
print(time() - before)
"""
        # Compiled modules are stored, as an installer does.
        environment = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # Other programs on this machine can make single runs slower.
        runs = (float(run_program(program, env=environment)[0]) for _ in range(20))
        assert any(seconds <= 0.030 for seconds in runs)

    def test_subinterpreters_are_refused(self):
        program = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import multiproc
code = '''
try:
    import multiproc
except ImportError as error:
    print(error)
'''
interpreter = interpreters.create()
interpreters.run_string(interpreter, code)
interpreters.destroy(interpreter)
queue = multiproc.Queue()
queue.put("main")
print(queue.get())
"""
        out, err, code = run_program(program)
        lines = out.splitlines()
        assert (err, code, lines[-1]) == ("", 0, "main")
        assert "subinterpreters" in lines[0] and len(lines) == 2


class TestCopies:
    def two_copies(self, tmp_path):
        """Returns the begin of a program in which `other` is a second copy of the library."""
        library = pathlib.Path(mp._multiproc.__file__)
        shutil.copy(library, tmp_path / library.name)
        return f"""
import multiproc as mp, sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
path = {str(tmp_path / library.name)!r}
loader = ExtensionFileLoader("other._multiproc", path)
other = module_from_spec(spec_from_loader("other._multiproc", loader, origin=path))
loader.exec_module(other)
"""

    def test_objects_of_a_second_copy_are_refused(self, tmp_path):
        program = self.two_copies(tmp_path) + """
mine, theirs = mp.Queue(), other.Queue()
for queue in [mine, theirs]:
    queue.put([1])
    assert queue.get() == [1]
for one, two in [(mine, theirs), (theirs, mine), (mine, other.TypedQueue("test/item/1(x:i64)"))]:
    try:
        one.put(two)
    except RuntimeError as error:
        print(error)
process = mp.Process(target=print, args=(theirs,))
try:
    process.start()
except RuntimeError as error:
    print(error)
holder = mp.TypedQueue("test/holder/1(queue:queue<test/item/1(x:i64)>)")
try:
    holder.put({"queue": other.TypedQueue("test/item/1(x:i64)")})
except TypeError as error:
    print(error)
"""
        out, err, code = run_program(program)
        assert (err, code) == ("", 0)
        lines = out.splitlines()
        assert [("belongs to the processes of one program" in line) for line in lines] == [True] * 4 + [False]
        assert "message.queue must be queue<test/item/1(x:i64)>, not TypedQueue" in lines[4]
        for line in lines:
            assert "in the modules multiproc._multiproc and other._multiproc: an object of one copy" in line

    def test_arrays_of_a_second_copy_are_copied(self, tmp_path):
        program = self.two_copies(tmp_path) + """
import numpy
array = numpy.frombuffer(other.Buffer(80_000), dtype="int64")
array[:] = 7
queue = mp.Queue()
queue.put(array)
array[:] = 8
assert (queue.get() == 7).all()
"""
        assert run_program(program) == ("", "", 0)

    def test_second_copy_cannot_accept_an_invitation(self, tmp_path):
        program = self.two_copies(tmp_path) + """
first, second = (copy.connect(sys.argv[1], None, True) for copy in (mp._multiproc, other))
queue = first.accept_invitation(timeout=20)
try:
    second.accept_invitation(timeout=20)
except RuntimeError as error:
    print(error)
queue.put("first")
"""
        with connection.Listener(str(tmp_path / "socket"), allow_pickle=True) as listener:
            command = [sys.executable, "-c", program, listener.address]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            queue = mp.Queue()
            with listener.accept() as first, listener.accept() as second:
                invitations = [first.invite(queue), second.invite(queue)]
                assert [invitation.wait(20) for invitation in invitations] == [True, False]
                assert queue.get(timeout=20) == "first"
            out, _ = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "another copy of this library in this process is a member of the program that invites" in out
        assert "in the modules multiproc._multiproc and other._multiproc: one of them" in out

    def test_copy_cannot_join_its_own_program(self, tmp_path):
        program = self.two_copies(tmp_path) + """
import threading
from multiproc import connection
queue = mp.Queue()
with connection.Listener(sys.argv[1], allow_pickle=True) as listener:
    second = []
    thread = threading.Thread(target=lambda: second.append(other.connect(sys.argv[1], None, True)))
    thread.start()
    with listener.accept() as first:
        thread.join(20)
        invitation = first.invite(queue)
        try:
            second[0].accept_invitation(timeout=20)
        except RuntimeError as error:
            print(error)
        assert not invitation.wait(20)
queue.put(1)
assert queue.get() == 1
"""
        out, err, code = run_command([sys.executable, "-c", program, str(tmp_path / "socket")])
        assert (err, code) == ("", 0) and "another copy of this library in this process" in out

    def test_second_copy_cannot_become_the_guest(self, tmp_path):
        program = self.two_copies(tmp_path) + """
queue = mp.child()["results"]
try:
    other.child()
except RuntimeError as error:
    queue.put({"text": str(error)})
"""
        results = mp.TypedQueue("test/text/1(text:str)")
        schema = "test/args/1(results:queue<test/text/1(text:str)>)"
        guest = mp.start_guest([sys.executable, "-c", program], {"results": results}, schema)
        text = results.get(timeout=20)["text"]
        assert guest.wait(20) == 0
        assert "in the modules multiproc._multiproc and other._multiproc: one of them" in text

    def test_replaced_library_is_a_clear_error(self, tmp_path, method):
        package = pathlib.Path(mp.__file__).parent
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, tmp_path / "site" / "multiproc", ignore=ignore)
        library = tmp_path / "site" / "multiproc" / pathlib.Path(mp._multiproc.__file__).name
        program = f"""
import multiproc as mp, os, sys
assert mp.__file__.startswith({str(tmp_path)!r})
def f():
    print("has run")
if __name__ == "__main__":
    library = {str(library)!r}
    data = bytearray(open(library, "rb").read())
    # The note of the build id: sizes, type, name, id.
    at = data.index(b"\\x03\\0\\0\\0GNU\\0") + 8
    data[at] ^= 1
    with open(library + ".new", "wb") as file:
        file.write(data)
    os.replace(library + ".new", library)
    try:
        process = mp.get_context({method!r}).Process(target=f)
        process.start()
        process.join()
        sys.exit(process.exitcode)
    except RuntimeError as error:
        sys.exit(str(error))
"""
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
        out, err, code = run_script(tmp_path, program, env=environment)
        assert out == "" and code not in (0, None)
        assert "another build" in err or "build id" in err or "build-id" in err


FLAGS = """
import sys
sys.path.insert(0, SITE)
import multiproc as mp

def numbers():
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if not name.startswith("_")}
    return {name: value for name, value in flags.items() if isinstance(value, int)}

def f(queue):
    queue.put((numbers(), sys.warnoptions, sys._xoptions, sys.prefix, sys.path))

if __name__ == "__main__":
    for method in mp.get_all_start_methods():
        queue = mp.Queue()
        process = mp.get_context(method).Process(target=f, args=(queue,))
        process.start()
        flags, warnoptions, xoptions, prefix, path = queue.get(timeout=20)
        process.join()
        assert process.exitcode == 0
        assert flags == numbers(), (flags, numbers())
        assert (warnoptions, xoptions, prefix) == (sys.warnoptions, sys._xoptions, sys.prefix)
        # The main module has changed its path there, too.
        assert [*dict.fromkeys(path)] == [*dict.fromkeys(sys.path)]
    print(sys.flags.optimize)
"""


class TestFlags:
    @pytest.mark.parametrize(
        "flags",
        [
            ["-O"],
            ["-OO", "-B"],
            ["-I"],
            ["-S"],
            ["-I", "-S", "-O"],
            ["-E", "-s"],
            ["-P"],
            ["-X", "dev"],
            ["-X", "utf8=1", "-W", "error"],
            ["-X", "dev", "-W", "error"],
        ],
        ids=" ".join,
    )
    def test_processes_have_the_flags(self, tmp_path, flags):
        program = FLAGS.replace("SITE", repr(str(pathlib.Path(mp.__file__).parents[1])))
        optimize = 2 if "-OO" in flags else int("-O" in flags)
        assert run_script(tmp_path, program, *flags) == (f"{optimize}\n", "", 0)

    def test_normal_exit_warns_of_nothing(self, tmp_path):
        program = """
import multiproc as mp, sys
def f(index, queue):
    queue.put(bytearray(100_000))
if __name__ == "__main__":
    queue = mp.Queue()
    for method in mp.get_all_start_methods():
        mp.start_processes(f, args=(queue,), nprocs=2, start_method=method)
        process = mp.get_context(method).Process(target=f, args=(0, queue))
        process.start()
        process.join()
        for _ in range(3):
            queue.get(timeout=20)
    print("ended")
"""
        flags = ["-X", "dev", "-W", "error"]
        assert run_script(tmp_path, program, *flags) == ("ended\n", "", 0)

    def test_processes_are_in_the_virtual_environment(self, tmp_path):
        import venv

        venv.EnvBuilder(symlinks=True, with_pip=False).create(tmp_path / "env")
        program = FLAGS.replace("SITE", repr(str(pathlib.Path(mp.__file__).parents[1])))
        program = program.replace("print(sys.flags.optimize)", "print(sys.prefix)")
        (tmp_path / "program.py").write_text(program)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [tmp_path / "env" / "bin" / "python", tmp_path / "program.py"]
        assert run_command(command, env=environment) == (f"{tmp_path / 'env'}\n", "", 0)
