//! Structures that safe code creates under the names of other layers. They are refused, or work as structures
//! of zeros.

use std::fmt::Debug;
use std::sync::mpsc;
use std::time::Duration;

use mp::message::{Message, Outgoing};
use mp::sync::{
    Array, Barrier, BoundedSemaphore, Condition, Event, Lock, Once, RLock, RawArray, RawValue, RwLock,
    Semaphore,
};
use mp::{Queue, ShareableList, Tensor};
use mp_core::{Allocator, Arena, Hold, Structure};
use mp_reduce::MessagePack;
use mp_tests::DEADLINE;
use serde::{Serialize, Serializer};

const AT_ONCE: Duration = Duration::ZERO;

/// Handle to any block, encoded like the handle of an object.
struct Handle(Hold);

impl Serialize for Handle {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        attached(&self.0)?.serialize(s)
    }
}

/// Handle to any block, encoded like the handle of a [`ShareableList`].
struct ListHandle(Hold);

impl Serialize for ListHandle {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_newtype_variant("Wire", 0, "Arena", &attached(&self.0)?)
    }
}

fn attached<E: serde::ser::Error>(hold: &Hold) -> Result<u32, E> {
    mp::message::scope::outgoing("a handle", |out| out.attach_object(hold)).map_err(E::custom)
}

/// Encodes `sent`, and reads a `T` from the bytes.
fn read_as<T: Message>(sent: &impl Serialize) -> Result<T, mp::Error> {
    let mut out = Outgoing::default();
    <MessagePack as mp::message::Codec>::write(&mut out, sent)?;
    T::decode::<MessagePack>(&mut out.into_incoming())
}

/// Runs a test in a separate thread, which must end without a panic.
fn with_deadline(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        _ = done.send(());
    });
    assert_ne!(ended.recv_timeout(DEADLINE), Err(mpsc::RecvTimeoutError::Timeout), "the test hangs");
    thread.join().expect("the test does not panic");
}

/// Receives structures of zeros under a name, of many lengths. Calls `using` with the accepted ones, and
/// returns their number.
fn use_zeros<T: Message + Debug>(name: &str, using: impl Fn(&T)) -> usize {
    let lengths = (0..80).chain([128, 1024, 1 << 17]);
    let made = lengths.map(|len| Structure::new(name, len).unwrap());
    let received = made.filter_map(|zeros| read_as::<T>(&Handle(zeros.into_hold())).ok());
    received.map(|value| using(&value)).count()
}

/// Returns the name of a structure that contains a `T`.
fn name_of<T>(kind: &str) -> String {
    let (name, size, align) = (std::any::type_name::<T>(), size_of::<T>(), align_of::<T>());
    format!("mp_sync::{kind}<{name}> of {size} bytes aligned to {align}")
}

#[test]
fn locks_of_zeros_are_refused_or_unlocked() {
    with_deadline(|| {
        type Wide = [u64; 20];
        // The length that the structure stores for its data is zero, too.
        assert_eq!(use_zeros(&name_of::<u64>("Lock"), |_: &Lock<u64>| ()), 0);
        assert_eq!(use_zeros(&name_of::<u64>("RawValue"), |_: &RawValue<u64>| ()), 0);
        let empty = |array: &Array<u64>| assert!(array.lock().unwrap().is_empty());
        assert!(use_zeros(&name_of::<u64>("Array"), empty) > 0);
        let empty = |array: &RawArray<Wide>| assert!(array.is_empty() && array.get(0).is_err());
        assert!(use_zeros(&name_of::<Wide>("RawArray"), empty) > 0);
        let used = use_zeros(&name_of::<Wide>("RLock"), |lock: &RLock<Wide>| {
            let (one, other) = (lock.lock().unwrap(), lock.try_lock().unwrap());
            assert_eq!(one.get(), [0; 20]);
            other.set([7; 20]);
            assert_eq!(one.get(), [7; 20]);
        });
        assert!(used > 0);
        let used = use_zeros(&name_of::<Wide>("RwLock"), |lock: &RwLock<Wide>| {
            *lock.write().unwrap() = [7; 20];
            let read = lock.read().unwrap();
            assert!(lock.try_write().is_err());
            assert_eq!(*read, [7; 20]);
        });
        assert!(used > 0);
        let used = use_zeros("mp_sync::Once", |once: &Once| {
            once.call_once(|_| ()).unwrap();
            assert!(once.is_completed());
        });
        assert!(used > 0);
    });
}

#[test]
fn signaling_objects_of_zeros_are_refused_or_unset() {
    with_deadline(|| {
        let used = use_zeros("mp_sync::Semaphore", |permits: &Semaphore| {
            assert!(permits.try_acquire().is_err());
            _ = (permits.available(), permits.release(), permits.add_permits(1));
            drop(permits.try_acquire());
        });
        assert!(used > 0);
        let used = use_zeros("mp_sync::BoundedSemaphore", |permits: &BoundedSemaphore| {
            assert!(permits.try_acquire().is_err());
            _ = permits.release();
        });
        assert!(used > 0);
        let used = use_zeros("mp_sync::Event", |event: &Event| {
            assert!(!event.is_set());
            event.set().unwrap();
            event.wait_timeout(AT_ONCE).unwrap();
            event.clear().unwrap();
        });
        assert!(used > 0);
        let lock = Lock::new(0_u64).unwrap();
        let used = use_zeros("mp_sync::Condition", |condition: &Condition| {
            _ = (condition.notify(2), condition.notify_all());
            drop(condition.wait_timeout(lock.lock().unwrap(), AT_ONCE));
        });
        assert!(used > 0);
        let used = use_zeros("mp_sync::Barrier", |barrier: &Barrier| {
            _ = (barrier.n_waiting(), barrier.wait_timeout(AT_ONCE));
            let enrolled = barrier.enroll();
            _ = (barrier.abort(), barrier.reset());
            drop(enrolled);
        });
        assert!(used > 0);
    });
}

#[test]
fn list_of_zeros_is_refused_or_empty() {
    with_deadline(|| {
        for len in [0, 8, 9, 10, 11, 64] {
            let zeros = Structure::new("mp_sync::ShareableList", len).unwrap();
            if let Ok(list) = read_as::<ShareableList>(&ListHandle(zeros.into_hold())) {
                assert!(list.is_empty() && list.get(0).is_err() && list.set(0, 1).is_err(), "{len}");
            }
        }
    });
}

/// The lock is refused, because its guards would be misaligned references.
#[test]
fn lock_of_overaligned_data_is_refused() {
    #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C, align(128))]
    struct Line([u64; 16]);

    let unused = |_: &_| panic!("data aligned to 128 bytes");
    assert_eq!(use_zeros::<Array<Line>>(&name_of::<Line>("Array"), unused), 0);
    let unused = |_: &_| panic!("data aligned to 128 bytes");
    assert_eq!(use_zeros::<RLock<Line>>(&name_of::<Line>("RLock"), unused), 0);
    let unused = |_: &_| panic!("data aligned to 128 bytes");
    assert_eq!(use_zeros::<RwLock<Line>>(&name_of::<Line>("RwLock"), unused), 0);
    let unused = |_: &_| panic!("data aligned to 128 bytes");
    assert_eq!(use_zeros::<RawArray<Line>>(&name_of::<Line>("RawArray"), unused), 0);
}

#[test]
fn queue_is_received_from_its_own_block_only() {
    let arena = Arena::current().unwrap();
    let growing = Allocator(arena).alloc_growing(1 << 20).unwrap();
    let plain = Allocator(arena).alloc(1 << 12).unwrap();
    let tensor = Tensor::<u64>::full([512], u64::from_le_bytes(*b"mp-ring5")).unwrap();
    let written = tensor.storage().hold().clone();
    let object = Structure::new("mp_queue::Queue", 512).unwrap().into_hold();
    for block in [growing, plain, written, object] {
        assert!(read_as::<Queue<u64>>(&Handle(block)).is_err());
    }
    assert_eq!(tensor.to_vec(), [u64::from_le_bytes(*b"mp-ring5"); 512]);
}
