//! Misuse and exhausted resources. Each is a distinct error that names the request and the exceeded limit.
//! After the error, everything works as before.
#![allow(unsafe_code)]

use std::process::Command;

use mp::connection::one_way_pipe;
use mp::message::MessageError;
use mp::process::{ExitStatus, RaisedKind};
use mp::{
    Arena, Barrier, Condition, Error, PutError, Queue, RwLock, SpawnError, SpawnOptions, Tensor,
    start_processes,
};
use mp_tests::limits::{Resource, limit};
use mp_tests::{Outcome, alone, failure, give, in_use, join, one_process};
use serde::{Deserialize, Serialize};

const MIB: usize = 1 << 20;

#[track_caller]
fn out_of_memory<T>(result: mp_core::Result<T>) -> (u64, u64, String, String) {
    match result.map(drop).unwrap_err() {
        error @ Error::OutOfMemory { .. } => {
            let text = error.to_string();
            let Error::OutOfMemory { asked, left, limit } = error else { unreachable!() };
            (asked, left, limit, text)
        }
        other => panic!("unexpected: {other:?}"),
    }
}

#[test]
fn out_of_memory_error_names_its_limit() {
    let _alone = alone();
    let (asked, left, limit, text) = out_of_memory(Tensor::<u8>::zeros([1 << 50]));
    assert_eq!(asked, 1 << 50);
    assert!(left < asked && text.contains("1 PiB asked") && text.contains(&limit), "{text}");
    assert!(text.contains("MP_ARENA_SIZE"), "{text}");
    // This size fits the arena's addresses, and exceeds the memory of any test machine.
    let (asked, left, limit, text) = out_of_memory(Tensor::<u8>::zeros([300 << 30]));
    assert!(asked >= 300 << 30 && left < asked && text.contains(&limit), "{text}");
    let before = in_use();
    for exponent in 38..60 {
        out_of_memory(Tensor::<u32>::empty([1 << exponent]));
    }
    assert_eq!(in_use(), before);
    assert_eq!(Tensor::<u8>::full([MIB], 1).unwrap().iter().map(u64::from).sum::<u64>(), MIB as u64);
}

/// Memory limit, which is removed even if the test fails.
struct Budget(Arena);
impl Drop for Budget {
    fn drop(&mut self) {
        self.0.set_budget(0);
    }
}

#[test]
fn budget_limits_memory_until_a_drop() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    let large = Tensor::<u8>::full([8 * MIB], 1).unwrap();
    let queue = Queue::<(Vec<u8>, mp::FrozenTensor<u8>)>::bounded(1).unwrap();
    let attached = Tensor::<u8>::full([10], 3).unwrap().freeze();
    let _budget = Budget(arena);
    // The cache is emptied, because memory that other tests have freed could serve these allocations.
    arena.empty_cache().unwrap();
    let budget = arena.memory_stats().reserved + MIB as u64;
    arena.set_budget(budget);
    let before = in_use();
    let (asked, left, limit, text) = out_of_memory(Tensor::<u8>::zeros([16 * MIB]));
    assert!(asked >= 16 << 20 && left < 16 << 20, "{text}");
    assert!(limit.contains("budget") && text.contains("16 MiB asked") && text.contains(&limit), "{text}");
    // A message whose bytes need as much memory is returned.
    let error = queue.put((vec![7; 16 * MIB], attached.clone())).unwrap_err();
    assert!(matches!(
        &error,
        PutError::Failed { error: mp_reduce::Error::Memory(Error::OutOfMemory { .. }), .. }
    ));
    assert!(error.to_string().contains("budget"), "{error}");
    let (bytes, tensor) = error.into_value();
    assert!(bytes.len() == 16 * MIB && tensor.storage() == attached.storage());
    drop(tensor);
    assert_eq!(in_use(), before);
    assert!(arena.memory_stats().reserved <= budget, "more than the budget");
    // Freed memory can be allocated again for the same size, or for another size after its pages were
    // returned.
    drop(large);
    let again = Tensor::<u8>::full([8 * MIB], 2).unwrap();
    assert_eq!(again.get(&[8 * MIB - 1]).unwrap(), 2);
    out_of_memory(Tensor::<u8>::zeros([5 * MIB]));
    drop(again);
    assert!(arena.empty_cache().unwrap() >= 8 << 20);
    Tensor::<u8>::zeros([5 * MIB]).unwrap();
    give(&queue, (vec![7; MIB], attached.clone()));
    assert_eq!(queue.get().unwrap().unwrap().0.len(), MIB);
    arena.set_budget(0);
    Tensor::<u8>::zeros([16 * MIB]).unwrap();
}

#[test]
fn too_large_or_mismatched_shapes_are_errors() {
    let _alone = alone();
    let too_large = |shape: &[usize], part: &str| match Tensor::<u64>::zeros(shape).map(drop).unwrap_err() {
        Error::LimitExceeded(why) => assert!(why.contains(part), "{why}"),
        other => panic!("unexpected: {other:?}"),
    };
    too_large(&[usize::MAX], "too many elements");
    too_large(&[1 << 32, 1 << 32], "too many elements");
    too_large(&[1 << 61], "too many elements");
    too_large(&[1; 9], "9 dimensions; at most 8");
    let error = Tensor::from_slice(&[1, 2, 3], [2, 2]).unwrap_err();
    let fits = |why: &str| why.contains("3 elements for a tensor of shape [2, 2]");
    assert!(matches!(&error, Error::Shape(why) if fits(why)), "{error:?}");
    let error = Tensor::<u64>::zeros([6]).unwrap().reshape([4]).unwrap_err();
    assert!(matches!(&error, Error::Shape(why) if why.contains("other number of elements")), "{error:?}");
    let outside = |result: mp_core::Result<Tensor<u64>>, part: &str| match result.map(drop).unwrap_err() {
        Error::OutOfBounds(why) => assert!(why.contains(part), "{why}"),
        other => panic!("unexpected: {other:?}"),
    };
    outside(Tensor::zeros([6]).unwrap().narrow(1, 0, 1), "dimension 1");
    outside(Tensor::zeros([6]).unwrap().narrow(0, usize::MAX, 2), "dimension 0, which has 6");
    outside(Tensor::zeros([6]).unwrap().transpose(0, 1), "dimension 1");
    let frozen = Tensor::<u8>::zeros([6]).unwrap().freeze();
    assert!(frozen.get(&[6]).is_err() && frozen.get(&[]).is_err() && frozen.get(&[0, 0]).is_err());
    assert!(frozen.chunk(0, 0).is_err() && frozen.chunk(2, 1).is_err());
    assert!(frozen.select(0, 6).is_err() && frozen.select(1, 0).is_err());
    assert_eq!(Tensor::<u8>::zeros([0, usize::MAX]).unwrap().len(), 0);
}

#[test]
fn empty_shape_with_huge_dimensions_does_not_panic() {
    let _alone = alone();
    // The result may be an error or an empty tensor, as in NumPy.
    for shape in [[0, 1 << 40, 1 << 40], [1 << 40, 0, 1 << 40], [1 << 40, 1 << 40, 0], [0, usize::MAX, 3]] {
        match Tensor::<u8>::zeros(shape) {
            Ok(t) => assert!(t.is_empty() && t.to_vec().is_empty() && t.freeze().chunk(2, 1).is_ok()),
            Err(error) => assert!(matches!(error, Error::LimitExceeded(_)), "{error:?}"),
        }
    }
}

#[test]
fn tensors_and_queues_need_few_descriptors() {
    let _alone = alone();
    fn worker(_: usize, (): ()) -> Outcome {
        limit(Resource::Nofile, 32);
        let tensors: Vec<_> =
            (0..5000_u64).map(|i| Tensor::full([i as usize % 40], i)).collect::<Result<_, _>>()?;
        let queues: Vec<_> = (0..200).map(|_| Queue::bounded(3)).collect::<Result<_, _>>()?;
        for (i, tensor) in tensors.into_iter().take(400).enumerate() {
            mp_tests::send(&queues[i / 2], tensor)?;
        }
        // More processes than the descriptors allow are started at the same time. Each waits.
        let waiter = |_: usize, go: Queue<u8>| drop(mp_tests::next(&go));
        let error =
            start_processes(waiter, Queue::bounded(1)?, SpawnOptions::nprocs(100)).map(drop).unwrap_err();
        assert!(error.to_string().contains("RLIMIT_NOFILE = 32"), "{error}");
        assert!(mp_tests::open_files() < 32);
        mp::spawn(|_: usize, (): ()| {}, (), 4)?;
        let last = mp_tests::next(&queues[199])?.ok_or("closed")?;
        assert_eq!(last.to_vec(), [398; 38]);
        Ok(())
    }
    join(&one_process(worker, ())).unwrap();
}

#[test]
fn file_size_limit_of_a_worker_does_not_kill_it() {
    let _alone = alone();
    fn worker(_: usize, (): ()) -> Outcome {
        limit(Resource::Fsize, 4096);
        // An error is permitted. A SIGXFSZ is not.
        let _ = Tensor::<u8>::full([3 * MIB], 1).map(|t| assert_eq!(t.get(&[3 * MIB - 1]).unwrap(), 1));
        let _ = Queue::<u8>::bounded(100_000);
        Ok(())
    }
    join(&one_process(worker, ())).unwrap();
}

const HELPER: &str = "MP_TESTS_LIMITED";

/// Runs in a separate process that has no shared memory yet: [`limited`] starts this test program again.
#[test]
fn limits_helper() {
    let Ok(what) = std::env::var(HELPER) else { return };
    let used = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
    };
    match what.as_str() {
        "no addresses" => limit(Resource::As, used() + (20 << 20)),
        "few addresses" => limit(Resource::As, used() + (8 << 30)),
        "no file" => limit(Resource::Fsize, 0),
        "small file" => limit(Resource::Fsize, 1 << 20),
        "few gigabytes" => limit(Resource::Fsize, 4 << 30),
        other => panic!("{other}"),
    }
    match Arena::current() {
        Err(error) => println!("{HELPER} no arena: {error}"),
        Ok(arena) => {
            let small = Tensor::<u8>::full([MIB], 1).unwrap();
            let error = Tensor::<u8>::zeros([arena.size() as usize]).map(drop).unwrap_err();
            let join =
                mp::spawn(|_: usize, t: mp::FrozenTensor<u8>| assert_eq!(t.len(), MIB), small.freeze(), 1);
            println!("{HELPER} an arena of {} MiB, {join:?}, then: {error}", arena.size() >> 20);
        }
    }
}

fn limited(what: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["limits_helper", "--exact", "--nocapture", "--test-threads=1"]).env(HELPER, what);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{what}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let line = text.lines().find_map(|line| line.split_once(HELPER));
    line.unwrap_or_else(|| panic!("{what}: the program printed no result:\n{text}")).1.trim().to_string()
}

#[test]
fn address_limit_without_room_is_named_in_the_error() {
    let said = limited("no addresses");
    assert!(said.starts_with("no arena: out of shared memory") && said.contains("RLIMIT_AS"), "{said}");
    for what in ["no file", "small file"] {
        let said = limited(what);
        assert!(
            said.starts_with("no arena: out of shared memory") && said.contains("RLIMIT_FSIZE"),
            "{said}"
        );
    }
}

#[test]
fn tight_address_limit_gets_a_smaller_arena() {
    for what in ["few addresses", "few gigabytes"] {
        let said = limited(what);
        let rest = said.strip_prefix("an arena of ").unwrap_or_else(|| panic!("{said}"));
        let size: u64 = rest.split(' ').next().unwrap().parse().unwrap();
        assert!((64..=8192).contains(&size), "{said}");
        assert!(said.contains("MiB, Ok([()]), then: out of shared memory"), "{said}");
    }
}

#[test]
fn each_end_of_a_worker_is_a_distinct_error() {
    let _alone = alone();
    // Each worker holds a tensor, and has put one into a queue, when it ends.
    type Args = (String, Queue<Tensor<u8>>);
    fn worker(_: usize, (end, queue): Args) -> mp::AnyResult<()> {
        let _held = Tensor::<u8>::full([MIB], 1)?;
        mp_tests::send(&queue, Tensor::full([3], 9)?)?;
        match end.as_str() {
            "panic" => panic!("no more coal"),
            "error" => Err("the engine stopped".into()),
            "exit" => std::process::exit(3),
            "crash" => {
                // SAFETY: none. The test provokes this crash.
                unsafe {
                    std::ptr::with_exposed_provenance_mut::<u8>(std::hint::black_box(8)).write_volatile(1)
                };
                Ok(())
            }
            "kill" => {
                let me = rustix::process::getpid();
                Ok(rustix::process::kill_process(me, rustix::process::Signal::KILL)?)
            }
            other => Err(format!("{other}?").into()),
        }
    }
    let queue = Queue::bounded(8).unwrap();
    let before = in_use();
    let fail = |end: &str| {
        let args = (end.to_string(), queue.clone());
        let error = failure(&one_process(worker, args));
        assert_eq!(mp_tests::take(&queue).to_vec(), [9; 3], "the earlier message arrives");
        mp_tests::eventually("resources of the dead process are released", || in_use() == before);
        error
    };
    for (end, kind, part) in
        [("panic", RaisedKind::Panic, "no more coal"), ("error", RaisedKind::Error, "the engine stopped")]
    {
        let error = fail(end);
        assert!(matches!(&error, SpawnError::ProcessRaised(raised) if raised.kind == kind), "{error:?}");
        assert!(error.to_string().contains(part), "{error}");
    }
    for (end, part) in [("exit", "code 3"), ("crash", "SIGSEGV"), ("kill", "SIGKILL")] {
        let error = fail(end);
        let SpawnError::ProcessExited(exited) = &error else { panic!("{error:?}") };
        assert_eq!(exited.exit == ExitStatus::Code(3), end == "exit", "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// Returns the memory error that caused a queue's error.
#[track_caller]
fn memory(error: MessageError) -> Error {
    match error {
        MessageError::Memory(error) => error,
        other => panic!("unexpected: {other:?}"),
    }
}

#[test]
fn each_mistake_is_a_distinct_error_variant() {
    use Error::{InvalidArgument, LimitExceeded, OutOfBounds, Shape, Unsendable, Unsupported};
    let _alone = alone();
    let bounded = |capacity| memory(Queue::<u8>::bounded(capacity).unwrap_err());
    assert!(matches!(bounded(0), InvalidArgument(_)));
    assert!(matches!(bounded(usize::MAX), LimitExceeded(_)));
    assert!(matches!(Barrier::new(0).unwrap_err(), InvalidArgument(_)));
    assert!(matches!(Barrier::new(u32::MAX).unwrap_err(), LimitExceeded(_)));
    assert!(matches!(Condition::with_waiters(0).unwrap_err(), InvalidArgument(_)));
    assert!(matches!(Condition::with_waiters(u32::MAX).unwrap_err(), LimitExceeded(_)));
    assert!(matches!(RwLock::with_readers((), 0).unwrap_err(), InvalidArgument(_)));
    assert!(matches!(RwLock::with_readers((), u32::MAX).unwrap_err(), LimitExceeded(_)));

    let mut matrix = Tensor::<i32>::zeros([2, 3]).unwrap();
    assert!(matches!(matrix.view().select(0, 2).unwrap_err(), OutOfBounds(_)));
    assert!(matches!(matrix.view().slice(0, .., 0).unwrap_err(), InvalidArgument(_)));
    assert!(matches!(matrix.view().reshape(&[7]).unwrap_err(), Shape(_)));
    assert!(matches!(matrix.set_requires_grad(true).unwrap_err(), Unsupported(_)));

    let (receiver, sender) = one_way_pipe().unwrap();
    let PutError::Failed { value: 7, error } = receiver.send(7).unwrap_err() else { panic!("another error") };
    assert!(matches!(memory(error), Unsupported(_)));
    drop(sender);

    #[derive(Debug, Deserialize)]
    struct Silent;
    impl Serialize for Silent {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("it says nothing"))
        }
    }
    #[derive(Debug, Serialize, Deserialize)]
    struct Nested(Option<Box<Nested>>);
    let nested = (0..2000).fold(Nested(None), |inner, _| Nested(Some(Box::new(inner))));
    let PutError::Failed { error, .. } = Queue::bounded(1).unwrap().put(Silent).unwrap_err() else {
        panic!("refused")
    };
    assert!(matches!(memory(error), Unsendable(why) if why.contains("it says nothing")));
    let PutError::Failed { error, .. } = Queue::bounded(1).unwrap().put(nested).unwrap_err() else {
        panic!("refused")
    };
    assert!(matches!(memory(error), LimitExceeded(_)));
}
