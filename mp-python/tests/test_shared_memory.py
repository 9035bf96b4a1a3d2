"""Shared memory by name: CPython's scenarios, both packages' classes on one name, kills, bad names."""

import multiprocessing.shared_memory
import os
import pickle
import signal
import subprocess
import sys

import pytest

import multiproc as mp
from multiproc import shared_memory

LONG = 20


@pytest.fixture
def shm():
    """Function that creates memory whose name is removed after the test."""
    made = []

    def create(*args, size=512, **kwargs):
        made.append(shared_memory.SharedMemory(*args, create=True, size=size, **kwargs))
        return made[-1]

    yield create
    unlink(*made)


@pytest.fixture
def shareable_list():
    """Function that creates a list whose name is removed after the test."""
    made = []

    def create(*args, **kwargs):
        made.append(shared_memory.ShareableList(*args, **kwargs))
        return made[-1]

    yield create
    unlink(*(made_list.shm for made_list in made))


def unlink(*made):
    for memory in made:
        memory.close()
        try:
            memory.unlink()
        except FileNotFoundError:
            pass


def name_of(text):
    return f"test_{text}_{os.getpid()}"


def write(memory, data):
    if isinstance(memory, str):
        memory = shared_memory.SharedMemory(memory)
    memory.buf[: len(data)] = data
    memory.close()


def run(ctx, target, *args):
    process = ctx.Process(target=target, args=args, daemon=True)
    process.start()
    process.join(LONG)
    assert process.exitcode == 0


class TestCPythonSharedMemory:
    def test_shared_memory_basics(self, shm):
        name = name_of("basics")
        sms = shm(name)
        assert (sms.name, sms.size, len(sms.buf), sms._name) == (name, 512, 512, "/" + name)
        assert repr(sms) == f"SharedMemory('{name}', size=512)"
        assert bytes(sms.buf) == bytes(512)
        sms.buf[0] = 42
        also = shared_memory.SharedMemory(name)
        assert also.buf[0] == 42
        also.close()
        assert also.buf is None
        same = shared_memory.SharedMemory(name, size=20 * sms.size)
        assert same.size == sms.size
        same.close()
        with pytest.raises(ValueError):
            shared_memory.SharedMemory(create=False)
        with pytest.raises(FileExistsError, match=name):
            shared_memory.SharedMemory(name, create=True, size=512)
        with pytest.raises(FileNotFoundError) as raised:
            shared_memory.SharedMemory(name_of("missing"))
        assert raised.value.errno == 2 and raised.value.filename.endswith(name_of("missing"))
        also = shared_memory.SharedMemory(name)
        also.unlink()
        also.close()
        assert sms.buf[0] == 42
        with pytest.raises(FileNotFoundError):
            sms.unlink()

    def test_shared_memory_recreate(self, shm):
        first = shm(name_of("again"), size=10)
        first.buf[0] = 1
        first.unlink()
        second = shm(name_of("again"), size=10)
        assert second.buf[0] == 0 and first.buf[0] == 1

    @pytest.mark.parametrize("size", [{"size": -1}, {"size": 0}, {}])
    def test_invalid_shared_memory_cration(self, size):
        with pytest.raises(ValueError):
            shared_memory.SharedMemory(create=True, **size)

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_shared_memory_pickle_unpickle(self, shm, protocol):
        sms = shm()
        sms.buf[0:6] = b"pickle"
        sms2 = pickle.loads(pickle.dumps(sms, protocol))
        assert sms2.name == sms.name and bytes(sms2.buf[0:6]) == b"pickle"
        sms2.buf[0:6] = b"oldval"
        assert bytes(sms.buf[0:6]) == b"oldval"
        sms2.close()

    def test_shared_memory_pickle_unpickle_dead_object(self, shm):
        sms = shm()
        pickled = pickle.dumps(sms)
        sms.close()
        sms.unlink()
        with pytest.raises(FileNotFoundError):
            pickle.loads(pickled)

    def test_shared_memory_across_processes(self, ctx, shm):
        sms = shm()
        run(ctx, write, sms.name, b"howdy")
        assert bytes(sms.buf[:5]) == b"howdy"
        run(ctx, write, sms, b"HELLO")
        assert bytes(sms.buf[:5]) == b"HELLO"

    def test_shared_memory_ShareableList_basics(self, shareable_list):
        sl = shareable_list(["howdy", b"HoWdY", -273.154, 100, None, True, 42])
        assert repr(sl) == f"ShareableList({list(sl)}, name={sl.shm.name!r})"
        for bad in (7, -8):
            with pytest.raises(IndexError):
                sl[bad]
            with pytest.raises(IndexError):
                sl[bad] = 2
        assert sl.format == "8s8sdqxxxxxx?xxxxxxxx?q"
        assert len(sl) == 7
        with pytest.raises(ValueError, match="not in this container"):
            sl.index("100")
        assert (sl.index(100), sl[0], sl[-2]) == (3, "howdy", True)
        assert tuple(sl) == ("howdy", b"HoWdY", -273.154, 100, None, True, 42)
        sl[3] = 42
        sl[4] = "some"
        assert (sl[3], sl[4], sl.format) == (42, "some", "8s8sdq8sxxxxxxx?q")
        for i, value in ((4, "far too many"), (0, "encodées"), (1, b"123456789")):
            with pytest.raises(ValueError, match="exceeds available storage"):
                sl[i] = value
        sl[0] = "encodés"
        assert (sl[0], sl[1], sl[4]) == ("encodés", b"HoWdY", "some")
        assert (sl.count(42), sl.count(b"HoWdY"), sl.count(b"adios")) == (2, 1, 0)
        sl[0] = "howdy"
        copy = shareable_list(sl, name=name_of("copy"))
        assert (copy.shm.name, list(copy), copy.format) == (name_of("copy"), list(sl), sl.format)
        copy[-1] = 77
        assert (copy[-1], sl[-1]) == (77, 42)
        tethered = shared_memory.ShareableList(name=sl.shm.name)
        tethered[-1] = 880
        assert sl[-1] == 880
        tethered.shm.close()
        empty = shareable_list()
        assert (len(empty), empty.format, empty.count("any")) == (0, "", 0)
        with pytest.raises(ValueError):
            empty.index(None)
        with pytest.raises(TypeError):
            shareable_list([object()])

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_shared_memory_ShareableList_pickling(self, shareable_list, protocol):
        sl = shareable_list(range(10))
        other = pickle.loads(pickle.dumps(sl, protocol))
        assert isinstance(other, shared_memory.ShareableList) and other[-1] == 9
        other[4] = "changed"
        sl[3] = "newval"
        assert (sl[4], other[3]) == ("changed", "newval")
        other.shm.close()

    def test_shared_memory_ShareableList_pickling_dead_object(self, shareable_list):
        sl = shareable_list(range(10))
        pickled = pickle.dumps(sl)
        sl.shm.close()
        sl.shm.unlink()
        with pytest.raises(FileNotFoundError):
            pickle.loads(pickled)


class TestCompatibility:
    def test_multiprocessing_opens_our_memory(self, shm):
        ours = shm(size=5000)
        code = (
            "import sys; from multiprocessing import shared_memory, resource_tracker as tracker\n"
            "memory = shared_memory.SharedMemory(sys.argv[1])\n"
            "tracker.unregister(memory._name, 'shared_memory')\n"
            "assert memory.size == 5000; memory.buf[:3] = b'abc'; memory.close()"
        )
        subprocess.run([sys.executable, "-c", code, ours.name], check=True, timeout=LONG)
        assert bytes(ours.buf[:3]) == b"abc"

    def test_lists_have_the_same_bytes(self, shareable_list):
        values = ["text", b"bytes", 1.5, -7, True, None, "", "x" * 100]
        ours = shareable_list(values)
        theirs = multiprocessing.shared_memory.ShareableList(values)
        try:
            size = min(ours.shm.size, theirs.shm.size)
            assert bytes(ours.shm.buf[:size]) == bytes(theirs.shm.buf[:size])
            opened = shared_memory.ShareableList(name=theirs.shm.name)
            assert list(opened) == values
            opened.shm.close()
        finally:
            theirs.shm.close()
            theirs.shm.unlink()

    def test_name_survives_exit_and_kill_of_readers(self, ctx, shm):
        ours = shm()
        for target in (write, write_and_exit):
            process = ctx.Process(target=target, args=(ours.name, b"x"), daemon=True)
            process.start()
            process.join(LONG)
        process = ctx.Process(target=write_and_die, args=(ours.name, b"y"), daemon=True)
        process.start()
        process.join(LONG)
        assert process.exitcode == -signal.SIGKILL
        assert bytes(shared_memory.SharedMemory(ours.name).buf[:1]) == b"y"

    def test_name_survives_a_kill_of_its_maker(self, ctx):
        name = name_of("maker")
        process = ctx.Process(target=create_and_die, args=(name,), daemon=True)
        process.start()
        process.join(LONG)
        memory = shared_memory.SharedMemory(name)
        memory.unlink()
        assert bytes(memory.buf[:1]) == b"z"

    def test_no_resource_tracker_is_started(self):
        code = (
            "from multiprocessing import resource_tracker as tracker\n"
            "from multiproc.shared_memory import SharedMemory\n"
            "memory = SharedMemory(create=True, size=9); memory.unlink()\n"
            "assert tracker._resource_tracker._fd is None"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=LONG)


def write_and_exit(name, data):
    write(name, data)
    sys.exit(3)


def create_and_die(name):
    shared_memory.SharedMemory(name, create=True, size=10).buf[:1] = b"z"
    os.kill(os.getpid(), signal.SIGKILL)


def write_and_die(name, data):
    write(name, data)
    os.kill(os.getpid(), signal.SIGKILL)


class TestViews:
    def test_close_with_views_is_refused(self, shm):
        sms = shm()
        view = sms.buf[3:6]
        part = memoryview(sms.buf)
        with pytest.raises(BufferError):
            sms.close()
        sms.buf[3] = 5
        assert view[0] == 5
        view.release()
        part.release()
        sms.close()
        sms.close()
        assert sms.buf is None

    def test_array_outlives_the_object(self, shm):
        numpy = pytest.importorskip("numpy")
        sms = shared_memory.SharedMemory(create=True, size=80)
        array = numpy.frombuffer(sms.buf)
        sms.unlink()
        del sms
        array[:] = 2.5
        assert array.sum() == 25

    def test_forked_copy_shares_the_memory(self, shm):
        sms = shm()
        pid = os.fork()
        if pid == 0:
            sms.buf[0] = 33
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert sms.buf[0] == 33


@pytest.mark.parametrize("name", ["a/b", "", ".", "..", "x" * 256, "a\0b"])
def test_invalid_names_are_refused(name):
    for create in (True, False):
        with pytest.raises(ValueError):
            shared_memory.SharedMemory(name, create=create, size=10)


def test_memory_larger_than_the_device_is_refused():
    with pytest.raises((MemoryError, OSError)):
        shared_memory.SharedMemory(create=True, size=1 << 50)


def test_shared_memory_in_queues(ctx, shm):
    queue = ctx.Queue()
    sms = shm()
    queue.put([sms])
    (other,) = queue.get(timeout=LONG)
    other.buf[1] = 4
    assert sms.buf[1] == 4
    other.close()


def test_package_has_the_submodule():
    assert mp.shared_memory.SharedMemory is shared_memory.SharedMemory


def test_sharing_strategy_raises_as_in_torch():
    before = mp.get_sharing_strategy()
    assert before in mp.get_all_sharing_strategies()
    with pytest.raises(AssertionError, match="paper"):
        mp.set_sharing_strategy("paper")
    assert mp.get_sharing_strategy() == before
