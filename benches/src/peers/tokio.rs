//! tokio's channels, between threads of one process: no message is encoded, and no process can die.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{broadcast, watch};

use crate::work::retained::{SequenceCheck, WINDOW, value, version};
use crate::work::{Outcome, Plan, now};
use crate::{Failure, Result};

fn ended<T>(ended: std::thread::Result<T>) -> Result<T> {
    ended.map_err(|_| Failure::from("the other thread has panicked"))
}

/// Runs a round of the row `watch_send`.
pub(crate) fn watch_send(plan: &Plan) -> Outcome {
    let last = plan.repetitions(1_000_000);
    let (sender, mut receiver) = watch::channel(value(0));
    let (report, there) = std::sync::mpsc::channel();
    let look = move || -> Result<()> {
        report.send(())?;
        let mut seen = 0;
        while seen < last {
            seen = version(&receiver.borrow_and_update(), seen)?;
        }
        Ok(())
    };
    let reader = std::thread::spawn(look);
    there.recv()?;
    let start = now();
    for number in 1..=last {
        sender.send(value(number)).or(if number == last { Ok(()) } else { Err("no reader") })?;
    }
    let took = now() - start;
    ended(reader.join())??;
    Ok(Some(took as f64 / last as f64))
}

/// Runs a round of the row `broadcast_1p1c`.
pub(crate) fn broadcast(plan: &Plan) -> Outcome {
    static FAR: AtomicU64 = AtomicU64::new(0);
    FAR.store(0, Ordering::Relaxed);
    let count = plan.repetitions(2_000_000).next_multiple_of(WINDOW);
    let (sender, mut receiver) = broadcast::channel(WINDOW as usize);
    let (report, there) = std::sync::mpsc::channel();
    let hear = move || -> Result<()> {
        report.send(())?;
        let mut counted = SequenceCheck(0);
        while counted.0 < count {
            counted.next(receiver.blocking_recv()?)?;
            if counted.0.is_multiple_of(WINDOW / 2) {
                FAR.store(counted.0, Ordering::Release);
            }
        }
        Ok(())
    };
    let other = std::thread::spawn(hear);
    there.recv()?;
    let start = now();
    for number in 0..count {
        while number - FAR.load(Ordering::Acquire) >= WINDOW {
            std::hint::spin_loop();
        }
        sender.send(number)?;
    }
    ended(other.join())??;
    Ok(Some(count as f64 * 1e9 / (now() - start) as f64))
}
