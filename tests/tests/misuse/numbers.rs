//! Numbers at their limits, passed to public functions or found in foreign bytes. The call returns a result
//! or an error, and does not panic, even if sums and products overflow. (Indexing may panic, as for a slice,
//! and documents it.)

use std::time::{Duration, Instant};

use mp::list::ListItem;
use mp::memory::{MappedFile, StorageId, storage_from_cache};
use mp::sync::RawArray;
use mp::tensor::{Complex, Layout, MetaTensor, NestedTensor, SparseCompressed, SparseCoo};
use mp::{
    AnyTensor, Barrier, BoundedSemaphore, Condition, DType, Event, Queue, QueueOptions, RwLock, Semaphore,
    ShareableList, SharedMemory, Tensor,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Small numbers, and numbers at which something overflows. No machine has enough memory for the large ones.
fn number() -> impl Strategy<Value = usize> {
    const MAX: usize = usize::MAX;
    const SIGNED: usize = isize::MAX as usize;
    prop_oneof![
        4 => 0..5_usize,
        4 => prop::sample::select(vec![
            MAX, MAX - 1, MAX / 2, MAX / 2 + 2, MAX / 8, MAX / 8 + 1, MAX / 16, MAX / 16 + 1,
            SIGNED - 1, SIGNED / 8,
        ]),
    ]
}

fn stride() -> impl Strategy<Value = isize> {
    prop_oneof![number().prop_map(|n| n as isize), -2..3_isize, Just(isize::MIN), Just(isize::MIN + 1)]
}

fn numbers(most: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(number(), 0..=most)
}

/// Runs `test` with `cases` random inputs, which are the same in each run.
fn cases<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value)) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let run = |value| {
        test(value);
        Ok(())
    };
    if let Err(e) = runner.run(&strategy, run) {
        panic!("{e}");
    }
}

/// Calls each method that makes a view of a tensor, with these numbers as arguments.
macro_rules! views {
    ($t:expr, $a:expr, $b:expr, $c:expr, $step:expr, $shape:expr) => {{
        let (t, a, b, c, step, shape) = ($t, $a, $b, $c, $step, &$shape[..]);
        [
            t().narrow(a, b, c),
            t().slice(a, b..c, step),
            t().slice(a, b..=c, step),
            t().slice(a, .., step),
            t().select(a, b),
            t().transpose(a, b),
            t().t(),
            t().permute(shape),
            t().reshape(shape),
            t().flatten(a..=b),
            t().flatten(..),
            t().squeeze(),
            t().squeeze_dim(a),
            t().unsqueeze(a),
            t().diagonal(step, a, b),
        ]
    }};
}

/// Calls each method whose views can exist at the same time, with these numbers as arguments.
macro_rules! several {
    ($t:expr, $a:expr, $b:expr, $c:expr, $shape:expr) => {{
        let (t, a, b, c, shape) = ($t, $a, $b, $c, &$shape[..]);
        let mut all: Vec<_> = [t.expand(shape), t.unfold(a, b, c)].into_iter().flatten().collect();
        // Makes as many views as requested. They are in memory of this process, so their number is limited.
        let few = |n: Option<&usize>| n.is_none_or(|n| *n < 1000);
        if few(t.shape().get(b)) {
            all.extend([t.chunk(a, b), t.split(a, b), t.unbind(b)].into_iter().flatten().flatten());
        } else if a == 0 || a > usize::MAX / 4 {
            all.extend([t.chunk(1, b), t.split(a, b)].into_iter().flatten().flatten());
        }
        all.extend(t.split_sizes(shape, a).into_iter().flatten());
        all
    }};
}

#[test]
fn views_with_arbitrary_numbers_never_panic() {
    let strategy = (numbers(4), numbers(4), number(), number(), number(), stride());
    cases(1000, strategy, |(made, shape, a, b, c, step)| {
        let Ok(meta) = MetaTensor::new(&made, DType::Complex128) else { return };
        let made = views!(|| meta, a, b, c, step, shape).into_iter().flatten();
        for view in made.chain(several!(meta, a, b, c, shape)) {
            _ = (view.len(), view.nbytes(), view.is_contiguous(), format!("{view:?}"));
            _ = views!(|| view, b, c, a, step, shape);
            _ = several!(view, b, a, c, shape);
        }
    });
}

/// Reads the elements of tensors with and without memory.
#[test]
fn tensors_of_arbitrary_shapes_never_panic() {
    let strategy =
        (numbers(4), numbers(4), prop::collection::vec(stride(), 0..4), number(), number(), number());
    cases(1000, strategy, |(made, shape, strides, a, b, c)| {
        _ = AnyTensor::empty(&made, DType::Complex128).map(|t| t.to_string());
        let Ok(mut t) = Tensor::<Complex<f64>>::zeros(&made) else { return };
        _ = t
            .split_sizes_mut(&shape, a)
            .map(|all| all.iter().map(|piece| piece.to_vec()).collect::<Vec<_>>());
        if let Ok((mut left, right)) = t.split_at_mut(a, b) {
            _ = (left.fill(right.iter().next().unwrap_or_default()), right.as_ndarray().map(|a| a.len()));
        }
        _ = (
            t.get(&shape),
            t.set(&shape, Complex::new(1.0, 0.0)),
            t.item(),
            t.as_mut_slice().map(|s| s.len()),
        );
        let t = t.freeze();
        let views = views!(|| t.clone(), a, b, c, 1, shape).into_iter().flatten();
        for view in views.chain(several!(&t, a, b, c, shape)).chain(t.as_strided(&shape, &strides, a)) {
            // An expanded view can have any number of elements.
            if view.len() < 1000 {
                _ = (view.to_vec(), view.contiguous().unwrap(), view.to_string(), view == t);
                _ = (view.map(|v| v.re).unwrap(), view.as_ndarray().unwrap().sum());
                _ = (view.clone().into_bytes().is_ok(), view.typed_storage().tensor(&shape, &strides, c));
            }
        }
        _ = (Tensor::<u8>::from_slice(&[1, 2], &shape), Tensor::<f32>::full(&shape, 1.0));
    });
}

#[test]
fn sparse_and_nested_tensors_never_panic_on_bad_parts() {
    let strategy = (numbers(3), numbers(3), prop::collection::vec(stride(), 0..4), number(), number());
    cases(1000, strategy, |(shape, values, indices, a, b)| {
        let line: Vec<i64> = indices.iter().map(|i| *i as i64).collect();
        let of = |shape: &[usize]| Some(Tensor::from_slice(&line, shape).ok()?.freeze());
        let Some(flat) = of(&[line.len()]) else { return };
        let Ok(values) = Tensor::<f64>::zeros(&values) else { return };
        let values = values.freeze();
        for rows in [0, 1, 2, 3, line.len()] {
            let Some(columns) = line.len().checked_div(rows) else { continue };
            let Some(indices) = of(&[rows, columns]) else { continue };
            if let Ok(sparse) = SparseCoo::new(indices.clone(), values.clone(), &shape) {
                _ = (sparse.to_dense(), sparse.nnz(), format!("{sparse:?}"));
            }
            if let Ok(nested) = NestedTensor::new(values.clone(), indices.clone(), indices, flat.clone()) {
                _ = (nested.get(a).is_ok(), nested.unbind().is_ok());
            }
        }
        // Also next to a dimension of size 0.
        if let (Ok(none), Ok(values)) = (Tensor::<i64>::zeros([1, 0]), Tensor::<f64>::zeros([0, a, b])) {
            for shape in [[0, a, b], [a, a, b]] {
                let sparse = SparseCoo::new(none.freeze_copy(), values.freeze_copy(), shape);
                _ = sparse.map(|sparse| sparse.to_dense().is_ok());
            }
        }
        for layout in [Layout::Csr, Layout::Csc, Layout::Bsr, Layout::Bsc] {
            if let Ok(m) = SparseCompressed::new(layout, flat.clone(), flat.clone(), values.clone(), [a, b]) {
                _ = (m.to_dense(), m.nnz());
            }
        }
        if let Ok(dense) = Tensor::<f64>::zeros([a, b]) {
            _ = (SparseCompressed::from_dense(&dense).is_ok(), SparseCoo::from_dense(&dense).is_ok());
        }
    });
}

trait FreezeCopy {
    type Frozen;
    fn freeze_copy(&self) -> Self::Frozen;
}
impl<T: mp::Element> FreezeCopy for Tensor<T> {
    type Frozen = mp::FrozenTensor<T>;
    fn freeze_copy(&self) -> Self::Frozen {
        self.try_clone().unwrap().freeze()
    }
}

/// Each element type is written and read at each offset within a word.
#[test]
fn foreign_elements_of_every_size_are_checked() {
    fn elements<T: mp::Element>(value: T) {
        let memfd = Tensor::full([9], value).unwrap().to_memfd().unwrap();
        let there = MappedFile::<T>::from_fd(&memfd, 0, 9).unwrap();
        for i in 0..9 {
            assert_eq!(there.load(i), value);
            there.store(i, value).unwrap();
        }
        assert_eq!((there.to_vec(), there.to_tensor().unwrap().to_vec()), (vec![value; 9], vec![value; 9]));
        let edges = [0, 1, 8, 16, 145, u64::MAX, u64::MAX - 15, 1 << 63];
        for (at, len) in edges.into_iter().flat_map(|at| edges.map(|len| (at, len as usize))) {
            if let Ok(part) = MappedFile::<T>::from_fd(&memfd, at, len) {
                _ = part.to_vec();
            }
            _ = Tensor::<T>::from_fd(&memfd, at, [len, 2]);
        }
    }
    elements(7_u8);
    elements(-7_i16);
    elements(7.5_f32);
    elements(7_u64);
    elements(Complex::new(1.5_f32, 2.5));
    elements(Complex::new(1.5_f64, 2.5));
}

/// An id consists of untrusted bytes, which may name a missing block, arena or generation.
#[test]
fn arbitrary_storage_ids_are_unknown() {
    let t = Tensor::<u8>::zeros([4]).unwrap();
    let id = t.storage().id();
    let bytes = rmp_serde::to_vec(&id).unwrap();
    let (arena, block, generation): (u64, u32, u64) = rmp_serde::from_slice(&bytes).unwrap();
    let read = |parts: (u64, u32, u64)| -> StorageId {
        rmp_serde::from_slice(&rmp_serde::to_vec(&parts).unwrap()).unwrap()
    };
    assert_eq!(storage_from_cache(read((arena, block, generation))).as_ref(), Some(t.storage()));
    // The neighbouring block may belong to another test.
    _ = (storage_from_cache(read((arena, block + 1, generation))), storage_from_cache(read((arena, 0, 0))));
    for block in [1 << 24, u32::MAX / 64, u32::MAX - 1, u32::MAX] {
        for generation in [0, generation, 1 << 40, u64::MAX] {
            assert_eq!(storage_from_cache(read((arena, block, generation))), None);
            assert_eq!(storage_from_cache(read((!arena, block, generation))), None);
        }
    }
}

const AT_ONCE: Duration = Duration::ZERO;

#[test]
fn queues_with_arbitrary_numbers_never_panic() {
    cases(100, (number(), number(), number()), |(a, b, c)| {
        let options = QueueOptions::new().bytes(a as u64).deliveries(b as u32);
        let made = [options.capacity(c % 5).create(), Queue::bounded(a.max(1 << 25)), Queue::growing(b)];
        for queue in made.into_iter().flatten() {
            _ = (queue.try_put(vec![1_u8; 3]), queue.put_deadline(vec![2], Instant::now()));
            _ = (queue.put_ready_for(a as u64), queue.len(), queue.is_full(), queue.capacity());
            let mut got = Vec::new();
            _ = (queue.try_get_many(&mut got, a), queue.get_many_timeout(&mut got, b, AT_ONCE));
            // An available value is returned at once, however long the time-out is.
            if queue.try_put(vec![3]).is_ok() {
                _ = queue.get_timeout(Duration::MAX).unwrap();
            }
        }
        _ = mp::bounded_channel::<u8>(a.max(1 << 25)).is_ok();
    });
}

#[test]
fn locks_with_arbitrary_numbers_never_panic() {
    cases(100, (number(), number()), |(a, b)| {
        // Each structure has a slot for each permit, waiter or party, so the numbers are small or impossible.
        let few =
            |n: usize| if n < 5 { n as u32 } else { u32::MAX - (usize::MAX - n.max(usize::MAX - 9)) as u32 };
        let (a, many, b) = (few(a), a, few(b));
        if let Ok(permits) = Semaphore::with_limit(a, b) {
            _ = (
                permits.try_acquire().map(mp::sync::Permit::keep),
                permits.add_permits(b),
                permits.release(),
            );
            _ = (permits.available(), permits.acquire_timeout(AT_ONCE));
        }
        _ = (Semaphore::new(a).is_ok(), BoundedSemaphore::new(b).is_ok());
        if let Ok(condition) = Condition::with_waiters(a) {
            _ = condition.notify(many);
        }
        _ = RwLock::with_readers(0_u8, a).map(|lock| lock.try_read().is_ok());
        if let Ok(barrier) = Barrier::new(a) {
            _ = (barrier.wait_timeout(AT_ONCE), barrier.n_waiting());
        }
        let event = Event::new().unwrap();
        event.set().unwrap();
        assert!(event.wait_timeout(Duration::MAX).unwrap());
    });
}

#[test]
fn named_memory_with_arbitrary_numbers_never_panics() {
    let name = format!("mp-numbers-{}", std::process::id());
    let memory = SharedMemory::create(&name, 24).unwrap().unlink_on_drop();
    let list = ShareableList::new([ListItem::Int(1), "text".into()]).unwrap();
    let array = RawArray::<u64>::zeros(3).unwrap();
    cases(500, (number(), number()), |(a, b)| {
        _ = (
            memory.read(a, b),
            memory.read_at(a, &mut [0; 3]),
            memory.write_at(b, &[1; 3]),
            memory.atomic(a),
        );
        _ = (list.room(a), list.get(a), list.set(b, 5), array.get(a), array.set(b, 1));
        if !(5..1 << 40).contains(&b) {
            _ = (
                ShareableList::with_room(["a".into(), 1.into()], b).is_ok(),
                RawArray::<u64>::zeros(b).is_ok(),
            );
            _ = mp::Array::<f64>::zeros(b).is_ok();
            _ = SharedMemory::new(b).map(|memory| memory.unlink_on_drop());
        }
    });
    let clone = memory.clone();
    drop(memory);
    assert!(SharedMemory::open(&name).is_ok(), "a clone still holds the memory");
    clone.write_at(0, &[7]).unwrap();
    assert_eq!(clone.read(0, 1).unwrap(), [7]);
    drop(clone);
    assert!(SharedMemory::open(&name).is_err(), "the last handle removes the name");
}
