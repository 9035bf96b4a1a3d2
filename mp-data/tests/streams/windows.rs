//! Windows that are read again after their shards have begun to fail: no sample is delivered twice, and only
//! unreadable samples are missing.

use std::collections::BTreeSet;

use mp_data::{OnError, StreamLoaderBuilder, StreamState};

use crate::common::shards::{Shards, When, next_of, places, streamed, streaming_of};
use crate::common::{Fault, Random};

/// Delivered batches and reported losses of one run.
#[derive(Default)]
struct Given {
    places: Vec<(u64, u64)>,
    /// Skipped samples: shard, sample, and `true` if later samples of the shard may be missing, too.
    reported: Vec<(u64, u64, bool)>,
    /// Number of lost batches: skipped batches, and batches that were replaced by an error.
    lost: u64,
}

impl Given {
    /// Takes at most `most` batches, beginning at the state `from`. Returns the new state, and `true` if
    /// there are more batches.
    fn take(
        &mut self,
        loader: StreamLoaderBuilder<Shards>,
        from: Option<&StreamState>,
        most: u64,
    ) -> (StreamState, bool) {
        let loader = loader.build().unwrap();
        let mut batches = match from {
            Some(state) => loader.resume(state).unwrap(),
            None => loader.epoch(0),
        };
        let mut goes_on = true;
        for _ in 0..most {
            let Some(next) = next_of(&mut batches) else {
                goes_on = false;
                break;
            };
            let at = |skipped: &mp_data::SkippedSample| {
                (skipped.shard.unwrap() as u64, skipped.item.index as u64, skipped.rest_of_shard)
            };
            match next {
                Ok(batch) => {
                    self.reported.extend(batch.info.skipped.iter().map(at));
                    self.places.extend(places(&[streamed(&batch)]));
                }
                Err(error) => self.note(&error),
            }
        }
        batches.skipped_batches().iter().for_each(|error| self.note(error));
        let metrics = loader.metrics();
        assert!(metrics.failed + metrics.skipped_batches <= self.lost);
        (batches.state(), goes_on)
    }

    fn note(&mut self, error: &mp_data::LoadError) {
        self.lost += 1;
        let (Some(shard), Some(item)) = (error.shard, error.item) else { panic!("not known where: {error}") };
        self.reported.push((shard as u64, item.index as u64, true));
        // The error of a batch without samples names all of its skipped samples.
        let text = error.to_string();
        let named = text.split("sample ").filter_map(|lacks| lacks.split_once(" of shard "));
        for (sample, rest) in named.filter(|(sample, _)| sample.bytes().all(|byte| byte.is_ascii_digit())) {
            let shard = rest.split(' ').next().unwrap();
            let reported = (shard.parse().unwrap(), sample.parse().unwrap(), true);
            if !self.reported.contains(&reported) {
                self.reported.push(reported);
            }
        }
    }

    /// Checks that no sample was delivered twice, and that missing samples were reported. For each lost
    /// batch, up to `batch` missing samples need no report. Returns the missing samples.
    fn check(&self, sizes: &[u64], batch: u64, what: &str) -> BTreeSet<(u64, u64)> {
        let given: BTreeSet<_> = self.places.iter().copied().collect();
        assert_eq!(given.len(), self.places.len(), "{what}: none twice in {:?}", self.places);
        let all =
            sizes.iter().enumerate().flat_map(|(shard, size)| (0..*size).map(move |i| (shard as u64, i)));
        let missing: BTreeSet<_> = all.filter(|place| !given.contains(place)).collect();
        let is_reported = |&(shard, index): &(u64, u64)| {
            let is = |reported: &(u64, u64, bool)| {
                reported.0 == shard && (reported.1 == index || reported.2 && reported.1 < index)
            };
            self.reported.iter().any(is)
        };
        let others = missing.iter().filter(|place| !is_reported(place)).count() as u64;
        assert!(others <= self.lost * batch, "{what}: {missing:?} missing, reported {:?}", self.reported);
        missing
    }
}

#[test]
fn window_of_several_shards_yields_readable_rest() {
    // A window has shard 0 and four samples of shard 1. Three of its samples are delivered before the
    // failure.
    const SIZES: [u64; 3] = [6, 9, 5];
    for tokens in [true, false] {
        let of = |shards: Shards, how| {
            let shards = if tokens { shards } else { shards.without_tokens() };
            streaming_of(shards, 0).batch_size(3).lanes(1).shuffle_window(10).on_error(how)
        };
        let mut before = Given::default();
        let (state, _) = before.take(of(Shards::new(&SIZES), OnError::Report), None, 1);
        assert_eq!(before.places.len(), 3);
        for (when, shard, sample) in [
            (When::Open, 0, 0),
            (When::Read, 0, 2),
            (When::Open, 1, 0),
            (When::Read, 1, 1),
            (When::Read, 1, 4),
        ] {
            for how in [OnError::SkipSample, OnError::SkipBatch, OnError::Report] {
                let what = format!("{when:?} {shard} {sample} {how:?} {tokens}");
                let shards = Shards::new(&SIZES).with((when, shard, sample), Fault::Panic, -1);
                let mut given = Given { places: before.places.clone(), ..Given::default() };
                given.take(of(shards, how), Some(&state), u64::MAX);
                let missing = given.check(&SIZES, 3, &what);
                assert_eq!(given.reported.len(), 1, "{what}: {:?}", given.reported);
                if how == OnError::SkipSample {
                    // Exactly the unreadable samples that were not delivered before are missing.
                    let rest = (sample..SIZES[shard]).map(|sample| (shard as u64, sample));
                    let expected: BTreeSet<_> = rest.filter(|place| !before.places.contains(place)).collect();
                    assert_eq!(missing, expected, "{what}");
                }
            }
        }
    }
}

#[test]
fn lost_batch_costs_no_readable_sample() {
    const SIZES: [u64; 2] = [16, 24];
    for window in [0, 16] {
        let of = |shards, how| {
            let loader = streaming_of(shards, 0).batch_size(8).lanes(1).retries(0);
            loader.shuffle_window(window).on_error(how)
        };
        // The batch with sample 1 is lost. Later, samples of its shard from 3 on can't be read.
        let mut given = Given::default();
        let bad = || Shards::new(&SIZES).with((When::Row, 0, 1), Fault::Error, -1);
        let mut state = None;
        while given.lost == 0 {
            state = Some(given.take(of(bad(), OnError::Report), state.as_ref(), 1).0);
        }
        let shorter = Shards::new(&SIZES).with((When::Read, 0, 3), Fault::Panic, -1);
        given.take(of(shorter, OnError::SkipSample), state.as_ref(), u64::MAX);
        let missing = given.check(&SIZES, 8, &format!("window {window}"));
        assert!(missing.iter().all(|(shard, sample)| *shard == 0 && *sample >= 3), "{window}: {missing:?}");
    }
}

#[test]
fn failed_row_in_a_cut_window_costs_one_batch() {
    const SIZES: [u64; 2] = [16, 24];
    let of = |shards| {
        let loader = streaming_of(shards, 0).batch_size(4).lanes(1).retries(0);
        loader.shuffle_window(16).on_error(OnError::Report)
    };
    let mut tried = 0;
    for (cut, bad) in (1..16).flat_map(|cut| (0..cut).map(move |bad| (cut, bad))) {
        let mut given = Given::default();
        let (state, _) = given.take(of(Shards::new(&SIZES)), None, 1);
        if given.places.contains(&(0, bad)) {
            continue;
        }
        let shards = Shards::new(&SIZES).with((When::Read, 0, cut), Fault::Panic, -1);
        given.take(of(shards.with((When::Row, 0, bad), Fault::Error, -1)), Some(&state), u64::MAX);
        let what = format!("cut at {cut}, row {bad}");
        let of_row = given.reported.iter().filter(|reported| (reported.0, reported.1) == (0, bad)).count();
        assert_eq!(of_row, 1, "{what}: {:?}", given.reported);
        // The row's batch and the unreadable samples may be missing.
        let missing = given.check(&SIZES, 4, &what);
        let others = missing.iter().filter(|(shard, sample)| *shard != 0 || *sample < cut).count();
        assert!(others <= 4, "{what}: {missing:?}");
        tried += 1;
    }
    assert!(tried > 50);
}

#[test]
fn shorter_shard_costs_its_missing_samples() {
    let of = |sizes: &[u64]| {
        let loader = streaming_of(Shards::new(sizes), 0).batch_size(3).lanes(1).shuffle_window(10);
        loader.shuffle_window(10).on_error(OnError::SkipSample)
    };
    let mut given = Given::default();
    let (state, _) = given.take(of(&[6, 9]), None, 1);
    let before: BTreeSet<_> = given.places.iter().copied().collect();
    given.take(of(&[4, 9]), Some(&state), u64::MAX);
    let missing = given.check(&[6, 9], 3, "shorter");
    assert_eq!(missing, [(0, 4), (0, 5)].into_iter().filter(|place| !before.contains(place)).collect());
    assert_eq!(given.reported, [(0, 4, true)]);
}

#[test]
fn failing_windows_repeat_no_sample_and_report_losses() {
    let mut random = Random(11);
    for round in 0..400 {
        let sizes: Vec<u64> = (0..2 + random.below(5)).map(|_| random.below(9)).collect();
        let (batch, lanes, window) = (1 + random.below(4), 1 + random.below(2), random.below(14));
        let how = [OnError::SkipSample, OnError::SkipBatch, OnError::Report][random.below(3) as usize];
        let (tokens, in_order) = (random.below(2) == 0, random.below(3) > 0);
        let workers = usize::from(round % 20 == 0);
        let what = format!("round {round}: {sizes:?}, {batch} {lanes} {window} {how:?} {tokens} {in_order}");
        let (mut given, mut state, mut goes_on) = (Given::default(), None, true);
        while goes_on {
            // In each run, other shards fail, at other positions, always or once.
            let mut shards = Shards::new(&sizes);
            for _ in 0..random.below(4) {
                let when = [When::Open, When::Read, When::Row][random.below(3) as usize];
                let at = (when, random.below(sizes.len() as u64) as usize, random.below(9));
                let fault =
                    [Fault::Panic, Fault::Error, Fault::Kill][random.below(2 + workers as u64) as usize];
                shards = shards.with(at, fault, [-1, 1][random.below(2) as usize]);
            }
            let shards = if tokens { shards } else { shards.without_tokens() };
            let loader = streaming_of(shards, workers).batch_size(batch).lanes(lanes).on_error(how);
            let loader = loader.shuffle_window(window).retries(1).in_order(in_order);
            let (now, more) = given.take(loader, state.as_ref(), 1 + random.below(4));
            let text = serde_json::to_string(&now).unwrap();
            (state, goes_on) = (Some(serde_json::from_str(&text).unwrap()), more);
        }
        given.check(&sizes, batch, &what);
    }
}
