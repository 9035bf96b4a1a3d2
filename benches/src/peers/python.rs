//! Python's `multiprocessing`, and torch's if torch is installed. The variable `MP_PYTHON` names the
//! interpreter, which is `python3` by default.

use std::process::{Command, Stdio};

use crate::work::{Outcome, Plan};

/// Script that prints the tasks per second of `Pool.map`. Argument: number of tasks.
const MAP: &str = "
import sys, time
from multiprocessing import Pool
def successor(x): return x + 1
tasks = int(sys.argv[1])
with Pool(2) as pool:
    pool.map(successor, range(tasks // 10), chunksize=1)
    start = time.perf_counter()
    results = pool.map(successor, range(tasks), chunksize=1)
    took = time.perf_counter() - start
assert results == list(range(1, tasks + 1))
print(tasks / took)
";

/// Script that prints the nanoseconds for each task, with chunks of Python's choice for `map`. Arguments:
/// number of tasks, and method.
const MAP_1M: &str = "
import sys, time
from multiprocessing import Pool
def successor(x): return x + 1
tasks = int(sys.argv[1])
with Pool(2) as pool:
    run = {'map': lambda: pool.map(successor, range(tasks)),
           # Its default, 1, takes a hundred times as long.
           'imap': lambda: list(pool.imap(successor, range(tasks), chunksize=tasks // 8))}[sys.argv[2]]
    run()
    start = time.perf_counter_ns()
    results = run()
    took = time.perf_counter_ns() - start
assert results == list(range(1, tasks + 1))
print(took / tasks)
";

/// Script that prints the nanoseconds for each call of a manager's object. Argument: number of calls.
const MANAGER: &str = "
import sys, time
from multiprocessing import Manager
if __name__ == '__main__':
    calls = int(sys.argv[1])
    with Manager() as manager:
        value = manager.Value('i', 7)
        for _ in range(calls // 10): value.get()
        start = time.perf_counter_ns()
        total = sum(value.get() for _ in range(calls))
        took = time.perf_counter_ns() - start
    assert total == 7 * calls
    print(took / calls)
";

/// Script that prints the median time of a round trip of a number in ns, or the numbers per second one way.
/// Arguments: count, package, and `rtt` or another word. Exits with code 3 if the package is missing.
const QUEUES: &str = "
import importlib, statistics, sys, time
try:
    mp = importlib.import_module(sys.argv[2])
except ImportError:
    sys.exit(3)
def answer(there, back):
    while (number := there.get()) is not None:
        back.put(number + 1)
def produce(queue, count):
    for number in range(count):
        queue.put(number)
count, context = int(sys.argv[1]), mp.get_context('fork')
if sys.argv[3] == 'rtt':
    there, back = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=answer, args=(there, back))
    process.start()
    times = []
    for number in range(-(count // 10), count):
        start = time.perf_counter_ns()
        there.put(number)
        assert back.get() == number + 1
        times.append(time.perf_counter_ns() - start)
    there.put(None)
    figure = statistics.median(times[-count:])
else:
    queue = context.Queue(1024)
    process = context.Process(target=produce, args=(queue, count))
    process.start()
    for number in range(count):
        if number == count // 10: start = time.perf_counter()
        assert queue.get() == number
    figure = (count - count // 10) / (time.perf_counter() - start)
process.join()
assert process.exitcode == 0
print(figure)
";

const TENSOR: &str = "
import sys, time
try:
    import torch
    from torch.multiprocessing import Pool
except ImportError:
    sys.exit(3)
LEN = 1 << 17
def read(args): return int(args[0][args[1] % LEN])
tasks = int(sys.argv[1])
tensor = torch.arange(LEN).share_memory_()
with Pool(2) as pool:
    pool.map(read, [(tensor, i) for i in range(tasks // 10)], chunksize=1)
    start = time.perf_counter()
    results = pool.map(read, [(tensor, i) for i in range(tasks)], chunksize=1)
    took = time.perf_counter() - start
assert results == [i % LEN for i in range(tasks)]
print(tasks / took)
";

/// Script that prints the median time in ns to start one process that does nothing, and to wait for its end.
/// Arguments: number of processes, and start method.
const PROCESS: &str = "
import statistics, sys, time
from multiprocessing import get_context
context = get_context(sys.argv[2])
times = []
for number in range(int(sys.argv[1]) + 2):
    start = time.perf_counter_ns()
    process = context.Process(target=int)
    process.start()
    process.join()
    took = time.perf_counter_ns() - start
    assert process.exitcode == 0
    if number >= 2:
        times.append(took)
print(statistics.median(times))
";

/// Script like [`PROCESS`], with torch's `start_processes`. Exits with code 3 if torch is missing.
const TORCH: &str = "
import statistics, sys, time
try:
    from torch.multiprocessing import start_processes
except ImportError:
    sys.exit(3)
times = []
for number in range(int(sys.argv[1]) + 1):
    start = time.perf_counter_ns()
    start_processes(int, nprocs=1, join=True, start_method=sys.argv[2])
    took = time.perf_counter_ns() - start
    if number >= 1:
        times.append(took)
print(statistics.median(times))
";

/// Runs a script and returns the figure that it prints. If Python or torch is not installed, reports this on
/// stderr and returns `None`.
fn run(script: &str, words: &[&str]) -> Outcome {
    let python = std::env::var("MP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let output = Command::new(&python)
        .args(["-c", script])
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let Ok(output) = output else {
        eprintln!("mp-bench: {python} is not installed");
        return Ok(None);
    };
    match output.status.code() {
        Some(0) => Ok(Some(String::from_utf8_lossy(&output.stdout).trim().parse()?)),
        Some(3) => {
            eprintln!("mp-bench: torch is not installed for {python}");
            Ok(None)
        }
        _ => Err(format!("Python ended with {}", output.status).into()),
    }
}

/// Runs a round of the row `pool_map`.
pub(crate) fn map(plan: &Plan) -> Outcome {
    run(MAP, &[&plan.repetitions(40_000).to_string()])
}

/// Runs a round of the row `pool_map_1m`.
pub(crate) fn map_1m(plan: &Plan) -> Outcome {
    run(MAP_1M, &[&plan.repetitions(1_000_000).to_string(), "map"])
}

/// Runs a round of the row `pool_imap_1m`.
pub(crate) fn imap_1m(plan: &Plan) -> Outcome {
    run(MAP_1M, &[&plan.repetitions(1_000_000).to_string(), "imap"])
}

/// Names of the packages whose queues are measured: Python's, and in the next constant torch's.
const STANDARD: &str = "multiprocessing";
const TORCH_PACKAGE: &str = "torch.multiprocessing";

/// Runs a round of the row `rtt_awake`.
pub(crate) fn rtt(plan: &Plan) -> Outcome {
    run(QUEUES, &[&plan.repetitions(20_000).to_string(), STANDARD, "rtt"])
}

/// Runs a round of the row `rtt_awake` with torch.
pub(crate) fn torch_rtt(plan: &Plan) -> Outcome {
    run(QUEUES, &[&plan.repetitions(20_000).to_string(), TORCH_PACKAGE, "rtt"])
}

/// Runs a round of the row `one_way_1p1c`.
pub(crate) fn one_way(plan: &Plan) -> Outcome {
    run(QUEUES, &[&plan.repetitions(50_000).to_string(), STANDARD, "one-way"])
}

/// Runs a round of the row `one_way_1p1c` with torch.
pub(crate) fn torch_one_way(plan: &Plan) -> Outcome {
    run(QUEUES, &[&plan.repetitions(50_000).to_string(), TORCH_PACKAGE, "one-way"])
}

/// Runs a round of the row `manager_call`.
pub(crate) fn manager(plan: &Plan) -> Outcome {
    run(MANAGER, &[&plan.repetitions(20_000).to_string()])
}

/// Runs a round of the row `pool_tensor_1m` with torch.
pub(crate) fn tensor_1m(plan: &Plan) -> Outcome {
    run(TENSOR, &[&plan.repetitions(4_000).to_string()])
}

/// Runs a round of the row `spawn_exec`.
pub(crate) fn spawn(plan: &Plan) -> Outcome {
    run(PROCESS, &[&plan.repetitions(6).to_string(), "spawn"])
}

/// Runs a round of the row `spawn_forkserver`.
pub(crate) fn forkserver(plan: &Plan) -> Outcome {
    run(PROCESS, &[&plan.repetitions(20).to_string(), "forkserver"])
}

/// Runs a round of the row `spawn_exec` with torch, which each process imports in seconds.
pub(crate) fn torch_spawn(plan: &Plan) -> Outcome {
    run(TORCH, &[&plan.repetitions(4).to_string(), "spawn"])
}

/// Runs a round of the row `spawn_forkserver` with torch.
pub(crate) fn torch_forkserver(plan: &Plan) -> Outcome {
    run(TORCH, &[&plan.repetitions(4).to_string(), "forkserver"])
}
