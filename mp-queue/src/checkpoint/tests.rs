use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use mp_core::{Messages, Wait};
use mp_reduce::Bundle;
use mp_tensor::{FrozenTensor, SharedTensor, Tensor};

use super::CheckpointError;
use super::format::{PREFIX, TRAILER};
use super::fuzz::with_clean_memory;
use crate::raw::payload::Payload;
use crate::{Queue, QueueOptions};

/// Path of a checkpoint, removed on drop.
struct TestPath(PathBuf);

impl TestPath {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("mp-queue-{}-{name}", std::process::id())))
    }

    fn partial(&self) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        name.push(".mp-partial");
        name.into()
    }
}

impl Drop for TestPath {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}

fn long(n: usize) -> String {
    format!("{n} {}", "x".repeat(n))
}

/// Returns the element type and the bytes of each part of a safetensors file. Checks that the parts cover the
/// file after the header without gaps.
fn parts(file: &[u8]) -> HashMap<String, (String, Vec<u8>)> {
    let (len, rest) = file.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let mut header: HashMap<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    let metadata = header.remove("__metadata__").unwrap();
    assert!(metadata.as_object().unwrap().values().all(serde_json::Value::is_string));
    let mut all: Vec<_> = header
        .into_iter()
        .map(|(name, part)| {
            let number = |value: &serde_json::Value| value.as_u64().unwrap() as usize;
            let offsets = part["data_offsets"].as_array().unwrap();
            let dtype = part["dtype"].as_str().unwrap().to_owned();
            (number(&offsets[0]), number(&offsets[1]), name, dtype, number(&part["shape"][0]))
        })
        .collect();
    all.sort();
    let mut parts = HashMap::new();
    let mut at = 0;
    for (from, to, name, dtype, elements) in all {
        let size = if dtype == "F32" { 4 } else { 1 };
        assert_eq!((from, to - from), (at, elements * size), "{name}");
        parts.insert(name, (dtype, data[from..to].to_vec()));
        at = to;
    }
    assert_eq!(at, data.len());
    parts
}

#[test]
fn checkpointed_tensors_are_readable_as_safetensors() {
    let path = TestPath::new("parts");
    let queue = Queue::<Tensor<f32>>::bounded(4).unwrap();
    queue.put(Tensor::full([100], 0.5).unwrap()).unwrap();
    queue.put(Tensor::full([100], 1.5).unwrap()).unwrap();
    queue.checkpoint(&path.0).unwrap();
    let parts = parts(&fs::read(&path.0).unwrap());
    for (name, value) in [("0.0", 0.5_f32), ("1.0", 1.5)] {
        let (dtype, bytes) = &parts[name];
        let (floats, _) = bytes.as_chunks();
        assert_eq!(dtype, "F32");
        assert!(floats.len() >= 100 && floats[..100].iter().all(|f| f32::from_le_bytes(*f) == value));
    }
}

#[test]
fn restored_messages_of_all_sizes_keep_their_order() {
    let path = TestPath::new("sizes");
    for queue in [Queue::bounded(300), Queue::growing(100_000), Queue::unbounded()] {
        let queue = queue.unwrap();
        // Beyond the first segment of a growing queue, and with a head that is not at its beginning.
        for n in 0..500 {
            queue.put(long(7 * (n % 100))).unwrap();
            if n >= 250 {
                queue.get().unwrap();
            }
        }
        assert_eq!(queue.checkpoint(&path.0).unwrap(), 250);
        let again = Queue::<String>::restore(&path.0).unwrap();
        assert_eq!((again.len(), again.capacity()), (250, queue.capacity()));
        for n in 250..500 {
            assert_eq!(again.try_get().unwrap(), Some(long(7 * (n % 100))));
            assert_eq!(queue.try_get().unwrap(), Some(long(7 * (n % 100))), "the queue is unchanged");
        }
        assert!(again.try_get().unwrap_err().is_empty());
    }
}

#[test]
fn restored_queue_has_small_messages_and_is_closed() {
    let path = TestPath::new("small");
    let queue = Queue::bounded(3).unwrap();
    (0..3_u64).for_each(|n| queue.put(n).unwrap());
    queue.close();
    queue.checkpoint(&path.0).unwrap();
    let again = Queue::<u64>::restore(&path.0).unwrap();
    assert!(again.put(4).unwrap_err().is_closed());
    assert!(again.iter().map(Result::unwrap).eq(0..3));
}

#[test]
fn restored_tensors_keep_kind_and_aliasing() {
    type Parts = (Bundle<(Tensor<f32>, Tensor<u16>)>, FrozenTensor<i64>, FrozenTensor<i64>);
    let path = TestPath::new("tensors");
    let queue = Queue::<Bundle<Parts>>::bounded(4).unwrap();
    for n in 0..3 {
        let exclusive =
            Bundle((Tensor::full([300_000], n as f32).unwrap(), Tensor::full([3, 5], n as u16).unwrap()));
        let frozen = Tensor::full([70], n).unwrap().freeze();
        queue.put(Bundle((exclusive, frozen.clone(), frozen))).unwrap();
    }
    assert_eq!(queue.checkpoint(&path.0).unwrap(), 3);
    let again = Queue::<Bundle<Parts>>::restore(&path.0).unwrap();
    for n in 0..3 {
        for queue in [&again, &queue] {
            let Bundle((Bundle((mut a, b)), c, d)) = queue.get().unwrap().unwrap();
            assert!(a.iter().all(|x| x == n as f32) && a.len() == 300_000);
            a.fill(7.0).unwrap();
            assert_eq!((b.shape(), b.iter().sum::<u16>()), (&[3, 5][..], 15 * n as u16));
            assert_eq!(c.iter().sum::<i64>(), 70 * n);
            assert_eq!(c.as_slice().unwrap().as_ptr(), d.as_slice().unwrap().as_ptr(), "same memory");
        }
    }
}

/// Leases and acknowledges all messages. Returns each message with its number of deliveries.
fn leased(queue: &Queue<String>) -> Vec<(String, u32)> {
    let mut all = Vec::new();
    while let Ok(Some(lease)) = queue.try_get_lease() {
        all.push((lease.deliveries(), lease.ack()));
    }
    all.sort();
    all.into_iter().map(|(times, text)| (text, times)).collect()
}

#[test]
fn restored_leased_messages_keep_delivery_counts() {
    let path = TestPath::new("held");
    let queue = with_clean_memory(|| QueueOptions::new().capacity(3).deliveries(3).create().unwrap());
    (0..3).for_each(|n| queue.put(long(n)).unwrap());
    // Message 0 is a dead letter, 1 is leased for the second time, 2 is leased, and all slots are full.
    (0..4).for_each(|_| drop(queue.get_lease().unwrap()));
    let leases = [queue.get_lease().unwrap().unwrap(), queue.get_lease().unwrap().unwrap()];
    assert_eq!(leases.each_ref().map(|lease| (lease.len(), lease.deliveries())), [(3, 2), (4, 1)]);
    (3..6).for_each(|n| queue.put(long(n)).unwrap());
    assert_eq!(queue.checkpoint(&path.0).unwrap(), 6);
    leases.into_iter().for_each(|lease| drop(lease.ack()));

    let again = Queue::<String>::restore(&path.0).unwrap();
    assert_eq!((again.len(), again.capacity(), again.is_full()), (5, 3, true));
    assert_eq!(again.dead_letter().unwrap(), Some(long(0)));
    assert_eq!(again.dead_letter().unwrap(), None);
    let rest = [(long(3), 1), (long(4), 1), (long(5), 1)];
    assert_eq!(leased(&again), [&rest[..], &[(long(2), 2), (long(1), 3)]].concat());
    // The original queue still has the other messages.
    assert_eq!(queue.dead_letter().unwrap(), Some(long(0)));
    assert_eq!(leased(&queue), rest);
}

#[test]
fn message_saved_in_its_last_lease_is_a_dead_letter() {
    let path = TestPath::new("last");
    let queue = with_clean_memory(|| QueueOptions::new().deliveries(1).create().unwrap());
    queue.put(long(0)).unwrap();
    let _lease = queue.get_lease().unwrap();
    queue.checkpoint(&path.0).unwrap();
    assert_eq!(Queue::<String>::restore(&path.0).unwrap().dead_letter().unwrap(), Some(long(0)));
}

#[test]
fn restored_queue_keeps_its_byte_bound_and_options() {
    let path = TestPath::new("options");
    let options = QueueOptions::new().capacity(5).bytes(1 << 20).deliveries(3);
    let queue = options.create::<Tensor<u8>>().unwrap();
    queue.put(Tensor::zeros([600_000]).unwrap()).unwrap();
    queue.checkpoint(&path.0).unwrap();
    let again = Queue::<Tensor<u8>>::restore(&path.0).unwrap();
    assert_eq!(again.capacity(), 5);
    assert!(again.try_put(Tensor::zeros([600_000]).unwrap()).unwrap_err().is_full());
    let error = QueueOptions::new().capacity(5).bytes(1000).restore::<Tensor<u8>>(&path.0).unwrap_err();
    assert!(matches!(error, CheckpointError::TooLarge { limit: 1000, .. }), "{error}");
    (0..2).for_each(|_| queue.put(Tensor::zeros([10]).unwrap()).unwrap());
    queue.checkpoint(&path.0).unwrap();
    let error = QueueOptions::new().capacity(2).restore::<Tensor<u8>>(&path.0).unwrap_err();
    assert!(matches!(error, CheckpointError::TooMany { messages: 3 }), "{error}");
}

#[test]
fn checkpoint_header_grows_with_the_number_of_tensors() {
    let path = TestPath::new("header");
    let queue = Queue::<FrozenTensor<u8>>::unbounded().unwrap();
    for n in 0..2000 {
        queue.put(Tensor::full([1], n as u8).unwrap().freeze()).unwrap();
    }
    assert_eq!(queue.checkpoint(&path.0).unwrap(), 2000);
    let parts = parts(&fs::read(&path.0).unwrap());
    assert!((0..2000).all(|n| parts[&format!("{n}.0")].1[0] == n as u8));
    let again = Queue::<FrozenTensor<u8>>::restore(&path.0).unwrap();
    assert!((0..2000).all(|n| again.try_get().unwrap().unwrap().as_slice().unwrap() == [n as u8]));
}

#[test]
fn checkpoint_with_unsendable_message_keeps_old_file() {
    let path = TestPath::new("stays");
    let queue = Queue::<Option<SharedTensor<u8>>>::bounded(4).unwrap();
    queue.put(None).unwrap();
    queue.checkpoint(&path.0).unwrap();
    let before = fs::read(&path.0).unwrap();
    queue.put(Some(Tensor::zeros([8]).unwrap().share())).unwrap();
    let error = queue.checkpoint(&path.0).unwrap_err();
    assert!(matches!(error, CheckpointError::Unsendable { message: 1, .. }), "{error}");
    let text = "message 1 of the queue can't be written to a file: ";
    assert!(error.to_string().starts_with(text), "{error}");
    assert_eq!(fs::read(&path.0).unwrap(), before);
    assert!(!path.partial().exists());
    assert_eq!(queue.len(), 2);
    assert!(queue.get().unwrap().unwrap().is_none() && queue.get().unwrap().unwrap().is_some());
}

#[test]
fn second_checkpoint_writer_of_a_path_is_refused() {
    let path = TestPath::new("second");
    let queue = Queue::<u64>::bounded(4).unwrap();
    let first = super::CheckpointWriter::create(&path.0).unwrap();
    let error = queue.checkpoint(&path.0).unwrap_err();
    assert!(matches!(&error, CheckpointError::Written { path: p } if *p == path.0), "{error}");
    drop(first);
    // A killed writer leaves its file.
    fs::write(path.partial(), [7; 200_000]).unwrap();
    queue.checkpoint(&path.0).unwrap();
    assert!(!path.partial().exists());
    assert!(fs::metadata(&path.0).unwrap().len() < 200_000);
}

#[test]
fn partial_checkpoint_with_a_hard_link_is_replaced() {
    let (path, victim) = (TestPath::new("link"), TestPath::new("victim"));
    fs::write(&victim.0, "text").unwrap();
    fs::hard_link(&victim.0, path.partial()).unwrap();
    Queue::<u64>::bounded(4).unwrap().checkpoint(&path.0).unwrap();
    assert_eq!(fs::read(&victim.0).unwrap(), b"text");
}

#[test]
fn partial_checkpoint_of_another_mode_becomes_private() {
    let path = TestPath::new("mode");
    fs::write(path.partial(), "text").unwrap();
    fs::set_permissions(path.partial(), fs::Permissions::from_mode(0o644)).unwrap();
    Queue::<u64>::bounded(4).unwrap().checkpoint(&path.0).unwrap();
    assert_eq!(fs::metadata(&path.0).unwrap().permissions().mode() & 0o777, 0o600);
}

/// A producer that waits for room puts a small message after a consumer has leased another message.
#[test]
fn checkpoint_includes_small_message_put_after_lease() {
    let path = TestPath::new("later");
    let queue = with_clean_memory(|| Queue::bounded(1).unwrap());
    queue.put(1_u64).unwrap();
    let mut later = Payload::from_small(queue.raw(), &2_u64).unwrap();
    let lease = queue.get_lease().unwrap().unwrap();
    queue.raw().put(&mut later, Wait::Never).unwrap();
    assert_eq!(queue.checkpoint(&path.0).unwrap(), 2);
    lease.ack();
    let again = Queue::<u64>::restore(&path.0).unwrap();
    assert_eq!([again.get().unwrap(), again.get().unwrap()], [Some(1), Some(2)]);
}

/// Consumers race for small messages, and a producer waits for room.
#[test]
fn small_messages_are_checkpointed_once_despite_races() {
    let path = TestPath::new("race");
    for round in 0..50 {
        let queue = with_clean_memory(|| Queue::bounded(4).unwrap());
        (0..4_u64).for_each(|n| queue.put(n).unwrap());
        let producer = {
            let queue = queue.clone();
            std::thread::spawn(move || (4..8).for_each(|n| queue.put(n).unwrap()))
        };
        let consumers = [(); 3].map(|()| {
            let queue = queue.clone();
            std::thread::spawn(move || {
                while let Ok(Some(lease)) = queue.get_lease() {
                    lease.ack();
                }
            })
        });
        for _ in 0..3 {
            queue.checkpoint(&path.0).unwrap();
            let again = Queue::<u64>::restore(&path.0).unwrap();
            let mut all: Vec<_> = std::iter::from_fn(|| again.try_get().ok().flatten()).collect();
            all.sort_unstable();
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "round {round}: {all:?}");
        }
        producer.join().unwrap();
        queue.close();
        consumers.into_iter().for_each(|consumer| consumer.join().unwrap());
    }
}

#[test]
fn invalid_checkpoints_are_refused_by_distinct_errors() {
    let path = TestPath::new("other");
    let error = Queue::<u64>::restore(&path.0).unwrap_err();
    assert!(matches!(&error, CheckpointError::File { source, .. } if source.raw_os_error() == Some(2)));
    let error = Queue::<u64>::restore(std::env::temp_dir()).unwrap_err();
    assert!(matches!(error, CheckpointError::NotACheckpoint { .. }), "{error}");
    fs::write(&path.0, "text").unwrap();
    let error = Queue::<u64>::restore(&path.0).unwrap_err();
    assert!(matches!(error, CheckpointError::NotACheckpoint { .. }), "{error}");

    let queue = Queue::bounded(4).unwrap();
    queue.put(7_u64).unwrap();
    queue.put(u64::MAX).unwrap();
    queue.checkpoint(&path.0).unwrap();
    let error = Queue::<(u64,)>::restore(&path.0).unwrap_err();
    assert!(matches!(&error, CheckpointError::OtherType { stored, .. } if stored == "u64"), "{error}");
    let whole = fs::read(&path.0).unwrap();
    let mut later = whole.clone();
    later[8 + PREFIX.len()] = b'9';
    fs::write(&path.0, &later).unwrap();
    let error = Queue::<u64>::restore(&path.0).unwrap_err();
    let expected = 1000 + Messages::WIRE_VERSION;
    let is_later = matches!(error, CheckpointError::Version { found, .. } if found == 8000 + expected);
    assert!(is_later, "{error}");

    // Truncations, and changed bits in the bytes that are read.
    for len in (whole.len() - 400..whole.len()).chain([100, 1000, 70_000.min(whole.len() - 1)]) {
        fs::write(&path.0, &whole[..len]).unwrap();
        let error = Queue::<u64>::restore(&path.0).unwrap_err();
        assert!(matches!(error, CheckpointError::Damaged { .. }), "{len}: {error}");
    }
    let data = whole.len() - TRAILER - 300;
    for byte in (8 + PREFIX.len() + 4..300).chain(data..whole.len()) {
        let mut changed = whole.clone();
        changed[byte] ^= 1 << (byte % 8);
        fs::write(&path.0, &changed).unwrap();
        match Queue::<u64>::restore(&path.0) {
            Err(CheckpointError::Damaged { .. }) => {}
            // Padding is not read.
            Ok(_) => assert!(whole[byte] == 0, "byte {byte} of {}", whole.len()),
            Err(error) => panic!("byte {byte}: {error}"),
        }
    }
}
