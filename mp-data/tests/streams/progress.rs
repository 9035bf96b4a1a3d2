//! Progress bar of the batches of a stream.

use indicatif::ProgressBar;
use mp_data::{StreamBatches, StreamLoaderBuilder};

use crate::common::Fault;
use crate::common::shards::{Shards, When, streaming, streaming_of};
use crate::{SIZES, shuffled};

/// Contents of the bar when the batches begin and when they have ended, and the number of delivered batches.
type Shown = (u64, Option<u64>, u64, usize);

fn shown(batches: StreamBatches<Shards>) -> Shown {
    let bar = ProgressBar::hidden();
    let batches = batches.with_progress(&bar);
    let (begin, length) = (bar.position(), bar.length());
    let given = batches.count();
    assert!(bar.message().contains("samples/s, waiting "), "{}", bar.message());
    (begin, length, bar.position(), given)
}

fn with_steps() -> StreamLoaderBuilder<Shards> {
    streaming(&SIZES, 2).lanes(3).steps(5)
}

#[test]
fn progress_bar_shows_delivered_stream_batches() {
    let all = shuffled(0).build().unwrap().epoch(0).count();
    assert!(all > 10);
    for workers in [0, 2] {
        let loader = shuffled(workers).build().unwrap();
        assert_eq!(shown(loader.epoch(0)), (0, None, all as u64, all));
        let mut begun = loader.epoch(0);
        assert_eq!(begun.by_ref().take(3).filter(Result::is_ok).count(), 3);
        let resumed = loader.resume(&begun.state()).unwrap();
        assert_eq!(shown(resumed), (3, None, all as u64, all - 3));
    }
    let loader = with_steps().build().unwrap();
    assert_eq!(shown(loader.epoch(0)), (0, Some(5), 5, 5));
    assert_eq!(shown(loader.epochs(2..5)), (0, Some(15), 15, 15));
    let mut begun = loader.epoch(1);
    assert_eq!(begun.by_ref().take(2).filter(Result::is_ok).count(), 2);
    let resumed = loader.resume_until(&begun.state(), 3).unwrap();
    assert_eq!(shown(resumed), (2, Some(10), 10, 8));
}

#[test]
fn progress_bar_counts_stream_errors() {
    let shards = Shards::new(&SIZES).with((When::Row, 2, 9), Fault::Error, -1);
    let loader = streaming_of(shards, 1).lanes(3).build().unwrap();
    let bar = ProgressBar::hidden();
    let mut batches = loader.epoch(0).with_progress(&bar);
    let (mut given, mut errors) = (0, 0);
    while let Some(batch) = batches.next() {
        given += 1;
        errors += usize::from(batch.is_err());
        assert_eq!(bar.position(), given);
        // The iterator and its state are accessible.
        assert!(format!("{:?}", *batches).starts_with(&format!("StreamBatches({given} of epoch 0 given")));
    }
    assert_eq!(errors, 1);
    assert!(batches.next().is_none());
}
