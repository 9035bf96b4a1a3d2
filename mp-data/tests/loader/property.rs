//! Random scenarios from fixed seeds, in which batches must be equal bit by bit.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use mp_data::plan::{Batching, IndexSampler, Sampler, Uneven};
use mp_data::{DataLoader, DataLoaderBuilder, LoaderState};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Bytes, Fault, Random, Samples, all, bare, bytes, kept, next};

/// Maximum duration of each of the two tests, after its first rounds.
const LONG: Duration = Duration::from_secs(5);
const ROUNDS: u64 = 200;
/// Number of rounds at the beginning of a test that together use each sampler.
const FIRST: u64 = 9;

/// Sampler of all samples in reverse order, whose length grows by one with each epoch.
#[derive(Debug)]
struct Backwards(u64);

impl IndexSampler for Backwards {
    fn name(&self) -> &str {
        "backwards/1"
    }

    fn len(&self, epoch: u64) -> u64 {
        if self.0 == 0 { 0 } else { self.0 + epoch }
    }

    fn index(&self, epoch: u64, k: u64) -> u64 {
        self.0 - 1 - (k + epoch) % self.0
    }
}

/// Settings of an order.
#[derive(Clone, Copy, Debug)]
struct Order {
    len: usize,
    size: u64,
    world: u32,
    by: u64,
    uneven: Uneven,
    drop_last: bool,
    seed: u64,
}

impl Order {
    fn random(random: &mut Random, round: u64) -> Order {
        Order {
            len: random.below(50) as usize,
            size: 1 + random.below(6),
            world: 1 + random.below(3) as u32,
            by: round % 9,
            uneven: if random.below(2) == 0 { Uneven::Pad } else { Uneven::Drop },
            drop_last: random.below(2) == 0,
            seed: random.below(u64::MAX),
        }
    }

    fn builder(self, samples: Samples, rank: u32) -> DataLoaderBuilder<Samples> {
        let lengths = (0..self.len as u32).map(|i| i * 7 % 23).collect();
        let builder = bare(samples, 0).seed(self.seed);
        let len = self.len as u64;
        // The number of draws is lower or higher than the number of samples.
        let draws = if len == 0 { 0 } else { self.seed % (2 * len) };
        let weights = (0..len).map(|i| 1.0 + (i % 5) as f64).collect();
        let weighted = |draws, replacement| Sampler::Weighted { weights, draws, replacement };
        let builder = match self.by {
            0..4 => builder.shuffle(self.by > 0),
            // Weights of no samples are refused.
            5 | 6 if len == 0 => builder.shuffle(true),
            4 => builder.sampler(Sampler::WithReplacement(draws)),
            5 => builder.sampler(weighted(draws, true)),
            6 => builder.sampler(weighted(draws.min(len), false)),
            7 => builder.sampler(Sampler::Subset((0..len).step_by(2).collect())).shuffle(true),
            _ => builder.index_sampler(Backwards(len)),
        };
        // Batches by tokens have no fixed size, so `drop_last` does not apply.
        let builder = builder.drop_last(self.drop_last && self.by != 2);
        let builder = builder.distributed(rank, self.world).uneven(self.uneven);
        match self.by {
            1 => builder.batching(Batching::BucketByLength { lengths, window: 2 }).batch_size(self.size),
            2 => builder.batching(Batching::MaxTokens { lengths, tokens: 50, window: 11 }),
            _ => builder.batch_size(self.size),
        }
    }

    /// Returns the batches of a rank, made by the trainer alone.
    fn expected(self, rank: u32) -> Vec<Bytes> {
        let loader = self.builder(Samples::new(self.len), rank).build().unwrap();
        all(loader.epochs(1..3))
    }
}

/// Returns a loader with random faults of workers.
fn tormented(order: Order, rank: u32, ordered: bool, random: &mut Random) -> DataLoader<Samples> {
    let (workers, threads) = (random.below(5) as usize, 1 + random.below(3) as usize);
    let mut samples = Samples::new(order.len);
    for _ in 0..random.below(3).min(if workers == 0 { 0 } else { order.len as u64 }) {
        let index = random.below(order.len as u64) as usize;
        samples = samples.with(index, Fault::Kill, 1 + random.below(2) as i64);
    }
    let builder = order.builder(samples, rank).num_workers(workers).threads_per_worker(threads);
    builder.in_order(ordered).prefetch_factor(1 + random.below(3) as usize).retries(40).build().unwrap()
}

#[test]
fn loader_batches_are_equal_despite_random_faults() {
    let begun = Instant::now();
    for round in 0..ROUNDS {
        if round >= FIRST && begun.elapsed() > LONG {
            break;
        }
        let mut random = Random(round);
        let order = Order::random(&mut random, round);
        let (rank, ordered) = (random.below(u64::from(order.world)) as u32, random.below(2) == 0);
        let text = format!("round {round}: rank {rank}, ordered {ordered}, {order:?}");
        let expected = order.expected(rank);
        let mut loader = tormented(order, rank, ordered, &mut random);
        let (mut got, mut resumes, mut kills) = (Vec::new(), random.below(4), random.below(3));
        let mut batches = loader.epochs(1..3);
        loop {
            if resumes > 0 && random.below(4) == 0 {
                resumes -= 1;
                let state = kept(&batches.state());
                if random.below(2) == 0 {
                    loader = tormented(order, rank, ordered, &mut random);
                }
                batches = loader.resume_until(&state, 3).unwrap();
            }
            let pids = loader.pids();
            if kills > 0 && !pids.is_empty() && random.below(4) == 0 {
                kills -= 1;
                let victim = pids[random.below(pids.len() as u64) as usize];
                // The process may have ended just before.
                let pid = Pid::from_raw(victim.cast_signed()).unwrap();
                _ = kill_process(pid, Signal::KILL);
            }
            let Some(batch) = next(&mut batches) else { break };
            got.push(bytes(&batch.unwrap_or_else(|error| panic!("{text}: {error}"))));
        }
        if !ordered {
            assert!(got.is_sorted_by_key(|batch| batch.0), "{text}: epochs are in order");
            got.sort_by_key(|batch| (batch.0, batch.1));
        }
        let places = |all: &[Bytes]| all.iter().map(|batch| (batch.0, batch.1)).collect::<Vec<_>>();
        assert_eq!(places(&got), places(&expected), "{text}");
        assert_eq!(got, expected, "{text}");

        // All ranks together have each draw of the epoch once. Each rank drops less than a batch.
        let ranks =
            (0..order.world).map(|rank| order.builder(Samples::new(order.len), rank).build().unwrap());
        let mut seen = BTreeSet::new();
        let mut counts = BTreeSet::new();
        for loader in ranks {
            let mut count = 0;
            for batch in loader.epoch(2) {
                let info = batch.unwrap().info;
                count += 1;
                let mut own = info.items[..info.valid].iter();
                assert!(own.all(|item| seen.insert(item.position)), "{text}: {info:?}");
            }
            counts.insert(count);
        }
        assert_eq!(counts.len(), 1, "{text}: ranks have equally many batches");
        if order.uneven == Uneven::Pad && !order.drop_last && order.by < 4 {
            assert_eq!(seen, (0..order.len as u64).collect(), "{text}");
        }
    }
}

/// Trainers stop at random batches, and are resumed with other numbers of ranks.
#[test]
fn repeated_loader_resume_yields_the_same_epoch() {
    let begun = Instant::now();
    for round in 0..ROUNDS {
        if round >= FIRST && begun.elapsed() > LONG {
            break;
        }
        let mut random = Random(1000 + round);
        let (len, seed) = (random.below(150) as usize, random.below(u64::MAX));
        let build = |rank, world, workers| {
            let builder = bare(Samples::new(len), workers).shuffle(true).seed(seed).global_batch_size(12);
            builder.distributed(rank, world).build().unwrap()
        };
        // Global batches, made by one rank.
        let expected: Vec<Vec<u64>> = all(build(0, 1, 0).epoch(4)).into_iter().map(|batch| batch.3).collect();
        let mut state: LoaderState = build(0, 1, 0).epoch(4).state();
        let mut got: Vec<Vec<u64>> = Vec::new();
        let mut worlds = Vec::new();
        loop {
            let world = [1, 2, 3, 4, 6, 12][random.below(6) as usize];
            // Only one rank has workers, to save time.
            let with_workers = random.below(u64::from(world)) as u32;
            let workers = |rank| if rank == with_workers { random.0 as usize % 3 } else { 0 };
            worlds.push(world);
            let loaders: Vec<_> = (0..world).map(|rank| build(rank, world, workers(rank))).collect();
            let mut ranks: Vec<_> = loaders.iter().map(|loader| loader.resume(&state).unwrap()).collect();
            let steps = 1 + random.below(5);
            let mut ended = false;
            for _ in 0..steps {
                let mut rows = Vec::new();
                for batches in &mut ranks {
                    let Some(batch) = next(batches) else {
                        ended = true;
                        continue;
                    };
                    let batch = batch.unwrap();
                    let valid = batch.info.valid;
                    rows.extend(bytes(&batch).3.into_iter().take(3 * valid));
                }
                if ended {
                    assert!(rows.is_empty(), "all ranks end at once: {worlds:?}");
                    break;
                }
                got.push(rows);
            }
            let states: Vec<LoaderState> = ranks.iter().map(|batches| kept(&batches.state())).collect();
            assert!(states.iter().all(|of| (of.epoch(), of.next()) == (states[0].epoch(), states[0].next())));
            state = states[random.below(u64::from(world)) as usize].clone();
            if ended {
                break;
            }
        }
        assert_eq!(got, expected, "round {round}: {len} samples, ranks {worlds:?}");
    }
}
