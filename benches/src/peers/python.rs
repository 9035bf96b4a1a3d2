//! Python's `multiprocessing.Pool`, and torch's where torch is installed: `MP_PYTHON` says which Python, `python3` without it.

use std::process::{Command, Stdio};

use crate::work::{Outcome, Plan};

/// Prints tasks per second. Its arguments: how many tasks. It ends with code 3 where what it needs is missing.
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

fn run(script: &str, tasks: u64) -> Outcome {
    let python = std::env::var("MP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let output = Command::new(python)
        .args(["-c", script, &tasks.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let Ok(output) = output else { return Ok(None) };
    match output.status.code() {
        Some(0) => Ok(Some(String::from_utf8_lossy(&output.stdout).trim().parse()?)),
        Some(3) => Ok(None),
        _ => Err(format!("Python ended with {}", output.status).into()),
    }
}

/// `pool_map`.
pub(crate) fn map(plan: &Plan) -> Outcome {
    run(MAP, plan.repetitions(40_000))
}

/// `pool_tensor_1m`, by torch.
pub(crate) fn tensor_1m(plan: &Plan) -> Outcome {
    run(TENSOR, plan.repetitions(4_000))
}
