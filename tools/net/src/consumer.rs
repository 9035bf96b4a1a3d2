//! Role `get`: takes messages of `down`, or leases messages of `jobs`.

use std::time::Duration;

use mp_net::{PeerLost, RemoteGetError, RemoteQueue};
use mp_reduce::Bundle;

use crate::message::{Job, Numbered, check_bytes};
use crate::options::Options;
use crate::{RoleResult, join, say};

/// Reports a lost home.
fn report(lost: &PeerLost) {
    say!("lost - silent {} ms: {}", lost.silent.as_millis(), lost.cause);
    // sleep: a lost home refuses connections at once, so a retry needs a pause.
    std::thread::sleep(Duration::from_millis(20));
}

/// Reports a message, and then checks its bytes. A process that is killed during the check has received the
/// message, so the report comes first.
fn report_message(number: u64, bytes: &[u8], size: usize) {
    say!("got {number}");
    if let Err(error) = check_bytes(number, bytes, size) {
        say!("corrupt {error}");
    }
}

/// Takes messages until none arrives within `idle`.
fn get(queue: &RemoteQueue<Numbered>, size: usize, (idle, pause): (Duration, Duration)) -> RoleResult {
    loop {
        // sleep: limits the rate, so that a run with a long fault has not too many messages.
        std::thread::sleep(pause);
        match queue.get_timeout(idle) {
            Ok(Some(Bundle((number, tensor)))) => report_message(number, tensor.as_slice()?, size),
            Ok(None) | Err(RemoteGetError::Empty) => return Ok(()),
            Err(RemoteGetError::PeerLost(lost)) => report(&lost),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes and acknowledges messages until none arrives within `idle`.
fn get_leases(queue: &RemoteQueue<Job>, size: usize, (idle, pause): (Duration, Duration)) -> RoleResult {
    loop {
        // sleep: limits the rate, so that a run with a long fault has not too many messages.
        std::thread::sleep(pause);
        match queue.get_lease_timeout(idle) {
            Ok(Some(lease)) => {
                let number = lease.0;
                report_message(number, &lease.1, size);
                if lease.deliveries() > 1 {
                    say!("again {number} {}", lease.deliveries());
                }
                match lease.ack() {
                    Ok(_) => say!("acked {number}"),
                    Err(error) => say!("unacked {number} {error}"),
                }
            }
            Ok(None) | Err(RemoteGetError::Empty) => return Ok(()),
            Err(RemoteGetError::PeerLost(lost)) => report(&lost),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Runs the role `get`.
pub(crate) fn run(options: &Options) -> RoleResult {
    let (size, threads): (usize, usize) = (options.number("size")?, options.number("threads")?);
    let idle = Duration::from_millis(options.number("idle")?);
    let pause = Duration::from_millis(options.number_or_zero("pause")?);
    let leases = options.number_or_zero::<u8>("leases")? != 0;
    let cluster = join(options)?;
    let down = RemoteQueue::<Numbered>::connect(&cluster, "down")?;
    let jobs = RemoteQueue::<Job>::connect(&cluster, "jobs")?;
    let times = (idle, pause);
    say!("ready");
    std::thread::scope(|scope| {
        let work = || if leases { get_leases(&jobs, size, times) } else { get(&down, size, times) };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    cluster.leave()?;
    Ok(())
}
