"""``DataLoader``: programs with it, interrupts, forks, threads, and pinned memory."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

import multiproc as mp  # noqa: E402
from loader_tasks import ErrorDataset, ended, run_program  # noqa: E402


def test_worker_with_a_closed_stdout_exits_silently():
    result = run_program(
        """
        import sys
        import multiproc as mp
        def close_output(_):
            sys.stdout.close()
        if __name__ == "__main__":
            loader = mp.DataLoader(range(4), 2, num_workers=2, worker_init_fn=close_output)
            print(sum(len(batch) for batch in loader))
        """
    )
    assert (result.stdout, result.stderr) == ("4\n", "")


def test_program_without_torch_gets_arrays():
    result = run_program(
        """
        import sys
        import numpy as np
        import multiproc as mp
        class Squares:
            def __len__(self): return 10
            def __getitem__(self, i): return np.full(3, i * i, dtype=np.float32), i, {"name": str(i)}
        def batches(workers):
            return list(mp.DataLoader(Squares(), 4, shuffle=True, seed=3, num_workers=workers))
        if __name__ == "__main__":
            for (x, i, d), (y, j, e) in zip(batches(0), batches(2), strict=True):
                assert type(x) is type(y) is np.ndarray and x.dtype == np.float32
                assert (x == y).all() and (i == j).all() and d == e
                assert x[:, 0].tolist() == (i * i).tolist() and d["name"] == [str(n) for n in i]
            assert "torch" not in sys.modules
            print("done")
        """
    )
    assert result.stdout == "done\n", result.stderr


def test_interrupt_ends_next(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import multiproc as mp, os, time
        class Sleep:
            def __len__(self): return 9
            def __getitem__(self, i):
                if i: time.sleep(60)
                return i
        if __name__ == "__main__":
            iterator = iter(mp.DataLoader(Sleep(), num_workers=2))
            next(iterator)
            try:
                print("begun", flush=True)
                next(iterator)
            except KeyboardInterrupt:
                print("interrupted")
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(mp.__file__))}
    process = subprocess.Popen(
        [sys.executable, str(program)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "begun\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == ("interrupted\n", 0), err
    assert "KeyboardInterrupt" not in err


def test_program_without_guard_gets_a_clear_error(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import multiproc\nprint(list(multiproc.DataLoader(range(4), num_workers=1)))\n")
    result = run_program([sys.executable, str(program)])
    if result.returncode == 0:
        assert result.stdout.count("tensor") in (0, 4)
    else:
        assert "__main__" in result.stderr


def test_killed_trainer_leaves_no_workers(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import multiproc as mp, os, signal
        if __name__ == "__main__":
            loader = mp.DataLoader(range(100), num_workers=2)
            iterator = iter(loader)
            next(iterator)
            print(*loader.pids(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """)
    )
    result = run_program([sys.executable, str(program)])
    assert result.returncode == -signal.SIGKILL
    pids = result.stdout.split()
    assert len(pids) == 2 and all(map(ended, pids))


def test_forked_child_uses_a_loader_of_its_own():
    loader = mp.DataLoader(range(10), 5, num_workers=1)
    assert len(list(loader)) == 2
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            list(loader)
            text = "loaded"
        except BaseException as error:
            text = type(error).__name__
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        assert file.read() in (b"RuntimeError", b"loaded")
    os.waitpid(pid, 0)
    assert len(list(loader)) == 2


def test_pin_memory_without_accelerator_warns():
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.warns(UserWarning, match="pin_memory"):
        assert len(list(mp.DataLoader(range(4), num_workers=1, pin_memory=True))) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_pin_memory_pins_ahead_in_order(monkeypatch, workers):
    from multiproc import _loader_sources

    threads = set()

    def pin(batch):
        threads.add(threading.current_thread())
        return None if batch is None else batch + 1000

    monkeypatch.setattr(_loader_sources, "_pin", pin)
    monkeypatch.setattr(mp.DataLoader, "_pins", lambda self: True)
    loader = mp.DataLoader(range(20), 2, num_workers=workers)
    assert torch.cat(list(loader)).tolist() == list(range(1000, 1020))
    assert threading.current_thread() not in threads
    iterator = iter(loader)
    next(iterator)
    assert loader.state_dict()["batches"] == 1
    del iterator
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    with pytest.raises(ValueError, match="bad sample"):
        list(mp.DataLoader(ErrorDataset(4), num_workers=workers))


def test_next_from_threads_gives_each_batch_once():
    iterator = iter(mp.DataLoader(range(200), 2, num_workers=2))
    found = []

    def take():
        for batch in iterator:
            found.extend(batch.tolist())

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(200))
