//! References for mp's loader: threads of one process do the work of a row. Threads need no start of
//! processes and no communication between processes, and have no protection from crashes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Instant;

use mp_bench_decoder::{ROW, SIDE};
use rayon::prelude::*;

use crate::Result;
use crate::images::Images;
use crate::ours::Takes;
use crate::run::{Contender, Round};

const THREADS: usize = 2;
/// Number of images in a batch of the row `decode`.
pub(crate) const BATCH: usize = 16;
/// Number of finished batches that a channel holds, as for a loader of two workers with a prefetch factor of
/// 2.
const AHEAD: usize = 4;

/// Returns the checksum of an image.
pub(crate) fn sum(row: &[u8]) -> u64 {
    row.iter().map(|byte| u64::from(*byte)).sum()
}

/// Returns the checksums of the first and of the last image of a batch.
pub(crate) fn ends(batch: &[u8]) -> [u64; 2] {
    [sum(&batch[..ROW]), sum(&batch[batch.len() - ROW..])]
}

/// Buffers that are reused, so that their pages are mapped already. The fields are the free buffers and the
/// length of a buffer.
struct Buffers<T>(Mutex<Vec<Vec<T>>>, usize);

impl<T: Copy + Default> Buffers<T> {
    fn new(len: usize) -> Self {
        Self(Mutex::new(Vec::new()), len)
    }

    fn take(&self) -> Vec<T> {
        let buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        buffer.unwrap_or_else(|| vec![T::default(); self.1])
    }

    fn give_back(&self, buffer: Vec<T>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}

/// Returns the contender `threads` of the row `transfer`: two threads fill buffers that are in memory
/// already.
pub(crate) fn fill(batches: usize) -> Contender {
    let buffers = Buffers::<f32>::new(64 * 3 * (SIDE * SIDE) as usize);
    Contender::new("2 threads", move || {
        let (start, next, mut check) = (Instant::now(), AtomicUsize::new(0), 0);
        let (send, ready) = mpsc::sync_channel::<(usize, Vec<f32>)>(AHEAD);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let (send, next, buffers) = (send.clone(), &next, &buffers);
                scope.spawn(move || {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= batches {
                            break;
                        }
                        let mut batch = buffers.take();
                        let rows = batch.chunks_exact_mut(3 * (SIDE * SIDE) as usize);
                        rows.enumerate().for_each(|(row, to)| to.fill((64 * number + row) as f32));
                        if send.send((number, batch)).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(send);
            for (number, batch) in ready {
                check += (number as u64 + 1) * (batch[0] + batch[batch.len() - 1]) as u64;
                buffers.give_back(batch);
            }
        });
        Ok(Round::Figure { figure: batches as f64 / start.elapsed().as_secs_f64(), check })
    })
}

/// Returns the contender `rayon` of the row `decode`. With `by_rows`, two threads share the rows of each
/// batch. Otherwise, one thread decodes all rows of a batch.
pub(crate) fn decode(images: &Images, batches: usize, by_rows: bool) -> Result<Contender> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build()?;
    let paths: Vec<PathBuf> = images.paths().collect();
    let buffers = Buffers::<u8>::new(BATCH * ROW);
    let name = if by_rows { "rows in parallel" } else { "batches in parallel" };
    Ok(Contender::new(name, move || {
        let (start, mut check, mut count) = (Instant::now(), 0, 0);
        let (send, ready) = mpsc::sync_channel::<Result<(usize, Vec<u8>)>>(AHEAD);
        let row = |number: usize, row: usize, to: &mut [u8]| {
            mp_bench_decoder::decode(&paths[(BATCH * number + row) % paths.len()], to)
        };
        let batch = |number: usize| {
            let mut batch = buffers.take();
            if by_rows {
                let rows = batch.par_chunks_exact_mut(ROW).with_max_len(1).enumerate();
                rows.try_for_each(|(n, to)| row(number, n, to))?;
            } else {
                let mut rows = batch.chunks_exact_mut(ROW).enumerate();
                rows.try_for_each(|(n, to)| row(number, n, to))?;
            }
            Ok((number, batch))
        };
        std::thread::scope(|scope| {
            let pool = &pool;
            scope.spawn(move || {
                pool.install(|| {
                    // An error of sending means that the other side has ended with an error.
                    if by_rows {
                        (0..batches).for_each(|number| _ = send.send(batch(number)));
                    } else {
                        let all = (0..batches).into_par_iter().with_max_len(1);
                        all.for_each(|number| _ = send.send(batch(number)));
                    }
                });
            });
            for batch in ready {
                let (number, batch) = batch?;
                check += (number as u64 + 1) * ends(&batch).iter().sum::<u64>();
                count += 1;
                buffers.give_back(batch);
            }
            Ok::<(), crate::Failure>(())
        })?;
        Ok(Round::Figure { figure: f64::from(count) / start.elapsed().as_secs_f64(), check })
    }))
}

/// Returns the contender `threads` of the rows `uneven` and `uneven_any_order`. Each thread takes the next
/// number, and sleeps for the time that this number takes. This gives the maximum rate.
pub(crate) fn uneven(threads: usize, batches: usize, takes: Takes) -> Contender {
    Contender::new("", move || {
        let (start, next, check) = (Instant::now(), AtomicUsize::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= batches {
                            break;
                        }
                        takes.wait(number);
                        check.fetch_add((number as u64 + 1) * number as u64, Ordering::Relaxed);
                    }
                });
            }
        });
        let figure = batches as f64 / start.elapsed().as_secs_f64();
        Ok(Round::Figure { figure, check: check.into_inner() })
    })
}
