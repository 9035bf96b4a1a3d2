//! Counts the driver calls of a send and a receive, when the memory is open and the streams have clocks.

use std::time::{Duration, Instant};

use mp_cuda::{CudaEvent, CudaTensor, Order};
use mp_harness::DEADLINE;
use mp_queue::Queue;
use mp_sync::Barrier;

use crate::support::{
    Outcome, join, kernels, nothing_found, session, stat, stays, stream, taken, under, with_gpu,
};

const WARM: usize = 3;
const ROUNDS: u64 = 10;

type Args = (Queue<CudaTensor<f32>>, Barrier);

fn sends((tensors, step): Args) -> Outcome {
    let stream = stream();
    let made = |n: usize| -> Outcome<Vec<_>> {
        let make = |_| -> Outcome<_> {
            let mut t = CudaTensor::<f32>::empty([100], &stream)?;
            let on = t.on_mut(&stream)?;
            kernels().fill(&stream, on.ptr(), on.len(), 1.0);
            drop(on);
            Ok(t)
        };
        (0..n).map(make).collect()
    };
    for t in made(WARM)? {
        tensors.put(t).unwrap();
    }
    // Each receiver finds a pending tick.
    kernels().spin(&stream, Duration::from_secs(3600));
    let all = made(ROUNDS as usize)?;
    step.wait_timeout(DEADLINE)?;
    // Calls are counted from here on.
    step.wait_timeout(DEADLINE)?;
    for t in all {
        tensors.put(t).unwrap();
    }
    step.wait_timeout(DEADLINE)?;
    step.wait_timeout(DEADLINE)?;
    step.wait_timeout(DEADLINE)?;
    stays();
    Ok(())
}

fn receives((tensors, step): Args) -> Outcome {
    let stream = stream();
    // Creates the stream's clock, which happens once.
    CudaEvent::new()?.record(&stream)?;
    for _ in 0..WARM {
        assert_eq!(taken(&tensors).to_vec(&stream)?, [1.0; 100]);
    }
    step.wait_timeout(DEADLINE)?;
    step.wait_timeout(DEADLINE)?;
    step.wait_timeout(DEADLINE)?;
    step.wait_timeout(DEADLINE)?;
    let mut all: Vec<_> = (0..ROUNDS).map(|_| taken(&tensors)).collect();
    for t in &mut all {
        drop(t.on_mut(&stream)?);
    }
    step.wait_timeout(DEADLINE)?;
    stays();
    Ok(())
}

#[test]
fn send_and_receive_make_two_driver_calls_each() {
    let session = session();
    let (tensors, step) = (Queue::unbounded().unwrap(), Barrier::new(3).unwrap());
    let sender = with_gpu(&session).spawn(sends, (tensors.clone(), step.clone())).unwrap();
    let receiver = with_gpu(&session).spawn(receives, (tensors, step.clone())).unwrap();
    step.wait_timeout(DEADLINE).unwrap();
    let before = stat(&session, "calls");
    step.wait_timeout(DEADLINE).unwrap();
    step.wait_timeout(DEADLINE).unwrap();
    let sent = stat(&session, "calls");
    step.wait_timeout(DEADLINE).unwrap();
    step.wait_timeout(DEADLINE).unwrap();
    let received = stat(&session, "calls");
    // Reading the statistics is itself a call.
    let (sends, receives) = (sent - before, received - sent);
    let few = ROUNDS..=2 * ROUNDS + 2;
    assert!(few.contains(&sends), "{sends} calls for {ROUNDS} sends");
    assert!(few.contains(&receives), "{receives} calls for {ROUNDS} receives");
    for process in [sender, receiver] {
        process.kill().unwrap();
        assert!(process.wait_timeout(DEADLINE));
    }
    nothing_found(&session);
}

#[test]
fn status_checks_make_at_most_two_driver_calls() {
    let session = session();
    let calls = [0, 1, 2].map(|_| stat(&session, "calls"));
    assert!(calls[2] - calls[1] <= 2, "{calls:?}");
}

/// Duration of a stream's work before each message.
const WORK: Duration = Duration::from_millis(5);

/// Puts tensors with pending work. Returns the number of microseconds that the calls of `put` took.
fn sends_pending(tensors: Queue<CudaTensor<f32>>) -> Outcome<u64> {
    let stream = stream();
    let mut blocked = Duration::ZERO;
    for _ in 0..ROUNDS {
        let mut t = CudaTensor::<f32>::empty([100], &stream)?;
        let on = t.on_mut(&stream)?;
        kernels().spin(&stream, WORK);
        kernels().fill(&stream, on.ptr(), on.len(), 1.0);
        drop(on);
        let begun = Instant::now();
        tensors.put(t).unwrap();
        blocked += begun.elapsed();
    }
    tensors.close();
    Ok(blocked.as_micros() as u64)
}

fn reads(tensors: Queue<CudaTensor<f32>>) -> Outcome {
    let stream = stream();
    while let Some(t) = tensors.get_timeout(DEADLINE)? {
        assert_eq!(t.to_vec(&stream)?, [1.0; 100]);
    }
    Ok(())
}

#[test]
#[ignore = "prints the figures of ADR 38"]
fn stream_orders_differ_in_driver_calls_and_waits() {
    for order in [Order::Clocks, Order::IpcEvents, Order::Host] {
        let session = under(order);
        let tensors = Queue::unbounded().unwrap();
        let reader = with_gpu(&session).spawn(reads, tensors.clone()).unwrap();
        let blocked = join(with_gpu(&session).spawn(sends_pending, tensors).unwrap());
        join(reader);
        let calls = stat(&session, "calls");
        println!("{order:?}: put blocks for {} us, {calls} calls in all", blocked / ROUNDS);
    }
}
