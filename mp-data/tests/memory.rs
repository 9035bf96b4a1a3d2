//! Shared memory that is too small for all prefetched batches: batches are made one by one, with the same
//! contents.

mod common;

use common::{alive, eventually, next};
use mp_core::{Arena, ArenaOptions};
use mp_data::{AnyResult, Context, DataLoader, Dataset, Item, Objects, OnError};
use mp_tensor::{SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

const ROW: usize = 1 << 20;

/// Number of batches that were made, except the first batch, which waits until there are `wanted` of them.
/// The number never falls, although the memory of a batch may be released before the first batch checks the
/// number.
#[derive(Serialize, Deserialize)]
struct Others {
    seen: SharedTensor<i64>,
    wanted: i64,
}

impl Others {
    fn new(wanted: i64) -> Others {
        Others { seen: Tensor::zeros([1]).unwrap().share(), wanted }
    }

    fn count(&self) {
        self.seen.fetch_add(0, 1);
    }

    fn wait(&self) {
        eventually("others have the memory", || self.seen.load(0) >= self.wanted);
    }
}

/// Dataset with rows of one MiB. Optionally, the first batch waits until other batches were made.
#[derive(Serialize, Deserialize)]
struct Large(usize, Option<Others>);

impl Dataset for Large {
    type Batch = Tensor<u8>;

    fn len(&self) -> usize {
        self.0
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Tensor<u8>>) -> AnyResult<Tensor<u8>> {
        let is_first = items[0].index == 0;
        if let (true, Some(others)) = (is_first, &self.1) {
            others.wait();
        }
        let batch = cx.rows(items, &[ROW], |item, _, row| {
            row.fill(item.index as u8);
            Ok(())
        })?;
        if let (false, Some(others)) = (is_first, &self.1) {
            others.count();
        }
        Ok(batch)
    }
}

#[test]
fn batch_is_retried_then_fails_if_memory_is_exhausted() {
    // Room for three batches of 16 MiB and the tables, but not for four.
    Arena::configure(ArenaOptions::new().size(69 << 20)).unwrap();
    too_little_to_make_what_is_prefetched();
    remade_batch_skips_the_same_samples();
    reply_without_memory_is_sent_again();
    dropped_loader_frees_its_memory();
}

fn too_little_to_make_what_is_prefetched() {
    let build =
        |batch| DataLoader::builder(Large(96, None)).batch_size(batch).num_workers(2).prefetch_factor(4);
    // Eight batches would need 128 MiB.
    let loader = build(16).build().unwrap();
    for ordered in [true, false] {
        let loader = build(16).in_order(ordered).build().unwrap();
        let mut batches = loader.epoch(0);
        let mut seen = Vec::new();
        while let Some(batch) = next(&mut batches) {
            let batch = batch.unwrap();
            let rows = batch.as_slice().unwrap();
            assert!(
                batch
                    .info
                    .items
                    .iter()
                    .zip(rows.chunks(ROW))
                    .all(|(item, row)| row.iter().all(|b| *b == item.index as u8))
            );
            seen.extend(batch.info.indices());
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..96).collect::<Vec<_>>());
    }
    drop(loader);
    // A single batch is too large: each batch is an error, and no wait is endless.
    let loader = build(80).build().unwrap();
    let mut batches = loader.epoch(0);
    let error = next(&mut batches).unwrap().unwrap_err();
    assert!(error.to_string().contains("memory"), "{error}");
    assert!(next(&mut batches).unwrap().is_ok());
    assert!(next(&mut batches).is_none());
    // With a budget, no more batches are begun than fit.
    let loader = build(16).memory_budget(32 << 20).build().unwrap();
    assert_eq!(loader.epoch(0).filter(Result::is_ok).count(), 6);

    // Prefetched batches release their memory for the first batch, and are made again. All batches arrive in
    // order.
    let large = Large(96, Some(Others::new(3)));
    let loader = DataLoader::builder(large).batch_size(16).num_workers(2).prefetch_factor(4).build().unwrap();
    let mut batches = loader.epoch(0);
    let mut numbers = Vec::new();
    while let Some(batch) = next(&mut batches) {
        let batch = batch.unwrap();
        let rows = batch.as_slice().unwrap();
        assert_eq!(rows[rows.len() - 1], batch.info.items[15].index as u8);
        numbers.push(batch.info.number);
    }
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
}

/// Dataset with rows of one MiB. The first batch waits until other batches were made. Each other batch has a
/// sample that fails.
#[derive(Serialize, Deserialize)]
struct Lacking(Others);

impl Dataset for Lacking {
    type Batch = Tensor<u8>;

    fn len(&self) -> usize {
        96
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Tensor<u8>>) -> AnyResult<Tensor<u8>> {
        let is_first = items[0].index == 0;
        if is_first {
            self.0.wait();
        }
        let batch = cx.rows(items, &[ROW], |item, _, row| {
            if item.index >= 16 && item.index % 16 == 4 {
                return Err("it is bad".into());
            }
            row.fill(item.index as u8);
            Ok(())
        })?;
        if !is_first {
            self.0.count();
        }
        Ok(batch)
    }
}

/// A batch with a skipped sample that is made again for lack of memory reports the same skipped sample.
fn remade_batch_skips_the_same_samples() {
    let builder =
        DataLoader::builder(Lacking(Others::new(3))).batch_size(16).num_workers(2).prefetch_factor(4);
    let loader = builder.on_error(OnError::SkipSample).build().unwrap();
    let mut batches = loader.epoch(0);
    for number in 0..6 {
        let batch = next(&mut batches).unwrap().unwrap();
        let lacks: Vec<usize> = batch.info.skipped.iter().map(|skipped| skipped.item.index).collect();
        assert_eq!(batch.info.number, number);
        assert_eq!(lacks, if number == 0 { vec![] } else { vec![16 * number as usize + 4] });
        assert_eq!((batch.len() / ROW, batch.info.valid), (16 - lacks.len(), 16 - lacks.len()));
    }
    assert!(next(&mut batches).is_none());
    assert_eq!(loader.metrics().skipped_samples, 5);
}

/// Dataset with encoded texts of this number of bytes. The first batch waits until other batches were sent.
#[derive(Serialize, Deserialize)]
struct Texts(usize, Others);

impl Dataset for Texts {
    type Batch = Objects<String>;

    fn len(&self) -> usize {
        8
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        match items[0].index {
            0 => self.1.wait(),
            // The worker that makes the other batches has sent the previous one.
            _ => self.1.count(),
        }
        cx.rows(items, (), |item, _, text| {
            *text = Some(char::from(b'a' + item.index as u8).to_string().repeat(self.0));
            Ok(())
        })
    }
}

/// If the reply can't be sent, the worker ends, and the batch is made again.
fn reply_without_memory_is_sent_again() {
    let texts = Texts(20 << 20, Others::new(3));
    let builder = DataLoader::builder(texts).num_workers(2).prefetch_factor(4).retries(20);
    let loader = builder.build().unwrap();
    let mut batches = loader.epoch(0);
    let mut letters = String::new();
    while let Some(batch) = next(&mut batches) {
        let text = &batch.unwrap()[0];
        assert_eq!(text.len(), 20 << 20);
        letters.push_str(&text[..1]);
    }
    assert_eq!(letters, "abcdefgh");
    println!("{}", loader.metrics());
}

/// A loader frees its memory, also if it is dropped before its iterator.
fn dropped_loader_frees_its_memory() {
    let in_use = || {
        let arena = Arena::current().unwrap();
        arena.reclaim().unwrap();
        let stats = arena.memory_stats();
        (stats.live_blocks, stats.queued, stats.members)
    };
    let nothing = (0, 0, 1);
    eventually("what was before is gone", || in_use() == nothing);
    for loader_first in [true, false] {
        let loader = DataLoader::builder(Large(96, None)).num_workers(2).prefetch_factor(8).build().unwrap();
        let mut batches = loader.epoch(0);
        let pids = loader.pids();
        assert_eq!(next(&mut batches).unwrap().unwrap().info.number, 0);
        if loader_first {
            drop(loader);
            // The iterator keeps the workers alive.
            assert_eq!(next(&mut batches).unwrap().unwrap().info.number, 1);
            drop(batches);
        } else {
            drop(batches);
            assert!(pids.iter().all(|pid| alive(*pid)), "the loader keeps its workers");
            drop(loader);
        }
        eventually("its workers end", || !pids.iter().any(|pid| alive(*pid)));
        eventually("nothing is left", || in_use() == nothing);
    }
}
