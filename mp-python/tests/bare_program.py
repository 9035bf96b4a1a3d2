"""Program of a new user, whose environment has the wheel and nothing else: see ``xtask/src/steps/wheel.rs``."""

import importlib.util

import multiproc as mp


def double(jobs, results):
    for job in iter(jobs.get, None):
        results.put(2 * job)


def square(x):
    return x * x


if __name__ == "__main__":
    assert not any(map(importlib.util.find_spec, ["numpy", "torch", "cloudpickle", "typing_extensions"]))
    jobs, results = mp.Queue(), mp.Queue()
    worker = mp.Process(target=double, args=(jobs, results))
    worker.start()
    jobs.put_many([1, 2, None])
    assert [results.get(timeout=30) for _ in range(2)] == [2, 4]
    worker.join()
    with mp.get_context("forkserver").Pool(2) as pool:
        assert pool.map(square, range(10)) == [x * x for x in range(10)]
    assert sorted(map(sum, mp.DataLoader(range(4), batch_size=2, num_workers=1, seed=1))) == [1, 5]
    print("ok")
