//! Tests that memory does not grow when many tensors are sent one after another.

use mp_core::Arena;
use mp_core::clocks::Clocks;
use mp_cuda::{CudaTensor, SharedCudaTensor};
use mp_cuda_sim::session::Session;
use mp_queue::Queue;

use crate::support::{Outcome, join, nothing_is_left, session, stat, stream, taken, with_gpu};

const LEN: usize = 1 << 14;
const COUNT: usize = 100_000;
/// Numbers of sent tensors at which usage is measured. All processes still exist at the last measurement.
const MARKS: [usize; 3] = [1_000, 10_000, COUNT - 100];

type Numbers = Queue<Option<SharedCudaTensor<f32>>>;

fn sends(out: Numbers) -> Outcome {
    let stream = stream();
    for i in 0..COUNT {
        out.put(Some(CudaTensor::full([LEN], (i % 100) as f32, &stream)?.share())).unwrap();
    }
    out.put(None).unwrap();
    Ok(())
}

fn relays((from, to): (Numbers, Numbers)) -> Outcome {
    while let Some(t) = taken(&from) {
        to.put(Some(t)).unwrap();
    }
    to.put(None).unwrap();
    Ok(())
}

fn sums((from, marks, go): (Numbers, Queue<usize>, Queue<()>)) -> Outcome<f64> {
    let (stream, mut sum, mut received) = (stream(), 0.0, 0);
    while let Some(t) = taken(&from) {
        sum += t.narrow(0, 9, 5)?.to_vec(&stream)?.iter().map(|x| f64::from(*x)).sum::<f64>();
        received += 1;
        if MARKS.contains(&received) {
            marks.put(received).unwrap();
            taken(&go);
        }
    }
    assert_eq!(received, COUNT);
    Ok(sum)
}

/// Resource usage: bytes of the device, bytes of the arena, number of clocks with an owner, and resident
/// memory of processes in KiB.
#[derive(Debug)]
struct There {
    device: u64,
    arena: u64,
    clocks: u32,
    resident: Vec<u64>,
}

impl There {
    fn now(session: &Session, pids: &[u32]) -> Self {
        let arena = Arena::current().unwrap();
        let resident = |pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        Self {
            device: stat(session, "bytes"),
            arena: arena.memory_stats().allocated,
            clocks: Clocks(arena).owned(),
            resident: pids.iter().map(resident).collect(),
        }
    }
}

/// Scenario of `test_cuda_send_many` of PyTorch, with the same number of tensors. They pass through three
/// processes, the second of which only forwards.
#[test]
#[ignore = "takes minutes: cargo xtask ci --long"]
fn hundred_thousand_tensors_leak_nothing() {
    let session = session();
    let (one, two) = (Queue::bounded(16).unwrap(), Queue::bounded(16).unwrap());
    let (marks, go) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(sends, one.clone()).unwrap();
    let relay = with_gpu(&session).spawn(relays, (one, two.clone())).unwrap();
    let end = with_gpu(&session).spawn(sums, (two, marks.clone(), go.clone())).unwrap();
    let pids = [maker.pid(), relay.pid(), end.pid(), session.pid()];
    let all = MARKS.map(|mark| {
        // The wait for the last mark takes minutes.
        assert_eq!(marks.get().unwrap(), Some(mark));
        let there = There::now(&session, &pids);
        println!("{mark}: {there:?}");
        go.put(()).unwrap();
        there
    });
    assert!(end.wait_timeout(mp_harness::DEADLINE));
    assert_eq!(join(end), (0..COUNT).map(|i| 5.0 * (i % 100) as f64).sum::<f64>());
    let [first, .., last] = &all;
    assert!(last.device <= first.device && last.device <= 64 << 20, "{all:?}");
    // A queue's messages need blocks of many sizes, a few of which are allocated later.
    assert!(last.arena <= first.arena + (1 << 20) && last.clocks <= first.clocks + 2, "{all:?}");
    // Compares the processes that use the library. The fourth process is the device.
    for (early, late) in first.resident.iter().zip(&last.resident).take(3) {
        assert!(*late <= early + 4096, "{all:?}");
    }
    join(relay);
    join(maker);
    nothing_is_left(&session);
}
