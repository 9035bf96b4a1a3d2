"""Program whose types ``mypy --strict`` checks: see ``test_types.py``."""

from __future__ import annotations

import queue
from typing import Any, assert_type

import multiproc as mp
from multiproc import connection, managers, pool, queues, shared_memory, synchronize


def square(x: int) -> int:
    return x * x


def queues_keep_their_type(jobs: queues.Queue[int], names: queues.SimpleQueue[str]) -> None:
    assert_type(jobs.put_many([1, 2]), int)
    assert_type(jobs.get(timeout=1), int)
    assert_type(jobs.get_many(2), list[int])
    assert_type(names.get(), str)
    for job in jobs:
        assert_type(job, int)
    with jobs.get_ack() as leased:
        print(leased)
    try:
        jobs.put_nowait(1)
    except (queue.Full, mp.ShutDown, mp.PeerLost):
        pass
    assert_type(mp.JoinableQueue(5).join(timeout=1), bool)
    mp.named(jobs, "jobs").close()


def pools_return_results_of_functions() -> None:
    with mp.Pool(2, initializer=print, initargs=("begun",), retries=1) as workers:
        assert_type(workers, pool.Pool)
        assert_type(workers.map(square, range(4), timeout=1), list[int])
        assert_type(workers.apply(square, (2,)), int)
        assert_type(workers.apply_async(square, (2,)).get(1), int)
        for result in workers.imap_unordered(square, [1, 2], chunksize=2):
            assert_type(result, int)
        try:
            workers.starmap(pow, [(2, 3)])
        except mp.WorkerLost as error:
            assert_type(error.pid, int | None)


def processes_start() -> None:
    context = mp.get_context("forkserver")
    process = context.Process(target=square, args=(1,), name="worker", daemon=True)
    process.start()
    process.join(1)
    ready = connection.wait([process.sentinel], timeout=1)
    assert_type(ready, list[Any])
    running = mp.spawn(square, nprocs=2, join=False)
    assert_type(running, mp.ProcessContext | None)
    if running is not None:
        try:
            assert_type(running.join(timeout=1), bool)
        except mp.ProcessExitedException as error:
            assert_type(error.pid, int)
    mp.set_start_method(None, force=True)
    assert_type(mp.get_start_method(), str | None)


def locks_are_typed() -> None:
    condition = mp.Condition(mp.Lock())
    assert_type(condition, synchronize.Condition)
    with condition:
        assert_type(condition.wait(1), bool)
        condition.notify_all()
    assert_type(mp.Barrier(2, timeout=1).wait(), int)
    with mp.Semaphore(2), mp.RLock():
        assert_type(mp.Event().wait(1), bool)
    total = mp.Value("i", 0)
    with total.get_lock():
        total.value += 1


def connections_are_typed(authkey: bytes) -> None:
    left, right = mp.Pipe()
    left.send_bytes(b"bytes")
    assert_type(right.recv_bytes(), bytes)
    with connection.Listener(("localhost", 0), authkey=authkey) as listener:
        client = connection.Client(listener.address, authkey=authkey, allow_pickle=True)
        assert_type(client, connection.Connection)
        assert_type(listener.accept().poll(1), bool)


def managers_are_typed(authkey: bytes) -> None:
    with mp.Manager() as manager:
        assert_type(manager, managers.SyncManager)
        table = manager.dict({"a": 1})
        assert_type(table["a"], int)
    managers.BaseManager(("localhost", 5000), authkey, allow_pickle=True).connect()


def memory_is_typed() -> None:
    memory = shared_memory.SharedMemory(create=True, size=8)
    assert_type(memory.buf[0], int)
    memory.close()
    memory.unlink()
    assert_type(shared_memory.ShareableList([1, 2])[0], int)
    image = mp.empty(3, 4, dtype="float32")
    print(mp.is_shared(image), mp.zeros((2, 2)), mp.full((2,), 1.0), mp.share([image]))


class Squares:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index * index


def loaders_are_typed() -> None:
    loader: mp.DataLoader[Any] = mp.DataLoader(Squares(), batch_size=2, shuffle=True, num_workers=1, seed=1)
    for batch in loader:
        print(batch, mp.collate([1, 2]))
    loader.load_state_dict(loader.state_dict())
    sums = mp.DataLoader(Squares(), batch_size=2, collate_fn=sum_of)
    assert_type(next(iter(sums)), int)
    info = mp.get_worker_info()
    if info is not None:
        assert_type(info.id, int)


def sum_of(samples: list[int]) -> int:
    return sum(samples)


if __name__ == "__main__":
    jobs: queues.Queue[int] = mp.Queue(4)
    jobs.put(3)
    print(jobs.get())
