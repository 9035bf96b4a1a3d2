//! Closures with captures: as functions of processes, as arguments, as results, and in queues.

use mp::{Closure, FrozenTensor, Process, Queue, SpawnError, SpawnOptions, Tensor, closure};
use mp_tests::join;

#[test]
fn closure_with_tensor_and_queue_runs_elsewhere() {
    let weights = Tensor::<f32>::from_slice(&[1.0, 2.0, 3.0], [3]).unwrap().freeze();
    let sums = Queue::<(usize, f32)>::bounded(4).unwrap();
    let work = closure!([weights, out = sums.clone()] |rank: usize, factor: f32| {
        out.put((rank, factor * weights.iter().sum::<f32>())).map_err(|error| error.to_string())
    });
    let context = mp::process::start_closure(work, 2.0, SpawnOptions::nprocs(2)).unwrap();
    let mut heard = [sums.get().unwrap().unwrap(), sums.get().unwrap().unwrap()];
    heard.sort_by_key(|(rank, _)| *rank);
    assert_eq!(heard, [(0, 12.0), (1, 12.0)]);
    join(&context).unwrap();
}

#[test]
fn closures_pass_through_queues_and_run() {
    let tasks = Queue::<Closure<u64, u64>>::bounded(4).unwrap();
    let server = |tasks: Queue<Closure<u64, u64>>| -> mp::AnyResult<(Vec<u64>, Closure<(), u64>)> {
        let mut results = Vec::new();
        while let Some(task) = tasks.get()? {
            results.push(task.call(10));
        }
        let sum = results.iter().sum::<u64>();
        Ok((results, closure!([sum] || *sum)))
    };
    let child = Process::spawn(server, tasks.clone()).unwrap();
    for step in 1..4u64 {
        tasks.put(closure!([step] |x: u64| x * step)).unwrap();
    }
    tasks.close();
    let (results, sum) = child.join().unwrap();
    assert_eq!((results, sum.call(())), (vec![10, 20, 30], 60));
}

#[test]
fn captured_tensor_shares_its_memory() {
    let frozen = Tensor::<u8>::zeros([1 << 20]).unwrap().freeze();
    let same = closure!([frozen = frozen.clone()] || Ok::<FrozenTensor<u8>, String>(frozen.clone()));
    let back = Process::builder().spawn_closure(same, ()).unwrap().join().unwrap();
    assert_eq!(back.storage(), frozen.storage());
}

#[test]
fn failures_of_closures_arrive_at_the_caller() {
    let what = "this".to_string();
    let fails = closure!([what] |rank: usize, _args: ()| -> Result<(), String> { Err(format!("{what}, rank \
    {rank}")) });
    let error = join(&mp::process::start_closure(fails, (), SpawnOptions::nprocs(1)).unwrap()).unwrap_err();
    assert!(
        matches!(&error, SpawnError::ProcessRaised(raised) if raised.message == "this, rank 0"),
        "{error}"
    );
}
