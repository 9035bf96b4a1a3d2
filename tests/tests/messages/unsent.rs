//! A value that is not put is returned unchanged, and not as a copy of its encoding. This holds whatever
//! prevented the send, and whatever weak references to its parts exist.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_sink::Sink;
use mp::memory::{StorageId, WeakStorage};
use mp::{Arena, Bundle, Error, GetError, Message, PutError, Queue, QueueOptions, Tensor};
use serde::{Deserialize, Serialize};

const MOMENT: Duration = Duration::from_millis(20);

/// Value that is too long for a slot, and has a field that isn't encoded.
#[derive(Serialize, Deserialize)]
struct Job {
    text: String,
    #[serde(skip)]
    local: Option<Arc<()>>,
}

/// Value with exclusive tensors.
#[derive(Message)]
struct Owned {
    first: Tensor<u64>,
    job: Job,
    more: Bundle<Vec<Tensor<f32>>>,
}

/// Addresses of the parts of an [`Owned`].
struct Where(*const u8, [StorageId; 2]);

fn owned() -> (Owned, Where) {
    let local = Some(Arc::new(()));
    let value = Owned {
        first: Tensor::full([2, 3], 7).unwrap().narrow(1, 1, 2).unwrap(),
        job: Job { text: "a text that is too long for a slot of a queue".into(), local },
        more: Bundle(vec![Tensor::full([5], 0.5).unwrap()]),
    };
    let at = Where(value.job.text.as_ptr(), value.storages());
    (value, at)
}

impl Owned {
    fn storages(&self) -> [StorageId; 2] {
        [self.first.storage().id(), self.more.0[0].storage().id()]
    }

    /// Checks that this is the value that [`owned`] has made, and not a copy.
    fn came_back_to(mut self, at: &Where) {
        assert!(self.job.local.is_some(), "the field that is not encoded was lost");
        assert_eq!(self.job.text.as_ptr(), at.0, "a copy of the text");
        assert_eq!(self.storages(), at.1, "other tensors");
        assert_eq!((self.first.to_vec(), self.first.shape()), (vec![7; 4], &[2, 2][..]));
        assert_eq!(self.first.storage().len(), 48);
        // The caller is the only owner of the tensors again.
        self.more.0[0].as_mut_slice().unwrap()[4] = 1.0;
        let queue = Queue::bounded(1).unwrap();
        assert!(queue.put(self).is_ok());
        let got = queue.get().unwrap().unwrap();
        assert_eq!((got.first.to_vec(), got.more.0[0].to_vec()), (vec![7; 4], vec![0.5, 0.5, 0.5, 0.5, 1.0]));
    }
}

fn back<T>(error: PutError<T>) -> T {
    error.into_value()
}

fn full() -> Queue<Owned> {
    let queue = Queue::bounded(1).unwrap();
    assert!(queue.put(owned().0).is_ok());
    queue
}

#[test]
fn full_queue_returns_exclusive_tensors() {
    let queue = full();
    for wait in [Duration::ZERO, MOMENT] {
        let (value, at) = owned();
        let error = queue.put_timeout(value, wait).unwrap_err();
        assert!(matches!(error, PutError::Full(_)));
        back(error).came_back_to(&at);
    }
    let (value, at) = owned();
    back(queue.try_put(value).unwrap_err()).came_back_to(&at);
}

#[test]
fn closed_queue_returns_exclusive_tensors() {
    let queue = full();
    let waiting = queue.clone();
    let (value, at) = owned();
    let back = std::thread::scope(|scope| {
        // The put waits for room, or begins after the close. The queue is closed in both cases.
        let put = scope.spawn(move || back(waiting.put(value).unwrap_err()));
        queue.close();
        put.join().unwrap()
    });
    back.came_back_to(&at);
    let (value, at) = owned();
    let error = queue.try_put(value).unwrap_err();
    assert!(matches!(error, PutError::Closed(_)));
    self::back(error).came_back_to(&at);
}

#[test]
fn failed_batch_returns_exclusive_tensors() {
    let queue = Queue::bounded(2).unwrap();
    let (values, places): (Vec<_>, Vec<_>) = (0..4).map(|_| owned()).unzip();
    let error = queue.try_put_many(values).unwrap_err();
    assert_eq!(error.put, 2);
    back(error.error).came_back_to(&places[2]);
    let rest: Vec<_> = error.rest.collect();
    assert_eq!(rest.len(), 1);
    rest.into_iter().for_each(|value| value.came_back_to(&places[3]));
}

#[test]
fn too_large_message_value_is_returned() {
    let queue = QueueOptions::new().capacity(4).bytes(8).create().unwrap();
    let (value, at) = owned();
    let error = queue.put(value).unwrap_err();
    assert!(matches!(error, PutError::TooLarge { .. }));
    back(error).came_back_to(&at);
}

#[test]
fn channels_return_exclusive_tensors() {
    let (sender, receiver) = mp::bounded_channel(1).unwrap();
    assert!(sender.send(owned().0).is_ok());
    let (value, at) = owned();
    back(sender.send_timeout(value, MOMENT).unwrap_err()).came_back_to(&at);
    let (value, at) = owned();
    let back = std::thread::scope(|scope| {
        let sent = scope.spawn(|| back(sender.send(value).unwrap_err()));
        drop(receiver);
        sent.join().unwrap()
    });
    back.came_back_to(&at);
}

#[test]
fn connections_return_exclusive_tensors() {
    let (here, there) = mp::pipe().unwrap();
    drop(there);
    let (value, at) = owned();
    back(here.send(value).unwrap_err()).came_back_to(&at);
    // Exclusive values can't be sent over a socket.
    let name = format!("mp-given-back-{}", std::process::id());
    let listener = mp::Listener::bind(name.as_str()).unwrap();
    std::thread::scope(|scope| {
        let there = scope.spawn(|| listener.accept().unwrap());
        let here = mp::connect(name.as_str()).unwrap();
        let (value, at) = owned();
        let error = here.send(value).unwrap_err();
        assert!(error.to_string().contains("tensors"), "{error}");
        back(error).came_back_to(&at);
        drop(there.join());
    });
}

#[test]
fn failing_serialize_returns_exclusive_tensors() {
    /// Field that refuses to be written, after the tensors were written.
    struct Refuses;
    impl Serialize for Refuses {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("it would not leave"))
        }
    }
    impl<'de> Deserialize<'de> for Refuses {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Ok(Refuses)
        }
    }
    #[derive(Message)]
    struct Refused(Owned, Refuses);
    let queue = Queue::bounded(1).unwrap();
    let (value, at) = owned();
    let error = queue.put(Refused(value, Refuses)).unwrap_err();
    assert!(error.to_string().contains("would not leave"), "{error}");
    back(error).0.came_back_to(&at);
}

#[test]
fn full_arena_returns_exclusive_tensors() {
    #[derive(Message)]
    struct Large(Owned, Vec<u8>);
    /// Memory limit, which is removed even after a failure.
    struct Budget;
    impl Drop for Budget {
        fn drop(&mut self) {
            Arena::current().unwrap().set_budget(u64::MAX);
        }
    }
    let arena = Arena::current().unwrap();
    let queue = Queue::bounded(1).unwrap();
    let (value, at) = owned();
    let large = Large(value, vec![1; 64 << 20]);
    let _budget = Budget;
    arena.empty_cache().unwrap();
    arena.set_budget(arena.memory_stats().reserved + (32 << 20));
    let error = queue.put(large).unwrap_err();
    drop(_budget);
    assert!(
        matches!(
            &error,
            PutError::Failed { error: mp::message::MessageError::Memory(Error::OutOfMemory { .. }), .. }
        ),
        "{error}"
    );
    back(error).0.came_back_to(&at);
}

#[test]
fn futures_and_sinks_return_exclusive_tensors() {
    let queue = full();
    let (value, at) = owned();
    let mut lent = Some(value);
    {
        let put = pin!(queue.put_async_from(&mut lent));
        assert!(put.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    lent.take().expect("the value was returned").came_back_to(&at);

    let (value, at) = owned();
    let mut sink = queue.sink();
    Pin::new(&mut sink).start_send(value).unwrap();
    let mut flush = || Pin::new(&mut sink).poll_flush(&mut Context::from_waker(Waker::noop()));
    assert!(flush().is_pending());
    queue.close();
    let Poll::Ready(Err(error)) = flush() else { panic!("the sink of a closed queue has not failed") };
    back(error).came_back_to(&at);
}

/// Value with a tensor and nested values of the same type, which are written before the tensor.
#[derive(Message)]
struct Nest {
    inner: Bundle<Vec<Nest>>,
    own: Tensor<u64>,
}

impl Nest {
    /// Creates nested tensors. The tensor of each level has its number.
    fn new(levels: u64) -> Self {
        let inner = if levels == 0 { Vec::new() } else { vec![Nest::new(levels - 1)] };
        Nest { inner: Bundle(inner), own: Tensor::full([3], levels).unwrap() }
    }
}

/// Calls `work` deep in a thread's stack, with only `room` bytes left.
fn far_down(top: usize, room: usize, work: &mut dyn FnMut()) {
    let frame = std::hint::black_box([0_u8; 4096]);
    if top - (&raw const frame as usize) < room {
        far_down(top, room, work)
    } else {
        work()
    }
    std::hint::black_box(&frame);
}

/// A tensor that is nested too deeply for the thread's stack is not returned, and no other tensor takes its
/// place.
#[test]
fn unsent_tensors_return_in_place_on_a_short_stack() {
    const LEVELS: u64 = 25;
    // Larger than the stacks of other tests' threads, so that none of those is reused.
    const STACK: usize = 8 << 20;
    const LEFT: usize = 100 << 10;
    let queue = Queue::bounded(1).unwrap();
    assert!(queue.put(Nest::new(0)).is_ok());
    let mut lent = Some(Nest::new(LEVELS));
    let mut put = Box::pin(queue.put_async_from(&mut lent));
    assert!(put.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    std::thread::scope(|scope| {
        let mut put = Some(put);
        let body = move || {
            let top = 0_u8;
            far_down(&raw const top as usize, STACK - LEFT, &mut || drop(put.take()));
        };
        std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, body).unwrap();
    });
    let (mut nest, mut level, mut whole) = (lent.expect("the value was returned"), LEVELS, 0);
    loop {
        let own = nest.own.to_vec();
        assert!(own.is_empty() || own == [level; 3], "{own:?} was returned in the place of {level}");
        whole += u64::from(!own.is_empty());
        // These levels are entered without a check of the stack.
        assert!(!own.is_empty() || level < LEVELS - 5, "{level} was not returned");
        let Some(inner) = nest.inner.0.pop() else { break };
        (nest, level) = (inner, level - 1);
    }
    assert!(whole < LEVELS, "the stack had room for all, so the test shows nothing");
}

struct Over<'a>(&'a AtomicBool);
impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs threads that clone and drop a handle to the storage that `work` passes to them, as fast as they can.
fn with_weak_reference_threads(work: impl FnOnce(&dyn Fn(WeakStorage))) {
    let (shown, over) = (Mutex::new(None::<WeakStorage>), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let weak = shown.lock().unwrap().clone();
                    if let Some(weak) = weak {
                        (0..100).for_each(|_| drop(weak.upgrade()));
                    }
                }
            });
        }
        // The drop also stops the threads if the work fails.
        let _over = Over(&over);
        work(&|weak| *shown.lock().unwrap() = Some(weak));
    });
}

#[test]
fn weak_references_take_no_unsent_tensor_away() {
    const MANY: u64 = 20_000;
    with_weak_reference_threads(|show| {
        let queue = Queue::<Tensor<u64>>::bounded(1).unwrap();
        let (mut refused, mut lost) = (0, 0);
        let deadline = Instant::now() + Duration::from_secs(60);
        for i in 0..MANY {
            let tensor = Tensor::full([16], i).unwrap();
            show(tensor.storage().downgrade());
            refused += u64::from(queue.put(tensor).is_err());
            match queue.try_get() {
                Ok(Some(got)) => assert_eq!(got.to_vec(), [i; 16]),
                Err(GetError::Empty) => {}
                _ => lost += 1,
            }
            assert!(Instant::now() < deadline, "too slow: {i} of {MANY}");
        }
        assert_eq!((refused, lost), (0, 0), "refused, lost of {MANY}");
    });
}

#[test]
fn refused_tensors_return_despite_weak_references() {
    with_weak_reference_threads(|show| {
        let queue = full();
        for _ in 0..2000 {
            let (value, at) = owned();
            show(value.first.storage().downgrade());
            back(queue.try_put(value).unwrap_err()).came_back_to(&at);
        }
    });
}

/// A handle of the storage keeps the memory and gives no access to it, so the tensor is sent.
#[test]
fn tensor_with_a_kept_storage_is_sent() {
    let queue = Queue::<Tensor<u64>>::bounded(1).unwrap();
    let tensor = Tensor::full([8], 5).unwrap();
    let storage = tensor.storage().clone();
    let weak = storage.downgrade();
    assert!(queue.put(tensor).is_ok());
    assert_eq!(weak.upgrade().as_ref(), Some(&storage));
    let mut got = queue.get().unwrap().unwrap();
    assert_eq!(got.storage(), &storage);
    got.as_mut_slice().unwrap()[0] = 6;
    drop(storage);
    assert_eq!(got.to_vec(), [6, 5, 5, 5, 5, 5, 5, 5]);
    drop(got);
    assert!(weak.expired());
}

/// User code that runs when a sent value is dropped can't access the tensor, which belongs to the receiver.
#[test]
fn sent_tensor_is_empty_in_its_dropped_value() {
    static STOLEN: Mutex<Option<Tensor<u64>>> = Mutex::new(None);
    #[derive(Message)]
    struct Thief(Tensor<u64>);
    impl Drop for Thief {
        fn drop(&mut self) {
            if let Ok(none) = Tensor::zeros([0]) {
                *STOLEN.lock().unwrap() = Some(std::mem::replace(&mut self.0, none));
            }
        }
    }
    let queue = Queue::bounded(1).unwrap();
    assert!(queue.put(Thief(Tensor::full([8], 5).unwrap())).is_ok());
    let mut stolen = STOLEN.lock().unwrap().take().unwrap();
    assert!(stolen.is_empty() && stolen.to_vec().is_empty() && stolen.storage().is_empty());
    assert!(stolen.as_mut_slice().unwrap().is_empty() && stolen.get(&[0]).is_err());
    assert!(stolen.storage().downgrade().upgrade().is_none() && stolen.storage().downgrade().expired());
    assert!(format!("{stolen:?} {:?} {:?}", stolen.storage(), stolen.storage().id()).len() > 10);
    stolen.fill(3).unwrap();
    // The tensor can't be sent again, and tensors made from it are empty as well.
    let error = Queue::bounded(1).unwrap().put(stolen).unwrap_err();
    assert!(error.to_string().contains("was sent already"), "{error}");
    let frozen = back(error).freeze();
    let clone = frozen.clone();
    assert!(clone.is_empty() && clone.typed_storage().is_empty() && frozen.contiguous().unwrap().is_empty());
    let error = Queue::bounded(1).unwrap().put(frozen).unwrap_err();
    assert!(error.to_string().contains("was sent already"), "{error}");
    assert_eq!(queue.get().unwrap().map(|got| got.0.to_vec()), Some(vec![5; 8]));
    // The drop of the received value has taken its tensor as well.
    assert_eq!(STOLEN.lock().unwrap().take().map(|got| got.to_vec()), Some(vec![5; 8]));
}
