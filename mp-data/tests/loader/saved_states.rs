//! States that were saved by earlier builds. Users have such states in files, and every later build must be
//! able to resume from them.
//!
//! The files are never rewritten. A state with other contents gets another format number and another file.

use mp_data::plan::Batching;
use mp_data::{LoaderState, StreamState};

use crate::common::shards::{Shards, all_of, next_of, streamed, streaming_of};
use crate::common::{Samples, all, bare};

fn saved<S: serde::de::DeserializeOwned + serde::Serialize>(text: &str) -> S {
    let state = serde_json::from_str(text).unwrap();
    // No field is lost when the state is read and written.
    let again: serde_json::Value = serde_json::to_value(&state).unwrap();
    assert_eq!(again, serde_json::from_str::<serde_json::Value>(text).unwrap());
    state
}

/// State with batches out of order and batches by tokens, which has all possible fields.
#[test]
fn loader_resumes_from_a_saved_map_state() {
    let lengths = (0..60).map(|i| 1 + i % 7).collect();
    let batching = Batching::MaxTokens { lengths, tokens: 20, window: 15 };
    let loader = bare(Samples::new(60), 0).shuffle(true).seed(17).batching(batching).build().unwrap();
    let state: LoaderState = saved(include_str!("../golden/state-1.json"));
    assert_eq!((state.epoch(), state.next(), state.out_of_order()), (3, 6, &[8][..]));
    let mut rest = all(loader.resume(&state).unwrap());
    let mut whole = all(loader.epoch(3));
    rest.sort();
    whole.retain(|batch| batch.1 >= 6 && batch.1 != 8);
    assert_eq!(rest, whole);
}

/// Numbers of samples of the dataset's shards.
const SIZES: [u64; 4] = [7, 5, 0, 9];

/// The saved position is within a window. One shard ends early, and one shard is read again in the next pass.
#[test]
fn loader_resumes_from_a_saved_stream_state() {
    let of = |shards| streaming_of(shards, 0).lanes(2).shuffle_window(6).shuffle(true).steps(9);
    let state: StreamState = saved(include_str!("../golden/stream-state-1.json"));
    assert_eq!((state.epoch(), state.batches()), (2, 4));
    // The shard is complete again, but the state has its earlier end.
    let loader = of(Shards::new(&SIZES)).build().unwrap();
    let mut rest = loader.resume(&state).unwrap();
    let first = next_of(&mut rest).unwrap().unwrap();
    assert_eq!(streamed(&first).2, [3, 3, 2, 2605830795342248552]);
    assert_eq!(all_of(rest).iter().map(|batch| batch.1).collect::<Vec<_>>(), [6, 7, 8, 9]);
    // A loader with another plan refuses the state.
    assert!(of(Shards::new(&SIZES[1..])).build().unwrap().resume(&state).is_err());
}
