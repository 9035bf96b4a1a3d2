"""The fork server: main modules with code that runs when the server imports them."""

from programs import run_script

# Common in programs of `multiprocessing`, whose processes inherit such objects by `fork`.
MODULE_LEVEL = """
import multiproc as mp

lock = mp.Lock()
counter = mp.Value("i", 0)
mp.set_start_method("forkserver", force=True)


def add(lock, counter):
    with lock:
        counter.value += 1


if __name__ == "__main__":
    processes = [mp.Process(target=add, args=(lock, counter)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    with mp.Pool(2) as pool:
        print("counted", counter.value, pool.map(abs, [-1, -2]))
"""


def test_objects_of_a_main_module_reach_processes(tmp_path):
    output, errors, code = run_script(tmp_path, MODULE_LEVEL)
    assert (output, errors, code) == ("counted 3 [1, 2]\n", "", 0)
