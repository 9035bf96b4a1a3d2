"""Pool: kills, time-outs, and the end of pools and programs."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import multiproc as mp
from multiproc.pool import PoolError, TaskTimeout, WorkerLost
from pool_tasks import (
    LONG,
    fail,
    interrupt,
    kill_five,
    kill_me,
    kill_once,
    leave,
    signalled,
    sqr,
    wait_until,
    worker,
)
from programs import run_script


class TestKills:
    def test_killed_worker_names_item_and_signal(self, pool):
        results = [pool.apply_async(sqr, (i, 0.01)) for i in range(20)]
        with pytest.raises(WorkerLost) as caught:
            pool.map(kill_five, range(10), chunksize=4)
        lost = caught.value
        assert (lost.signal, lost.exitcode, lost.index, lost.task) == (9, -9, 5, "kill_five")
        assert lost.chunk == range(4, 8) and lost.pid > 0
        assert "item 5 of kill_five" in str(lost) and str(lost.pid) in str(lost) and "SIGKILL" in str(lost)
        copy = pickle.loads(pickle.dumps(lost))
        assert (str(copy), copy.signal, copy.index) == (str(lost), 9, 5)
        # The other calls are not affected.
        assert [result.get() for result in results] == [i * i for i in range(20)]

    def test_killed_worker_costs_imap_one_item(self, pool):
        results, got = pool.imap(kill_five, range(10)), []
        for _ in range(10):
            try:
                got.append(next(results))
            except WorkerLost as lost:
                got.append((lost.index, lost.signal))
        assert got == [0, 1, 2, 3, 4, (5, 9), 6, 7, 8, 9]
        with pytest.raises(StopIteration):
            next(results)

    def test_killed_worker_reaches_error_callback(self, pool):
        calls = []
        pool.apply_async(kill_me, callback=calls.append, error_callback=calls.append).wait(30)
        assert isinstance(calls[0], WorkerLost) and calls[0].index is None

    def test_retries_repeat_lost_task(self, pool, tmp_path):
        assert pool.apply(kill_once, (str(tmp_path / "a"),), retries=2) in pool.pids()
        paths = [str(tmp_path / f"{i}") for i in range(3)]
        assert len(pool.map(kill_once, paths, retries=2)) == 3
        with pytest.raises(WorkerLost) as caught:
            pool.apply(kill_me, retries=2)
        assert caught.value.attempts == 3 and "attempt 3" in str(caught.value)

    def test_calls_continue_after_idle_workers_die(self, pool):
        for pid in pool.pids():
            os.kill(pid, signal.SIGKILL)
        assert pool.map(sqr, range(100)) == [x * x for x in range(100)]

    def test_kills_under_load_lose_nothing(self):
        with mp.get_context("forkserver").Pool(2, retries=100) as pool:
            results = pool.map_async(sqr, [3] * 300, chunksize=3)
            for _ in range(10):
                for pid in pool.pids()[:1]:
                    _kill(pid)
            assert results.get(timeout=50) == [9] * 300

    @pytest.mark.parametrize("function, text", [(kill_me, "SIGKILL"), (fail, "no device")])
    def test_failed_initializer_breaks_pool(self, ctx, function, text):
        with ctx.Pool(1, function) as pool, pytest.raises(PoolError, match=text):
            pool.apply_async(sqr, (1,)).get(timeout=50)

    def test_slow_initializer_is_ended(self):
        with mp.get_context("forkserver").Pool(1, time.sleep, (LONG,), start_timeout=0.05) as pool:
            with pytest.raises(PoolError, match="not ready within"):
                pool.apply_async(sqr, (1,)).get(timeout=50)

    def test_exit_in_task_is_lost_worker(self, one):
        for code, exitcode in [(3, 3), (None, 0), ("text", 1)]:
            with pytest.raises(WorkerLost) as caught:
                one.apply(leave, (code,))
            assert caught.value.exitcode == exitcode and caught.value.signal is None

    def test_parent_killed_workers_end(self, tmp_path):
        program = run_program(
            """
            import os, signal, sys, time
            import multiproc as mp
            if __name__ == "__main__":
                pool = mp.Pool(2)
                pool.apply(int)
                pool.map_async(time.sleep, [600] * 4, chunksize=1)
                print(*pool.pids(), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            """,
            tmp_path,
        )
        assert program.returncode == -signal.SIGKILL
        pids = program.stdout.split()
        assert len(pids) == 2
        wait_until(lambda: not any(is_alive(pid) for pid in pids))


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def run_program(text, tmp_path, **options):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=50, cwd=tmp_path, **options
    )


class TestTimeouts:
    def test_timeout_replaces_worker(self, one):
        before = one.apply(worker)
        with pytest.raises(TaskTimeout) as caught:
            one.apply(time.sleep, (LONG,), timeout=0.05)
        assert caught.value.pid == before and isinstance(caught.value, mp.TimeoutError)
        assert one.apply(worker) != before

    def test_timeout_names_item(self, pool):
        with pytest.raises(TaskTimeout) as caught:
            pool.map(time.sleep, [0, 0, LONG, 0], timeout=0.2)
        assert (caught.value.index, caught.value.task) == (2, "sleep")

    def test_timeout_of_pool_is_default(self):
        with mp.get_context("forkserver").Pool(1, timeout=0.05) as pool, pytest.raises(TaskTimeout):
            pool.apply(time.sleep, (LONG,))

    def test_max_waiting_blocks_calls(self):
        with mp.get_context("forkserver").Pool(1, max_waiting=2) as pool:
            pool.apply(worker)
            begin = time.monotonic()
            results = [pool.apply_async(sqr, (i, 0.1)) for i in range(4)]
            assert time.monotonic() - begin > 0.15
            assert [result.get() for result in results] == [0, 1, 4, 9]

    def test_next_times_out(self, one):
        results = one.imap(time.sleep, [0.2])
        with pytest.raises(mp.TimeoutError):
            results.next(0.01)
        assert results.next(30) is None


class TestEnds:
    def test_interrupted_map_raises_soon(self, one):
        pids = one.pids()
        ends = []

        def later():
            ends.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.2, later)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            one.map(time.sleep, [LONG])
        assert time.monotonic() - ends[0] < 0.5
        assert one.pids() == pids

    def test_interrupt_in_worker_is_exception(self, one):
        one.apply(worker)
        pids = one.pids()
        with pytest.raises(KeyboardInterrupt):
            one.apply(interrupt)
        # An interrupt that arrives between tasks interrupts none of them.
        os.kill(pids[0], signal.SIGINT)
        assert one.apply(worker) == pids[0]

    def test_terminate_ends_stubborn_worker(self, tmp_path):
        pool = mp.get_context("forkserver").Pool(1)
        path = tmp_path / "begun"
        pool.apply_async(signalled, (str(path),))
        wait_until(path.exists)
        begin = time.monotonic()
        pool.terminate()
        pool.join()
        assert time.monotonic() - begin < 5

    def test_terminate_silences_callbacks(self, tmp_path):
        calls = []
        pool = mp.get_context("forkserver").Pool(1)
        result = pool.apply_async(time.sleep, (LONG,), callback=calls.append, error_callback=calls.append)
        pool.terminate()
        with pytest.raises(PoolError):
            result.get(30)
        assert calls == []

    @pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "pool.close()", "del pool", "1 / 0"])
    def test_program_ends_with_live_pool(self, tmp_path, end):
        program = run_program(
            f"""
            import sys, time
            import multiproc as mp
            if __name__ == "__main__":
                mp.set_start_method("forkserver")
                pool = mp.Pool(2)
                pool.apply(int)
                busy = pool.map_async(time.sleep, [600] * 4, chunksize=1, callback=print)
                results = pool.imap(time.sleep, iter([600] * 9))
                print(*pool.pids(), flush=True)
                {end}
            """,
            tmp_path,
        )
        assert program.returncode == (1 if end == "1 / 0" else 0), program.stderr
        assert not any(is_alive(pid) for pid in program.stdout.split())

    def test_interactive_functions_need_no_file(self):
        pytest.importorskip("cloudpickle")
        text = "import multiproc as mp\ndef f(x): return x + 1\nwith mp.Pool(1) as p: print(p.map(f, [1, 2]))"
        run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=50)
        assert run.stdout == "[2, 3]\n", run.stderr

    def test_forked_child_gets_error(self, one):
        result = one.apply_async(sqr, (3, 0.2))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                result.get(5)
            except PoolError:
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert result.get(30) == 9


def test_chunk_may_take_as_long_as_its_items(one):
    with_room = dict(chunksize=4, timeout=1)
    assert one.map(time.sleep, [0.4] * 4, **with_room) == [None] * 4
    assert list(one.imap(time.sleep, [0.4] * 4, **with_room)) == [None] * 4


def test_retries_repeat_lost_task_of_imap(pool, tmp_path):
    for imap in (pool.imap, pool.imap_unordered):
        paths = [str(tmp_path / f"{imap.__name__}{i}") for i in range(3)]
        assert len(list(imap(kill_once, paths, retries=2))) == 3


def test_retries_send_items_one_by_one(pool):
    with pytest.raises(WorkerLost) as caught:
        pool.map(kill_five, range(40), retries=1)
    assert caught.value.index == 5 and caught.value.chunk in (None, range(5, 6))


def test_workers_end_before_earlier_exit_functions(tmp_path):
    program = """
import atexit, os
@atexit.register
def late():
    # Runs after the exit functions of multiprocessing.
    print([os.path.exists(f"/proc/{pid}") for pid in pids], flush=True)
import multiproc as mp
if __name__ == "__main__":
    pool = mp.get_context("forkserver").Pool(2)
    pool.apply(int)
    pids = pool.pids()
else:
    pids = []
"""
    out, err, code = run_script(tmp_path, program)
    assert (out.splitlines()[-1], code) == ("[False, False]", 0), out


class EndedBefore:
    """Lock of a pool which another thread ends just before the lock is acquired."""

    def __init__(self, lock, end):
        self.lock, self.end = lock, end

    def __enter__(self):
        end, self.end = self.end, None
        if end is not None:
            end()
        return self.lock.__enter__()

    def __exit__(self, *args):
        return self.lock.__exit__(*args)


def test_close_during_terminate_changes_nothing(forkserver):
    pool = forkserver.Pool(1)
    pool._lock = EndedBefore(pool._lock, pool.terminate)
    pool.close()
    assert "state=TERMINATE" in repr(pool)
    pool.join()


def test_imap_during_close_raises(forkserver):
    pool, make = forkserver.Pool(1), mp.pool.Pool._tasks

    def closed(*args, **options):
        tasks = make(pool, *args, **options)
        pool.close()
        return tasks

    pool._tasks = closed
    with pytest.raises(ValueError, match="Pool not running"):
        pool.imap(sqr, range(3))
    pool.join()
