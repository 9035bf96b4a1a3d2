//! Locations of panics in a dataset's code: errors have file and line, and the program's own panic hook is
//! called. The test is a separate program, because the hook belongs to the whole process.

#[path = "common/mod.rs"]
mod common;

use std::panic::{catch_unwind, set_hook, take_hook};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::next;
use common::shards::{Shards, When, next_of, streaming_of};
use mp_data::{AnyResult, Context, DataLoader, Dataset, Item, WorkerInfo};
use mp_spawn::SpawnError;
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Where {
    Init,
    Fetch,
    Row,
}

/// Dataset that panics at the second sample of each batch, or earlier.
#[derive(Serialize, Deserialize)]
struct Panics(Where);

/// Lines of this file with the panics.
const LINES: [u32; 3] = [line!() + 10, line!() + 15, line!() + 18];

impl Dataset for Panics {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        8
    }

    fn init(&mut self, _: &WorkerInfo) -> AnyResult<()> {
        assert!(self.0 != Where::Init, "no decoder");
        Ok(())
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        assert!(self.0 != Where::Fetch, "a bad batch");
        cx.rows(items, &[], |item, _, row| {
            if item.index % 4 == 1 {
                panic!("a bad row");
            }
            row[0] = item.index as u64;
            Ok(())
        })
    }
}

/// Number of times that the program's own hook was called.
static HOOKED: AtomicUsize = AtomicUsize::new(0);

fn hooked() -> usize {
    HOOKED.swap(0, Ordering::SeqCst)
}

#[test]
fn dataset_panic_reports_its_line_and_runs_the_hook() {
    set_hook(Box::new(|_| _ = HOOKED.fetch_add(1, Ordering::SeqCst)));
    for (workers, threads) in [(0, 1), (0, 3), (1, 1), (1, 3)] {
        for (place, line) in [Where::Init, Where::Fetch, Where::Row].into_iter().zip(LINES) {
            if place == Where::Init && workers > 0 {
                // A worker whose `init` panics is restarted for seconds.
                continue;
            }
            let loader = DataLoader::builder(Panics(place)).batch_size(4).num_workers(workers);
            let loader = loader.threads_per_worker(threads).build().unwrap();
            let mut batches = loader.epoch(0);
            for number in 0..2 {
                let error = next(&mut batches).unwrap().unwrap_err();
                let text = error.to_string();
                let says = format!("mp-data/tests/panics.rs:{line}:");
                assert!(text.contains(&says), "{workers} {threads} {place:?}: {text}");
                let row = (place == Where::Row).then_some(4 * number + 1);
                assert_eq!(error.item.map(|item| item.index), row, "{text}");
                if workers == 0 {
                    assert_eq!(hooked(), 1, "{text}");
                    let raised = match error.source.downcast_ref::<SpawnError>() {
                        Some(SpawnError::ProcessRaised(raised)) => raised,
                        other => panic!("{other:?}"),
                    };
                    assert!(raised.location.as_ref().is_some_and(|place| place.contains(&says)));
                }
                if place == Where::Init {
                    break;
                }
            }
        }
    }
    // A reader of a stream in the trainer, after another caught panic of this thread.
    let shards = Shards::new(&[9]).with((When::Read, 0, 5), common::Fault::Panic, -1);
    let loader = streaming_of(shards, 0).build().unwrap();
    let mut batches = loader.epoch(0);
    assert!(next_of(&mut batches).unwrap().is_ok());
    assert!(catch_unwind(|| panic!("of the program itself")).is_err());
    let text = next_of(&mut batches).unwrap().unwrap_err().to_string();
    assert!(text.contains("mp-data/tests/common/mod.rs:") && text.contains("panics"), "{text}");
    assert_eq!(hooked(), 2);
    // After the program installs another hook, the error has only the message.
    drop(take_hook());
    set_hook(Box::new(|_| _ = HOOKED.fetch_add(1, Ordering::SeqCst)));
    let loader = DataLoader::builder(Panics(Where::Row)).batch_size(4).build().unwrap();
    let text = next(&mut loader.epoch(0)).unwrap().unwrap_err().to_string();
    assert!(text.ends_with("a bad row") && !text.contains("panics.rs"), "{text}");
    assert_eq!(hooked(), 1);
    _ = take_hook();
}
