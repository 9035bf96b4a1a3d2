//! Threads of two processes that allocate, send, open, drop and collect pieces concurrently.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use mp_cuda::memory::{Piece, PieceMode};
use mp_cuda::{CudaStream, Device, empty_cache, ipc_collect, memory_stats};
use mp_queue::Queue;

use crate::agent::{Parcel, alone, nothing_found, process, setup, until};

const THREADS: u64 = 4;
const ROUNDS: u64 = 150;

type Outcome = Result<(), String>;

/// Runs `work` in several threads, while another thread calls `collect` repeatedly.
fn beside(collect: impl Fn() + Sync, work: impl Fn(u64) -> Outcome + Sync) -> Outcome {
    let done = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                collect();
                thread::yield_now();
            }
        });
        let work = &work;
        let all: Vec<_> = (0..THREADS).map(|i| threads.spawn(move || work(i))).collect();
        let all: Vec<_> = all.into_iter().map(|one| one.join().map_err(|_| "a panic".to_owned())).collect();
        done.store(true, Ordering::Relaxed);
        all.into_iter().try_for_each(|one| one?)
    })
}

fn makes(parcels: Queue<Parcel>) -> Outcome {
    let said = |error: mp_cuda::Error| error.to_string();
    let device = Device::new(0).map_err(said)?;
    beside(
        || _ = empty_cache(),
        |thread| {
            let stream = CudaStream::new(&device).map_err(said)?;
            let mut kept = Vec::new();
            for round in 0..ROUNDS {
                // Some pieces have slabs of their own.
                let bytes = if round % 50 == 7 { 17 << 20 } else { 1000 * (thread + 1) + round };
                let piece = Piece::allocate(&device, bytes, &stream).map_err(said)?;
                piece.open(&device).map_err(said)?;
                if !piece.share_as(PieceMode::Shared) {
                    return Err("it was opened before".into());
                }
                for _ in 0..2 {
                    parcels
                        .put(Parcel(piece.clone(), PieceMode::Shared))
                        .map_err(|error| error.to_string())?;
                }
                kept.push(piece);
                if kept.len() > 5 {
                    kept.remove(0);
                }
            }
            Ok(())
        },
    )?;
    mp_harness::eventually("all pieces returned", || memory_stats(&device).pieces == 0);
    empty_cache();
    Ok(())
}

fn opens(parcels: Queue<Parcel>) -> Outcome {
    let said = |error: mp_cuda::Error| error.to_string();
    let device = Device::new(0).map_err(said)?;
    beside(
        || _ = ipc_collect(),
        |_| {
            let mut kept = Vec::new();
            for _ in 0..2 * ROUNDS {
                let Parcel(piece, _) = parcels.get().map_err(|error| error.to_string())?.ok_or("closed")?;
                let at = piece.open(&device).map_err(said)?;
                if kept.iter().any(|(other, there): &(Piece, u64)| other.is(&piece) != (*there == at)) {
                    return Err("two pieces are at one address, or one is at two".into());
                }
                kept.push((piece, at));
                if kept.len() > 8 {
                    kept.remove(0);
                }
            }
            Ok(())
        },
    )?;
    if memory_stats(&device).mapped_slabs > 0 {
        ipc_collect();
    }
    Ok(())
}

#[test]
fn threads_of_two_processes_share_pieces() {
    let _alone = alone();
    let session = setup().start().unwrap();
    let parcels = Queue::bounded(16).unwrap();
    let maker = process(&session).spawn(makes, parcels.clone()).unwrap();
    let other = process(&session).spawn(opens, parcels).unwrap();
    for one in [other, maker] {
        assert!(one.wait_timeout(mp_harness::DEADLINE), "still running: {one:?}");
        one.join().unwrap();
    }
    until(&session, "processes", 0);
    until(&session, "bytes", 0);
    nothing_found(&session);
}
