//! All properties of tensors in messages: each element type in each mode, storages, `requires_grad`, and
//! shapes without memory.

use std::sync::Mutex;

use mp::tensor::{Bool, Complex, Frozen, FrozenStorage, MetaTensor, Shared, TypedStorage, bf16, f16};
use mp::{AnyTensor, Bundle, DType, FrozenTensor, Queue, SharedTensor, Tensor};
use mp_tests::{give, take, travels};

type Any = Bundle<(AnyTensor, (AnyTensor<Frozen>, AnyTensor<Shared>))>;

/// Sends each element type in all modes, typed and untyped.
#[test]
fn tensors_of_every_element_type_round_trip() {
    fn of<T: mp::Element>(values: [T; 3]) {
        let make = || Tensor::from_slice(&values, [3]).unwrap();
        let all = || Bundle((make(), (make().freeze(), make().share())));
        travels(
            || vec![all()],
            |_, Bundle((t, (frozen, shared)))| {
                assert_eq!((t.as_slice().unwrap(), t.dtype()), (&values[..], T::DTYPE));
                assert_eq!((frozen.as_slice().unwrap(), shared.to_vec()), (&values[..], values.to_vec()));
                shared.store(1, values[0]);
                assert_eq!(shared.load(1), values[0]);
            },
        );
        let any = || Bundle((AnyTensor::from(make()), (make().freeze().into(), make().share().into())));
        travels(
            || vec![any()],
            |_, Bundle((t, (frozen, shared))): Any| {
                assert_eq!([t.dtype(), frozen.dtype(), shared.dtype()], [T::DTYPE; 3]);
                assert_eq!(t.downcast::<T>().unwrap().to_vec(), values);
                assert_eq!(frozen.downcast::<T>().unwrap().to_vec(), values);
                assert_eq!(shared.downcast::<T>().unwrap().to_vec(), values);
            },
        );
        SEEN.lock().unwrap().push(T::DTYPE);
    }
    static SEEN: Mutex<Vec<DType>> = Mutex::new(Vec::new());
    of([0_u8, 1, u8::MAX]);
    of([i8::MIN, 0, i8::MAX]);
    of([0_u16, 1, u16::MAX]);
    of([i16::MIN, 0, i16::MAX]);
    of([0_u32, 1, u32::MAX]);
    of([i32::MIN, 0, i32::MAX]);
    of([0_u64, 1, u64::MAX]);
    of([i64::MIN, 0, i64::MAX]);
    of([f16::MIN, f16::from_f32(0.5), f16::INFINITY]);
    of([bf16::MIN, bf16::from_f32(0.5), bf16::INFINITY]);
    of([f32::MIN, 0.5, f32::INFINITY]);
    of([f64::MIN, 0.5, f64::INFINITY]);
    of([Bool::TRUE, Bool::FALSE, Bool::TRUE]);
    of([Complex::new(1.0_f32, -2.0), Complex::new(0.0, 0.5), Complex::new(f32::MAX, f32::MIN)]);
    of([Complex::new(1.0_f64, -2.0), Complex::new(0.0, 0.5), Complex::new(f64::MAX, f64::MIN)]);
    of([0, 0x38, 0xff].map(mp::tensor::F8E4M3FN));
    of([0, 0x3c, 0xff].map(mp::tensor::F8E5M2));
    of([0, 0x40, 0x80].map(mp::tensor::F8E4M3FNUZ));
    of([0, 0x40, 0x80].map(mp::tensor::F8E5M2FNUZ));
    of([0, 0x7f, 0xff].map(mp::tensor::F8E8M0FNU));
    assert_eq!(*SEEN.lock().unwrap(), DType::ALL, "a type is missing");
}

#[test]
fn sent_storage_and_its_views_stay_one_storage() {
    type Frozens =
        (FrozenStorage, FrozenTensor<f32>, FrozenTensor<f32>, FrozenTensor<f32>, TypedStorage<f32>);
    let make = || {
        let x = Tensor::from_fn(&[3, 4], |i| i as f32).unwrap().freeze();
        let (row, column) = (x.select(0, 2).unwrap(), x.select(1, 1).unwrap());
        (x.typed_storage().bytes(), x.clone(), row, column, x.typed_storage())
    };
    travels(
        || vec![make()],
        |_, (bytes, x, row, column, typed): Frozens| {
            let of = x.storage();
            assert!(bytes.as_tensor().storage() == of && row.storage() == of && column.storage() == of);
            assert_eq!(of.hold().count(), 5, "five handles share one hold");
            assert_eq!((bytes.nbytes(), typed.len(), typed == x.typed_storage()), (48, 12, true));
            assert_eq!(bytes.cast::<f32>().as_tensor().to_vec(), x.to_vec());
            assert_eq!(typed.tensor(&[3], &[4], 1).unwrap().to_vec(), column.to_vec());
            assert_eq!(row.to_vec(), [8.0, 9.0, 10.0, 11.0]);
            assert!(typed.tensor(&[3], &[4], 4).is_err(), "the view exceeds the storage");
        },
    );
    let shared = || {
        let x = Tensor::<i64>::zeros([4]).unwrap().share();
        (x.typed_storage(), x)
    };
    travels(
        || vec![shared()],
        |_, (storage, x): (TypedStorage<i64, Shared>, SharedTensor<i64>)| {
            storage.tensor(&[], &[], 3).unwrap().store(0, 7);
            assert_eq!((x.load(3), storage.as_tensor().storage() == x.storage()), (7, true));
        },
    );
}

#[test]
fn storage_size_is_equal_at_its_receiver() {
    let views = || {
        let x = Tensor::from_fn(&[3, 7], |i| i as u8).unwrap().freeze();
        let empty = x.narrow(0, 3, 0).unwrap();
        (x.select(0, 1).unwrap(), x.select(1, 6).unwrap(), empty, x)
    };
    type Views = (FrozenTensor<u8>, FrozenTensor<u8>, FrozenTensor<u8>, FrozenTensor<u8>);
    travels(
        || vec![views()],
        |_, (row, column, empty, x): Views| {
            for view in [&row, &column, &empty, &x] {
                assert_eq!((view.storage().len(), view.typed_storage().len()), (21, 21));
            }
            assert!(row.as_strided([22], [1], 0).is_err(), "beyond the requested size");
            assert_eq!(row.as_strided([21], [1], 0).unwrap().to_vec(), x.to_vec());
        },
    );
    // The tensor to receive is the second of three elements, and has one owner.
    travels(
        || vec![Tensor::from_slice(&[1.5_f32, 2.5, 3.5], [3]).unwrap()],
        |_, x: Tensor<f32>| assert_eq!((x.storage().len(), x.to_vec()), (12, vec![1.5, 2.5, 3.5])),
    );
}

#[test]
fn requires_grad_is_sent_and_history_stays() {
    let leaf = || {
        let mut t = Tensor::<f32>::full([2, 2], 1.5).unwrap();
        t.set_requires_grad(true).unwrap();
        t
    };
    travels(
        || {
            vec![Bundle((
                leaf(),
                (leaf().freeze(), leaf().share(), Tensor::<f32>::zeros([1]).unwrap().freeze()),
            ))]
        },
        |_, Bundle((t, (frozen, shared, plain)))| {
            assert!(t.requires_grad() && t.is_leaf() && frozen.requires_grad() && shared.requires_grad());
            assert!(!plain.requires_grad() && plain.is_leaf());
        },
    );
    let queue = Queue::bounded(1).unwrap();
    let view = leaf().freeze().select(0, 1).unwrap();
    assert!(view.requires_grad() && !view.is_leaf());
    let error = queue.put(view).unwrap_err();
    assert!(error.to_string().contains("detach()"), "{error}");
    let view = error.into_value();
    give(&queue, view.clone().detach());
    assert_eq!((take(&queue).requires_grad(), view.requires_grad()), (false, true));
    // The same holds for an exclusive tensor, which is returned unchanged.
    let queue = Queue::bounded(1).unwrap();
    let mut result = leaf();
    result.set_non_leaf();
    let error = queue.put(result).unwrap_err();
    assert!(error.to_string().contains("not a leaf"), "{error}");
    let mut result = error.into_value();
    assert!(result.set_requires_grad(false).unwrap_err().to_string().contains("leaves only"));
    give(&queue, result.detach());
    assert_eq!(take(&queue).to_vec(), [1.5; 4]);
    assert!(Tensor::<i32>::zeros([1]).unwrap().set_requires_grad(true).is_err());
}

#[test]
fn tensors_without_memory_round_trip() {
    let plan = MetaTensor::new(&[1 << 40, 1 << 10], DType::BF16).unwrap().t().unwrap();
    mp_tests::same(&[plan, plan.select(1, 3).unwrap(), MetaTensor::new(&[], DType::Bool).unwrap()]);
    // The plan is plain data, which has the same meaning outside of messages.
    let bytes = rmp_serde::to_vec(&plan).unwrap();
    assert_eq!(rmp_serde::from_slice::<MetaTensor>(&bytes).unwrap(), plan);
    for hostile in [
        rmp_serde::to_vec(&("float32", (0_u64, vec![u64::MAX, 2], Vec::<i64>::new()))),
        rmp_serde::to_vec(&("float32", (0_u64, vec![1_u64; 9], Vec::<i64>::new()))),
        rmp_serde::to_vec(&("float32", (0_u64, vec![2_u64], vec![-1_i64]))),
        rmp_serde::to_vec(&("float32", (u64::MAX, vec![2_u64, 2], vec![i64::MAX, i64::MAX]))),
        rmp_serde::to_vec(&("float31", (0_u64, vec![2_u64], vec![1_i64]))),
    ] {
        assert!(rmp_serde::from_slice::<MetaTensor>(&hostile.unwrap()).is_err());
    }
}

#[test]
fn tensors_are_compared_mapped_filled_and_copied() {
    let x = Tensor::<i32>::from_fn(&[2, 3], |i| i as i32).unwrap();
    let t = x.view().t().unwrap().contiguous().unwrap();
    assert!(t == x.view().t().unwrap() && t.to_vec() == [0, 3, 1, 4, 2, 5]);
    // Tensors with another shape or another element are not equal.
    assert!(t != x && x.view().reshape(&[6]).unwrap() != x && x.map(|v| v + 1).unwrap() != x);
    let nan = Tensor::from_slice(&[f32::NAN], [1]).unwrap();
    assert!(nan != nan.view());

    let half = t.map(|v| 0.5 * v as f32).unwrap();
    assert_eq!((half.shape(), half.to_vec()), (&[3, 2][..], vec![0.0, 1.5, 0.5, 2.0, 1.0, 2.5]));
    let shared = x.try_clone().unwrap().share();
    assert_eq!(shared.map(|v| -v).unwrap().to_vec(), [0, -1, -2, -3, -4, -5]);

    let mut y = x.try_clone().unwrap();
    y.map_in_place(|v| v * v).unwrap();
    assert_eq!(y.to_vec(), [0, 1, 4, 9, 16, 25]);
    // The elements of a single column are not adjacent.
    y.view_mut().select(1, 1).unwrap().fill(7).unwrap();
    assert_eq!(y.to_vec(), [0, 7, 4, 9, 7, 25]);
    y.view_mut().select(1, 0).unwrap().copy_from(&x.view().select(1, 2).unwrap()).unwrap();
    assert_eq!(y.to_vec(), [2, 7, 4, 5, 7, 25]);
    assert!(y.copy_from(&t).is_err() && y.to_vec() == [2, 7, 4, 5, 7, 25]);
    assert_eq!((y.get(&[1, 2]).unwrap(), y.view().narrow(1, 1, 1).unwrap().ndim()), (25, 2));
    assert!(y.item().is_err());
    assert_eq!(Tensor::full([], 3_u8).unwrap().item().unwrap(), 3);
    assert_eq!(y.iter().map(i64::from).sum::<i64>(), 50);
    assert_eq!((y.nbytes(), y.is_contiguous(), y.view().t().unwrap().is_contiguous()), (24, true, false));
}
