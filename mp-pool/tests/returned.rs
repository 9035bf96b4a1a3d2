//! Arguments and messages that are returned: tensors and queues in them are intact, and hold as much memory
//! as before.

mod common;

use std::fmt::Debug;
use std::time::Duration;

use common::{Gate, eventually, got, in_use, join, stop_at};
use mp_pool::{Pool, PushError, TaskError};
use mp_queue::{PutError, Queue};
use mp_reduce::Bundle;
use mp_tensor::{FrozenTensor, SharedTensor, Tensor};
use serde::{Deserialize, Serialize, Serializer};

/// Exclusive, frozen and shared tensor, and a queue with a message.
type Args = Bundle<(Tensor<u64>, FrozenTensor<u64>, SharedTensor<u64>, Queue<u32>)>;

const ROUNDS: usize = 30;

fn args() -> Args {
    let queue = Queue::bounded(2).unwrap();
    queue.put(5).unwrap();
    let tensor = |value| Tensor::full([1000], value).unwrap();
    Bundle((tensor(1), tensor(2).freeze(), tensor(3).share(), queue))
}

/// Checks that the arguments are as created by `args`, and usable.
fn check(Bundle((mut exclusive, frozen, shared, queue)): Args) -> Args {
    assert_eq!(exclusive.as_mut_slice().unwrap()[999], 1);
    assert_eq!((frozen.as_slice().unwrap()[999], shared.to_vec()[999]), (2, 3));
    assert_eq!(queue.try_get().unwrap(), Some(5));
    queue.put(5).unwrap();
    Bundle((exclusive, frozen, shared, queue))
}

/// Returns the number of blocks in use.
fn blocks() -> u64 {
    in_use().0
}

/// Calls `refuse`, which returns the arguments, repeatedly. Checks that no memory is lost.
fn given_back(what: &str, mut refuse: impl FnMut(Args) -> Args) {
    let mut args = args();
    // Memory that the first attempt allocates and keeps for a thread's messages is ignored.
    args = check(refuse(args));
    let before = blocks();
    for _ in 0..ROUNDS {
        args = check(refuse(args));
    }
    assert_eq!(blocks(), before, "{what}");
}

#[track_caller]
fn error<T, E>(result: Result<T, E>) -> E {
    result.err().unwrap()
}

#[track_caller]
fn full<A, T: Debug>(result: Result<T, PushError<A>>) -> A {
    match result {
        Err(PushError::Full(args)) => args,
        other => panic!("{other:?}"),
    }
}

fn pushes(gate: &Gate) {
    type Either = Bundle<(Option<Gate>, Args)>;
    let pool = Pool::builder().processes(1).max_waiting(1).build().unwrap();
    let call = pool.task(|Bundle((gate, args)): Either| {
        gate.into_iter().for_each(|gate| gate.pass(1));
        _ = check(args);
    });
    let arguments = |args| Bundle((None, args));
    let runs = call.apply_async(Bundle((Some(gate.clone()), args())));
    gate.arrived();
    given_back("try_apply_async", |args| error(call.try_apply_async(arguments(args))).0.0.1);
    let stream = call.stream();
    given_back("try_push", |args| full(stream.try_push(arguments(args))).0.1);
    given_back("push_timeout", |args| {
        full(stream.push_to_timeout(3, arguments(args), Duration::from_millis(1))).0.1
    });
    stream.close();
    given_back("push", |args| match stream.push(arguments(args)) {
        Err(PushError::Closed(args)) => args.0.1,
        other => panic!("{other:?}"),
    });
    gate.open(1);
    got(runs).unwrap();
    // Returned arguments can be sent.
    let mut last = Some(args());
    for _ in 0..3 {
        last = last.map(check);
    }
    got(call.apply_async(arguments(last.unwrap()))).unwrap();
    join(&pool);
}

fn puts() {
    let (small, closed) = (Queue::<Args>::bounded(1).unwrap(), Queue::<Args>::bounded(1).unwrap());
    small.put(args()).unwrap();
    closed.close();
    given_back("try_put", |args| error(small.try_put(args)).into_value());
    given_back("put_timeout", |args| error(small.put_timeout(args, Duration::from_millis(1))).into_value());
    given_back("a closed queue", |args| match closed.put(args) {
        Err(PutError::Closed(args)) => args,
        other => panic!("{:?}", other.is_ok()),
    });
    // The message in the queue is intact, and so are later ones.
    let first = small.get().unwrap().unwrap();
    small.put(check(first)).unwrap();
    check(small.get().unwrap().unwrap());
}

/// Value that can't be encoded. In a message, it follows a tensor that was already encoded.
#[derive(Deserialize)]
struct Refuses(FrozenTensor<u64>);

impl Serialize for Refuses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        _ = (&self.0, serializer);
        Err(serde::ser::Error::custom("not today"))
    }
}

fn refused() {
    let pool = Pool::new(1).unwrap();
    let frozen = Tensor::full([1000], 2_u64).unwrap().freeze();
    let submit = || {
        let exclusive = Tensor::full([1000], 1_u64).unwrap();
        let args = Bundle((exclusive, frozen.clone(), Refuses(frozen.clone())));
        let result = pool.apply(|_: Bundle<(Tensor<u64>, FrozenTensor<u64>, Refuses)>| (), args);
        assert!(matches!(result, Err(TaskError::Arguments { .. })), "{result:?}");
    };
    submit();
    let before = blocks();
    (0..ROUNDS).for_each(|_| submit());
    eventually("the arguments are freed", || blocks() == before);
    assert_eq!(frozen.as_slice().unwrap()[999], 2);
    join(&pool);
}

/// Single test, because other tests in this program would change the counts.
#[test]
fn values_returned_by_tasks_keep_handles_and_memory() {
    // A program keeps some memory of its first queue and pool for later queues and pools.
    let gate = Gate::new();
    let warm = Pool::new(1).unwrap();
    gate.open(1);
    assert_eq!(warm.apply(stop_at, (gate.clone(), 3)).unwrap(), 3);
    gate.arrived();
    join(&warm);
    drop(warm);
    // The memory of its worker is reclaimed after the worker has ended.
    eventually("this process is the only member", || in_use().2 == 1);
    let before = in_use();
    pushes(&gate);
    puts();
    refused();
    eventually("all memory is released", || in_use() == before);
}
