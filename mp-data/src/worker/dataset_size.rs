//! Warning about a large dataset, of which each worker has a copy in its own memory.

use mp_core::message::{Codec, Outgoing};
use mp_reduce::MessagePack;
use serde::Serialize;

use crate::worker::batch_maker::SharedDataset;

/// Number of bytes above which a warning is logged.
const LARGE: usize = 16 << 20;

/// Returns the number of bytes of a dataset that each worker decodes. Values in shared memory (frozen strings
/// and tensors, queues) count as their handles.
fn encoded_bytes<D: Serialize>(dataset: &SharedDataset<D>) -> usize {
    let mut out = Outgoing::in_band();
    match MessagePack::write(&mut out, dataset) {
        Ok(()) => out.bytes().len(),
        // The same error is returned when the dataset is sent.
        Err(_) => 0,
    }
}

/// Logs a warning if each worker has a large dataset in memory of its own. The dataset is encoded once more
/// for this check only.
pub(crate) fn warn_if_large<D: Serialize>(dataset: &SharedDataset<D>) {
    if !log::log_enabled!(target: "mp::data", log::Level::Warn) {
        return;
    }
    let bytes = mp_core::user_code::catch_panic(|| encoded_bytes(dataset)).unwrap_or(0);
    if bytes > LARGE {
        // The logger is code of the program and may panic.
        _ = mp_core::user_code::catch_panic(|| {
            log::warn!(
                target: "mp::data",
                "the dataset {} is {} MiB in each worker: put long lists into `FrozenStrings` and \
                 `FrozenTensor`, which all workers share",
                std::any::type_name::<D>(),
                bytes >> 20
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::FrozenStrings;

    /// Logged lines.
    struct Lines(Mutex<Vec<String>>);

    impl log::Log for Lines {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &log::Record<'_>) {
            self.0.lock().unwrap().push(format!("{} {}", record.target(), record.args()));
        }

        fn flush(&self) {}
    }

    #[test]
    fn large_dataset_list_is_reported_frozen_list_is_not() {
        // fork: nothing is forked here.
        static LINES: Lines = Lines(Mutex::new(Vec::new()));
        log::set_logger(&LINES).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        let logged = |text: &str| LINES.0.lock().unwrap().drain(..).any(|line| line.contains(text));
        let path = "p".repeat(200);
        let paths = |count: usize| std::iter::repeat_n(path.as_str(), count);
        let list: Vec<String> = paths(100_000).map(str::to_owned).collect();
        let (few, many) = (list[..1000].to_vec(), list);
        warn_if_large(&SharedDataset(Arc::new(few)));
        warn_if_large(&SharedDataset(Arc::new(FrozenStrings::new(paths(100_000)).unwrap())));
        assert!(!logged("mp::data"));
        warn_if_large(&SharedDataset(Arc::new(many)));
        assert!(logged(
            "mp::data the dataset alloc::vec::Vec<alloc::string::String> is 19 MiB in each worker"
        ));
    }
}
