//! Counterparts of torch's and torchdata's tests of iterable datasets, and of batches with names.

use std::collections::BTreeMap;

use mp_data::{
    AnyResult, Batch, Context, DataLoader, Dataset, FrozenStrings, Item, IterableDataset, Objects, Ragged,
    Samples, ShardPosition, ShardReader, StreamLoader, StreamState, Strings,
};
use mp_spawn::Process;
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::common::next;
use crate::common::shards::{all_of, next_of, streamed, streaming};
use crate::shuffled;

/// Dataset of shards: shard `(a, b)` has the numbers from a to b. The readers are iterators, without tokens.
#[derive(Serialize, Deserialize)]
struct Counting(Vec<(i64, i64)>);

type Numbers = Box<dyn Iterator<Item = AnyResult<i64>>>;

impl IterableDataset for Counting {
    type Batch = Tensor<i64>;
    type Reader = Numbers;

    fn shards(&self) -> usize {
        self.0.len()
    }

    fn open(&mut self, shard: usize, at: ShardPosition) -> AnyResult<Numbers> {
        assert_eq!(at, ShardPosition::default());
        let (from, to) = self.0[shard];
        Ok(Box::new((from..to).map(Ok)))
    }

    fn fetch(&mut self, samples: Samples<i64>, cx: &mut Context<Tensor<i64>>) -> AnyResult<Tensor<i64>> {
        cx.rows_from(samples, &[], |number, _, row| {
            row[0] = number;
            Ok(())
        })
    }
}

fn numbers<D: IterableDataset<Batch = Tensor<i64>>>(loader: &StreamLoader<D>) -> Vec<Vec<i64>> {
    let mut batches = loader.epoch(0);
    std::iter::from_fn(|| next_of(&mut batches)).map(|batch| batch.unwrap().to_vec()).collect()
}

#[test]
fn test_iterable_style_dataset() {
    // torch's first case: one worker, batches of 7 of 20 samples. The batches are the same.
    let of = |sizes: &[(i64, i64)], drop, workers| {
        let counting = Counting(sizes.to_vec());
        StreamLoader::builder(counting).batch_size(7).drop_last(drop).num_workers(workers).build().unwrap()
    };
    for workers in [0, 1] {
        let batches = numbers(&of(&[(0, 20)], false, workers));
        assert_eq!(batches, [(0..7).collect(), (7..14).collect(), (14..20).collect::<Vec<_>>()]);
        assert_eq!(numbers(&of(&[(0, 20)], true, workers)).len(), 2);
    }
    // Three workers with 20, 20 and 7 samples. Short and dropped batches belong to workers in torch, and to
    // lanes here.
    let sizes = [(0, 20), (100, 120), (200, 207)];
    for workers in [0, 2, 3] {
        let batches = numbers(&of(&sizes, false, workers));
        let begins: Vec<i64> = batches.iter().map(|batch| batch[0]).collect();
        assert_eq!(begins, [0, 100, 200, 7, 107, 14, 114], "{workers}");
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [7, 7, 7, 7, 7, 6, 6]);
        assert_eq!(numbers(&of(&sizes, true, workers)).len(), 5);
    }
}

#[test]
fn test_iterabledataset_len() {
    // The number of batches is known only with `steps`.
    let loader = streaming(&[10, 10], 1).build().unwrap();
    assert_eq!(loader.epoch(0).size_hint(), (0, None));
    let loader = streaming(&[10, 10], 1).steps(7).build().unwrap();
    let mut batches = loader.epochs(0..2);
    for left in (0..14).rev() {
        assert!(next_of(&mut batches).unwrap().is_ok());
        assert_eq!(batches.size_hint().1, Some(left));
    }
    assert!(next_of(&mut batches).is_none());
}

#[test]
fn test_chain_iterable_style_dataset() {
    for workers in [0, 2] {
        let chain = Counting(vec![(0, 3), (3, 9)]).chain(Counting(vec![(9, 16)]));
        let loader =
            StreamLoader::builder(chain).batch_size(4).lanes(1).num_workers(workers).build().unwrap();
        assert_eq!(numbers(&loader).concat(), (0..16).collect::<Vec<_>>());
    }
}

/// torchdata's tests of states: at each batch, at the end of an epoch, over epochs, as JSON, with other
/// numbers of workers.
#[test]
fn stream_resumes_after_the_last_delivered_batch() {
    let expected = [2, 3].map(|epoch| all_of(shuffled(0).build().unwrap().epoch(epoch))).concat();
    let loader = shuffled(2).prefetch_factor(4).build().unwrap();
    let mut batches = loader.epochs(2..4);
    let mut kept = vec![batches.state()];
    while let Some(batch) = next_of(&mut batches) {
        assert_eq!(streamed(&batch.unwrap()), expected[kept.len() - 1]);
        kept.push(batches.state());
    }
    assert_eq!(kept.len(), expected.len() + 1);
    assert_eq!((kept[0].epoch(), kept[0].batches()), (2, 0));
    for (given, state) in kept.iter().enumerate() {
        let text = serde_json::to_string(state).unwrap();
        let state: StreamState = serde_json::from_str(&text).unwrap();
        let other = shuffled(given % 4).build().unwrap();
        let rest = all_of(other.resume_until(&state, 4).unwrap());
        assert_eq!(rest, expected[given..], "after {given}");
    }
    // A resume of a resume, at each batch.
    let mut state = kept[0].clone();
    for batch in &expected {
        let loader = shuffled(0).build().unwrap();
        let mut batches = loader.resume_until(&state, 4).unwrap();
        assert_eq!(streamed(&next_of(&mut batches).unwrap().unwrap()), *batch);
        state = batches.state();
    }
    assert!(all_of(shuffled(1).build().unwrap().resume_until(&state, 4).unwrap()).is_empty());
    assert!(batches.state_after(10_000).is_none());
}

#[test]
fn verify_finds_readers_opened_at_wrong_positions() {
    for workers in [0, 1] {
        let found = shuffled(workers).build().unwrap().verify(100).unwrap();
        assert!(found.is_same() && found.batches == 14, "{found}");
    }
    for workers in [0, 1] {
        let of = |late| StreamLoader::builder(late).batch_size(3).num_workers(workers).build().unwrap();
        let found = of(Late { ends: false }).verify(2).unwrap();
        let text = found.to_string();
        assert_eq!(found.differences.len(), 1, "{text}");
        assert!(text.contains("batch 1, sample 3 of shard 0: column 0 is not the same twice"), "{text}");
        // A reader that is opened at sample 3 returns no samples, so the second attempt has no batch.
        let found = of(Late { ends: true }).verify(2).unwrap();
        let [difference] = &found.differences[..] else { panic!("{found}") };
        assert_eq!((difference.batch, difference.shard, difference.item.index), (1, Some(0), 3), "{found}");
    }
}

/// Shard whose readers silently skip a sample, or all remaining samples, if they are opened after the first
/// sample.
#[derive(Serialize, Deserialize)]
struct Late {
    ends: bool,
}

struct LateReader {
    token: u64,
    next: i64,
}

impl ShardReader for LateReader {
    type Sample = i64;

    fn read(&mut self) -> AnyResult<Option<i64>> {
        (self.token, self.next) = (self.token + 1, self.next + 1);
        Ok((self.next < 70).then_some(self.next))
    }

    fn token(&self) -> Option<u64> {
        Some(self.token)
    }
}

impl IterableDataset for Late {
    type Batch = Tensor<i64>;
    type Reader = LateReader;

    fn shards(&self) -> usize {
        1
    }

    fn open(&mut self, _: usize, at: ShardPosition) -> AnyResult<LateReader> {
        let token = at.token.unwrap_or(0);
        let over = if self.ends { 70 } else { 1 };
        Ok(LateReader { token, next: token as i64 + if token > 0 { over } else { 0 } })
    }

    fn fetch(&mut self, samples: Samples<i64>, cx: &mut Context<Tensor<i64>>) -> AnyResult<Tensor<i64>> {
        // A collate function of the user: the samples as a list, then the batch.
        assert_eq!((samples.len(), samples.items().len()), (samples.as_slice().len(), samples.len()));
        let list = cx.map_from(samples, |number, _| Ok(number))?;
        let mut tensor = Tensor::empty([list.len()])?;
        tensor.as_mut_slice()?.copy_from_slice(&list);
        Ok(tensor)
    }
}

#[derive(Batch)]
struct Text {
    tokens: Ragged<u32>,
    path: Strings,
}

/// Batch that is a struct with a nested struct.
#[derive(Batch)]
struct Images {
    pixels: Tensor<f32>,
    text: Text,
    other: Objects<BTreeMap<String, usize>>,
}

#[derive(Serialize, Deserialize)]
struct Folder(FrozenStrings);

impl Dataset for Folder {
    type Batch = Images;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Images>) -> AnyResult<Images> {
        let shapes = ImagesSpec { pixels: &[2, 2], text: TextSpec { tokens: (), path: () }, other: () };
        cx.rows(items, shapes, |item, rng, row| {
            let ImagesRow { pixels, text, other } = row;
            pixels.fill(rng.f32());
            text.tokens.resize(item.index, 7);
            text.path.push_str(&self.0[item.index]);
            *other = Some(BTreeMap::from([(self.0[item.index].to_string(), item.index)]));
            Ok(())
        })
    }
}

/// torch's `TestDictDataLoader`: batches with names.
#[test]
fn batches_with_named_columns_are_structs() {
    let paths: Vec<String> = (0..9).map(|i| format!("é/{i}.png")).collect();
    let mut seen = Vec::new();
    for workers in [0, 1] {
        let folder = Folder(FrozenStrings::new(&paths).unwrap());
        let loader = DataLoader::builder(folder).batch_size(5).num_workers(workers).build().unwrap();
        let mut batches = loader.epoch(0);
        while let Some(batch) = next(&mut batches) {
            let Images { pixels, text, other } = batch.unwrap().into_inner();
            let rows = other.len();
            assert_eq!(pixels.shape(), [rows, 2, 2]);
            for row in 0..rows {
                let index = text.tokens.row(row).unwrap().len();
                assert_eq!(
                    (text.path.get(row).unwrap(), other[row][&paths[index]]),
                    (&paths[index][..], index)
                );
                seen.push((index, pixels.get(&[row, 0, 0]).unwrap()));
            }
        }
        assert!(loader.verify(2).unwrap().is_same());
    }
    assert_eq!((seen.len(), &seen[..9]), (18, &seen[9..]));
}

#[test]
fn frozen_strings_of_a_dataset_are_sent_as_a_handle() {
    let empty = FrozenStrings::new::<&str>([]).unwrap();
    assert!(empty.is_empty() && empty.get(0).is_none() && empty.iter().next().is_none());
    let strings = FrozenStrings::new(["", "ü", "", "abc"]).unwrap();
    assert_eq!(strings.iter().collect::<Vec<_>>(), ["", "ü", "", "abc"]);
    assert_eq!(strings.iter().next_back(), Some("abc"));
    assert_eq!((strings.len(), strings.get(1), strings.get(4), &strings[3]), (4, Some("ü"), None, "abc"));
    assert_eq!(strings, strings.clone());
    assert!(std::panic::catch_unwind(|| strings[4].len()).is_err());
    let many = FrozenStrings::new((0..10_000).map(|i| format!("number {i}"))).unwrap();
    let child = |strings: FrozenStrings| (strings.iter().map(str::len).sum::<usize>(), strings.nbytes());
    let lengths = Process::spawn(child, many.clone()).unwrap().join().unwrap();
    assert_eq!(lengths, (many.iter().map(str::len).sum(), many.nbytes()));
}

#[test]
fn loader_metrics_include_the_workers_init_time() {
    for workers in [0, 1] {
        let loader = streaming(&[9], workers).build().unwrap();
        assert_eq!(all_of(loader.epoch(0)).len(), 3);
        assert!(!loader.metrics().init.is_zero(), "{}", loader.metrics());
    }
}
