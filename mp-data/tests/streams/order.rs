//! Order of a stream's samples, despite deaths and resumes.

use std::collections::BTreeSet;

use mp_data::StreamState;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::shards::{Shards, Streamed, all_of, next_of, places, streamed, streaming, streaming_of};
use crate::common::{Random, eventually, in_use};
use crate::{SIZES, shuffled};

fn golden(name: &str) -> Vec<Vec<u64>> {
    let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let numbers = |line: &str| line.split_whitespace().map(|n| n.parse().unwrap()).collect();
    std::fs::read_to_string(path).unwrap().lines().map(numbers).collect()
}

#[test]
fn named_stream_orders_match_the_golden_files() {
    let orders = [
        ("stream-1", streaming(&SIZES, 0).lanes(3)),
        ("stream-1-shuffled", shuffled(0)),
        ("stream-1-rank", shuffled(0).lanes(16).distributed(1, 2).drop_last(true)),
        ("stream-1-steps", shuffled(0).lanes(2).steps(40)),
    ];
    for (name, builder) in orders {
        let batches = all_of(builder.build().unwrap().epoch(3));
        let is: Vec<Vec<u64>> = batches
            .iter()
            .map(|(_, number, rows, _)| {
                let of = rows.chunks(4).flat_map(|row| [row[0], row[1], row[3]]);
                [*number, rows.len() as u64 / 4].into_iter().chain(of).collect()
            })
            .collect();
        assert_eq!(is, golden(name), "{name}");
    }
}

#[test]
fn streams_are_equal_for_any_workers_and_threads() {
    let expected = [0, 1].map(|epoch| all_of(shuffled(0).build().unwrap().epoch(epoch)));
    assert_ne!(expected[0], expected[1]);
    let each: BTreeSet<_> = places(&expected[0]).into_iter().collect();
    assert_eq!((each.len(), places(&expected[0]).len()), (48, 48), "each sample once");
    for (workers, threads) in [(1, 1), (2, 1), (3, 2)] {
        let loader = shuffled(workers).threads_per_worker(threads).build().unwrap();
        assert_eq!(all_of(loader.epoch(0)), expected[0], "{workers} workers, {threads} threads");
        assert_eq!(all_of(loader.epochs(0..2)), expected.concat());
    }
    let of = |workers| streaming_of(Shards::new(&SIZES).without_tokens(), workers).lanes(3).shuffle_window(7);
    for workers in [0, 2] {
        assert_eq!(all_of(of(workers).build().unwrap().epoch(1)), expected[1]);
    }
    let mut unordered = all_of(shuffled(2).in_order(false).build().unwrap().epoch(1));
    unordered.sort_by_key(|batch| batch.1);
    assert_eq!(unordered, expected[1]);
}

#[test]
fn shard_reader_stays_open_in_its_worker() {
    let loader = streaming(&[400, 400], 1).build().unwrap();
    assert_eq!(all_of(loader.epoch(0)).len(), 200);
    assert_eq!(loader.dataset().opened.get(&[0]).unwrap(), 2);
    // There are two workers. A lane may move to a worker that is idle.
    let loader = streaming(&[400, 400], 2).build().unwrap();
    assert_eq!(all_of(loader.epoch(0)).len(), 200);
    let opened = loader.dataset().opened.get(&[0]).unwrap();
    assert!((2..=200).contains(&opened), "{opened}");
}

#[test]
fn stream_states_of_many_lanes_last_for_1024_batches() {
    let loader = streaming(&[36; 200], 0).lanes(200).build().unwrap();
    let mut batches = loader.epoch(0);
    let mut states = Vec::new();
    while let Some(batch) = next_of(&mut batches) {
        let number = batch.unwrap().info.number;
        assert_eq!(number as usize, states.len());
        states.push(batches.state());
    }
    assert_eq!((states.len(), batches.state_after(1800 - 1025)), (1800, None));
    for number in [776, 1000, 1799] {
        assert!(batches.state_after(number).as_ref() == states.get(number as usize), "{number}");
    }
}

/// Lanes of two epochs may have the same position. A worker must not confuse them.
#[test]
fn open_lane_of_a_worker_belongs_to_its_epoch() {
    let of = || streaming(&[9; 4], 0).lanes(1).shuffle(true).build().unwrap();
    let loader = of();
    let mut batches = loader.epoch(1);
    let mut expected = vec![streamed(&next_of(&mut batches).unwrap().unwrap())];
    let state = batches.state();
    expected.extend(all_of(batches));
    for other in [0, 2, 3, 4] {
        let loader = of();
        drop(next_of(&mut loader.epoch(other)).unwrap().unwrap());
        assert_eq!(all_of(loader.resume(&state).unwrap()), expected[1..], "{other}");
    }
}

/// An epoch of a shuffled loader, with killed workers, dropped iterators, and resumes with other numbers of
/// workers.
#[test]
fn stream_delivers_each_sample_once_despite_kills() {
    let mut random = Random(5);
    for round in 0..10 {
        let sizes: Vec<u64> = (0..1 + random.below(9)).map(|_| random.below(25)).collect();
        let (batch, lanes, window) = (1 + random.below(6), 1 + random.below(5), random.below(12));
        let steps =
            (random.below(3) == 0 && sizes.iter().any(|size| *size > 0)).then(|| 1 + random.below(40));
        let in_order = random.below(3) > 0;
        let tokens = random.below(2) == 0;
        let of = |workers: usize| {
            let shards = Shards::new(&sizes);
            let shards = if tokens { shards } else { shards.without_tokens() };
            let mut builder = streaming_of(shards, workers).batch_size(batch).lanes(lanes).in_order(in_order);
            if window > 0 {
                builder = builder.shuffle_window(window);
            }
            if let Some(steps) = steps {
                builder = builder.steps(steps);
            }
            builder.retries(10)
        };
        let what =
            format!("round {round}: {sizes:?}, {batch} {lanes} {window} {steps:?} {in_order} {tokens}");
        let expected = all_of(of(0).build().unwrap().epochs(0..2));
        assert!(steps.is_none_or(|steps| expected.len() as u64 == 2 * steps), "{what}");
        let mut all: Vec<Streamed> = Vec::new();
        let mut state: Option<StreamState> = None;
        loop {
            let loader = of(random.below(4) as usize).build().unwrap();
            let mut batches = match &state {
                None => loader.epochs(0..2),
                Some(state) => {
                    let text = serde_json::to_string(state).unwrap();
                    loader.resume_until(&serde_json::from_str(&text).unwrap(), 2).unwrap()
                }
            };
            let mut kept = Vec::new();
            for _ in 0..random.below(20) {
                let pids = loader.pids();
                if random.below(4) == 0 && !pids.is_empty() {
                    let pid = pids[random.below(pids.len() as u64) as usize] as i32;
                    // The process may have died before.
                    _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
                }
                let Some(next) = next_of(&mut batches) else { break };
                let next = next.unwrap();
                kept.push(batches.state());
                assert_eq!(batches.state_after(next.info.number).as_ref(), kept.last(), "{what}");
                all.push(streamed(&next));
            }
            state = Some(batches.state());
            if next_of(&mut batches).is_none() {
                break;
            }
            // The last few batches are forgotten: the trainer resumes from an older state.
            let back = random.below(3).min(kept.len().saturating_sub(1) as u64) as usize;
            if back > 0 {
                state = Some(kept[kept.len() - 1 - back].clone());
                all.truncate(all.len() - back);
            }
        }
        if !in_order {
            all.sort_by_key(|batch| (batch.0, batch.1));
        }
        assert_eq!(all, expected, "{what}");
    }
}

#[test]
fn ranks_share_shards_and_have_equal_steps() {
    let rank = |rank, world, workers| shuffled(workers).distributed(rank, world);
    let mut seen = Vec::new();
    for r in 0..3 {
        let all = all_of(rank(r, 3, 1).build().unwrap().epoch(0));
        assert!(places(&all).iter().all(|(shard, _)| shard % 3 == u64::from(r)));
        seen.extend(places(&all));
    }
    seen.sort_unstable();
    let expected: Vec<_> =
        SIZES.iter().zip(0..).flat_map(|(n, shard)| (0..*n).map(move |i| (shard, i))).collect();
    assert_eq!(seen, expected);
    for r in 0..3 {
        for workers in [0, 2] {
            let loader = rank(r, 3, workers).steps(9).build().unwrap();
            assert_eq!(loader.epoch(0).size_hint().1, Some(9));
            let batches = all_of(loader.epochs(0..2));
            assert_eq!(batches.len(), 18);
            assert_eq!(batches.iter().filter(|batch| batch.0 == 1).count(), 9);
            // Samples that are read in a second pass get other random numbers.
            let random: BTreeSet<_> =
                batches.iter().flat_map(|b| b.2.chunks(4).map(|row| row[3]).collect::<Vec<_>>()).collect();
            assert_eq!(random.len(), places(&batches).len());
        }
    }
    // Shards without samples: the result is an error, not an endless search.
    let loader = streaming(&[0, 0], 1).steps(3).build().unwrap();
    let error = next_of(&mut loader.epoch(0)).unwrap().unwrap_err();
    assert!(error.to_string().contains("`steps`"), "{error}");
    for workers in [0, 1] {
        assert!(all_of(streaming(&[0, 0], workers).build().unwrap().epochs(0..u64::MAX)).is_empty());
    }
}

#[test]
fn dropped_stream_epoch_releases_its_memory() {
    let loader = streaming(&[100; 4], 2).prefetch_factor(4).memory_budget(1 << 20).build().unwrap();
    let expected = all_of(loader.epoch(1));
    let before = in_use();
    for _ in 0..5 {
        let mut batches = loader.epoch(0);
        drop(next_of(&mut batches).unwrap().unwrap());
    }
    assert_eq!(all_of(loader.epoch(1)), expected);
    eventually("nothing is left", || in_use() <= before);
    assert!(loader.metrics().batches >= expected.len() as u64 * 2, "{}", loader.metrics());
    assert!(format!("{loader:?}").contains("4 shards"));
}

#[test]
fn shuffle_window_without_shuffle_is_refused() {
    let of = || streaming_of(Shards::new(&SIZES), 0);
    for builder in [of().shuffle(false).shuffle_window(7), of().shuffle_window(7).shuffle(false)] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains("`shuffle`") && error.contains("`shuffle_window`"), "{error}");
    }
    for builder in [of().shuffle(true).shuffle_window(7), of().shuffle(false).shuffle_window(0)] {
        builder.build().unwrap();
    }
}
