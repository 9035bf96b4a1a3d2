//! Random chains of views must have equal results on tensors and on arrays of `ndarray`. Writes through the
//! views must change the same elements.

use std::cell::RefCell;
use std::collections::HashSet;

use mp::{FrozenTensor, Tensor, TensorViewMut};
use ndarray::{ArcArray, ArrayD, Axis, IxDyn, Slice};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

type Model = ArcArray<i32, IxDyn>;

/// Operation on the previous view. Numbers may be out of range.
#[derive(Clone, Debug)]
enum Op {
    Slice(usize, usize, usize, isize),
    Select(usize, usize),
    Permute(Vec<usize>),
    Transpose(usize, usize),
    Unsqueeze(usize),
    SqueezeDim(usize),
    Squeeze,
    Diagonal(isize),
    Expand(Vec<usize>),
    Unfold(usize, usize, usize),
    Reshape(Vec<usize>),
    Flatten(usize, usize),
    Split(usize, usize),
    SplitSizes(Vec<usize>, usize),
}

fn op() -> impl Strategy<Value = Op> {
    let dim = || 0..4_usize;
    prop_oneof![
        (dim(), 0..6_usize, 0..7_usize, -1..4_isize).prop_map(|(d, s, e, step)| Op::Slice(d, s, e, step)),
        (dim(), 0..5_usize).prop_map(|(d, i)| Op::Select(d, i)),
        Just(vec![0, 1, 2]).prop_shuffle().prop_map(Op::Permute),
        (dim(), dim()).prop_map(|(a, b)| Op::Transpose(a, b)),
        dim().prop_map(Op::Unsqueeze),
        dim().prop_map(Op::SqueezeDim),
        Just(Op::Squeeze),
        (-3..4_isize).prop_map(Op::Diagonal),
        proptest::collection::vec(0..5_usize, 0..4).prop_map(Op::Expand),
        (dim(), 0..4_usize, 0..3_usize).prop_map(|(d, n, step)| Op::Unfold(d, n, step)),
        proptest::collection::vec(0..7_usize, 0..4).prop_map(Op::Reshape),
        (0..4_usize, 0..4_usize).prop_map(|(a, b)| Op::Flatten(a, b)),
        (0..4_usize, dim()).prop_map(|(n, d)| Op::Split(n, d)),
        (proptest::collection::vec(0..4_usize, 1..3), dim()).prop_map(|(n, d)| Op::SplitSizes(n, d)),
    ]
}

fn shaped(a: &Model, shape: &[usize]) -> Option<Model> {
    let fits = shape.iter().product::<usize>() == a.len();
    fits.then(|| ArrayD::from_shape_vec(shape, a.iter().copied().collect()).unwrap().into_shared())
}

/// Returns the expected result of the operation, or `None` if the operation must fail.
fn expected(a: &Model, op: &Op) -> Option<Model> {
    let shape = a.shape();
    let in_range = |d: usize| d < shape.len();
    let part = |d: usize, from: usize, to: usize, step: isize| {
        let mut a = a.clone();
        a.slice_axis_inplace(Axis(d), Slice::new(from as isize, Some(to as isize), step));
        a
    };
    match *op {
        Op::Slice(d, s, e, step) => {
            (in_range(d) && s <= e && e <= shape[d] && step > 0).then(|| part(d, s, e, step))
        }
        Op::Select(d, i) => (in_range(d) && i < shape[d]).then(|| a.clone().index_axis_move(Axis(d), i)),
        Op::Permute(ref order) => (order.len() == shape.len()).then(|| a.clone().permuted_axes(IxDyn(order))),
        Op::Transpose(x, y) => (in_range(x) && in_range(y)).then(|| {
            let mut a = a.clone();
            a.swap_axes(x, y);
            a
        }),
        Op::Unsqueeze(d) => (d <= shape.len() && shape.len() < 8).then(|| a.clone().insert_axis(Axis(d))),
        Op::SqueezeDim(d) => {
            in_range(d).then(|| if shape[d] == 1 { a.clone().index_axis_move(Axis(d), 0) } else { a.clone() })
        }
        Op::Squeeze => shaped(a, &shape.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>()),
        Op::Diagonal(offset) => {
            let &[rows, columns] = shape else { return None };
            let n = (0..rows).filter_map(|r| {
                let c = r.checked_add_signed(offset)?;
                (c < columns).then(|| a[[r, c]])
            });
            Some(ArrayD::from_shape_vec(vec![n.clone().count()], n.collect()).unwrap().into_shared())
        }
        Op::Expand(ref to) => {
            // `ndarray` can broadcast an empty dimension to another size. torch and this library can't.
            let more = to.len().checked_sub(shape.len())?;
            let fits = shape.iter().zip(&to[more..]).all(|(n, to)| n == to || *n == 1);
            fits.then(|| a.broadcast(IxDyn(to)).unwrap().to_owned().into_shared())
        }
        Op::Unfold(d, n, step) => {
            if !in_range(d) || step == 0 || n > shape[d] || shape.len() == 8 {
                return None;
            }
            let windows = (0..=shape[d] - n).step_by(step).map(|from| {
                let mut window = part(d, from, from + n, 1).insert_axis(Axis(d));
                // The dimension of the window becomes the last one.
                let mut order: Vec<_> = (0..window.ndim()).filter(|at| *at != d + 1).collect();
                order.push(d + 1);
                window = window.permuted_axes(IxDyn(&order));
                window
            });
            let windows: Vec<_> = windows.collect();
            let views: Vec<_> = windows.iter().map(|w| w.view()).collect();
            Some(ndarray::concatenate(Axis(d), &views).unwrap().into_shared())
        }
        Op::Reshape(ref to) => shaped(a, to),
        Op::Flatten(from, to) => {
            if from > to || to > shape.len() {
                return None;
            }
            let joined = [shape[from..to].iter().product()];
            shaped(a, &[&shape[..from], &joined, &shape[to..]].concat())
        }
        // Takes the last piece.
        Op::Split(n, d) => (in_range(d) && n > 0).then(|| {
            let from = (shape[d].max(1) - 1) / n * n;
            part(d, from, shape[d], 1)
        }),
        Op::SplitSizes(ref sizes, d) => {
            let whole = in_range(d) && sizes.iter().sum::<usize>() == shape[d];
            whole.then(|| part(d, shape[d] - sizes[sizes.len() - 1], shape[d], 1))
        }
    }
}

fn apply(t: &FrozenTensor<i32>, op: &Op) -> Result<FrozenTensor<i32>, mp::Error> {
    let last = |all: Vec<FrozenTensor<i32>>| all.last().expect("at least one").clone();
    match *op {
        Op::Slice(d, s, e, step) => t.slice(d, s..e, step),
        Op::Select(d, i) => t.select(d, i),
        Op::Permute(ref order) => t.permute(order),
        Op::Transpose(a, b) => t.transpose(a, b),
        Op::Unsqueeze(d) => t.unsqueeze(d),
        Op::SqueezeDim(d) => t.squeeze_dim(d),
        Op::Squeeze => t.squeeze(),
        Op::Diagonal(offset) if t.ndim() == 2 => t.diagonal(offset, 0, 1),
        Op::Diagonal(offset) => t.diagonal(offset, 0, 9),
        Op::Expand(ref to) => t.expand(to),
        Op::Unfold(d, n, step) => t.unfold(d, n, step),
        Op::Reshape(ref to) => t.reshape(to),
        Op::Flatten(from, to) => t.flatten(from..to),
        Op::Split(n, d) => t.split(n, d).map(last),
        Op::SplitSizes(ref sizes, d) => t.split_sizes(sizes, d).map(last),
    }
}

fn check(t: &FrozenTensor<i32>, a: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(t.shape(), a.shape());
    prop_assert_eq!(t.as_ndarray().unwrap(), a.view());
    prop_assert!(t.iter().eq(a.iter().copied()));
    prop_assert_eq!(t.to_vec(), a.iter().copied().collect::<Vec<_>>());
    prop_assert_eq!(t.contiguous().unwrap().to_vec(), t.to_vec());
    let in_a_row = t.as_ndarray().unwrap().is_standard_layout();
    prop_assert_eq!(
        (t.is_contiguous(), t.as_slice().is_ok()),
        (in_a_row, in_a_row),
        "strides {:?}",
        t.strides()
    );
    Ok(())
}

fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// Returns mostly useful cases: small shapes without empty dimensions, and chains that are not too short.
fn inputs() -> impl Strategy<Value = (Vec<usize>, Vec<Op>)> {
    let size = prop_oneof![1 => Just(0_usize), 12 => 1..6_usize];
    (proptest::collection::vec(size, 0..4), proptest::collection::vec(op(), 0..16))
}

#[test]
fn random_tensor_views_match_ndarray() {
    let worked = RefCell::new(HashSet::new());
    let run = runner(3000).run(&inputs(), |(shape, ops)| {
        let mut t = Tensor::from_fn(&shape, |i| i as i32).unwrap().freeze();
        let storage = t.storage().clone();
        let all = (0..shape.iter().product::<usize>() as i32).collect();
        let mut model = ArrayD::from_shape_vec(shape, all).unwrap().into_shared();
        check(&t, &model)?;
        for op in &ops {
            match (apply(&t, op), expected(&model, op)) {
                (Ok(view), Some(next)) => {
                    (t, model) = (view, next);
                    worked.borrow_mut().insert(std::mem::discriminant(op));
                }
                // Only a copy could have the requested shape.
                (Err(e), Some(_)) if matches!(op, Op::Reshape(_) | Op::Flatten(..)) => {
                    prop_assert!(!t.is_contiguous() && e.to_string().contains("contiguous()"), "{op:?}: {e}");
                }
                (Err(e), None) => {
                    use mp::Error::{InvalidArgument, LimitExceeded, OutOfBounds, Shape};
                    let about_the_view =
                        matches!(e, Shape(_) | OutOfBounds(_) | InvalidArgument(_) | LimitExceeded(_));
                    prop_assert!(about_the_view, "{op:?}: {e:?}");
                }
                (got, expected) => {
                    return Err(TestCaseError::fail(format!("{op:?} gave {got:?} and not {expected:?}")));
                }
            }
            check(&t, &model)?;
            prop_assert!(*t.storage() == storage);
        }
        // The view is the same after it was sent.
        let t: FrozenTensor<i32> =
            mp::message::unpack(mp::message::pack(t).map_err(|e| e.error).unwrap()).unwrap();
        check(&t, &model)
    });
    run.unwrap();
    assert_eq!(worked.borrow().len(), 14, "an operation was always refused");
}

/// Applies the operation to a mutable view. Returns `None` for operations that mutable views don't have.
fn apply_mut<'a>(t: TensorViewMut<'a, i32>, op: &Op) -> Option<Result<TensorViewMut<'a, i32>, mp::Error>> {
    Some(match *op {
        Op::Slice(d, s, e, step) => t.slice(d, s..e, step),
        Op::Select(d, i) => t.select(d, i),
        Op::Permute(ref order) => t.permute(order),
        Op::Transpose(a, b) => t.transpose(a, b),
        Op::Unsqueeze(d) => t.unsqueeze(d),
        Op::SqueezeDim(d) => t.squeeze_dim(d),
        Op::Squeeze => t.squeeze(),
        Op::Diagonal(offset) if t.ndim() == 2 => t.diagonal(offset, 0, 1),
        Op::Reshape(ref to) => t.reshape(to),
        Op::Flatten(from, to) => t.flatten(from..to),
        _ => return None,
    })
}

#[test]
fn writes_through_random_tensor_views_match_ndarray() {
    let run = runner(2000).run(&inputs(), |(shape, ops)| {
        let n = shape.iter().product::<usize>();
        let mut t = Tensor::from_fn(&shape, |i| i as i32).unwrap();
        let mut model = ArrayD::from_shape_vec(shape, (0..n as i32).collect()).unwrap().into_shared();
        let mut view = t.view_mut();
        for op in &ops {
            let Some(next) = expected(&model, op) else { continue };
            // The chain ends at a result that requires a copy, or whose elements overlap.
            let Some(Ok(narrower)) = apply_mut(view, op) else { break };
            (view, model) = (narrower, next);
            prop_assert_eq!(view.as_ndarray().unwrap(), model.view());
            // Each way to write changes each element of the view once, and no other element.
            view.iter_mut().for_each(|v| *v += 1000);
            view.as_mut_ndarray().unwrap().mapv_inplace(|v| v + 1000);
            let copy = view.contiguous().unwrap();
            view.fill(-1).unwrap();
            view.copy_from(&copy).unwrap();
            let more = model.mapv(|v| v + 2000);
            prop_assert_eq!(view.as_ndarray().unwrap(), more.view());
            view.iter_mut().for_each(|v| *v -= 2000);
        }
        // The owner can send the tensor with such a view applied, because no elements overlap.
        let sent =
            ops.iter().try_fold(Tensor::from_fn(t.shape(), |i| i as i32).unwrap(), |t, op| match *op {
                Op::Slice(d, s, e, step) => t.slice(d, s..e, step),
                Op::Permute(ref order) => t.permute(order),
                Op::Diagonal(offset) if t.ndim() > 1 => t.diagonal(offset, 0, 1),
                Op::Flatten(from, to) => t.flatten(from..to),
                Op::Reshape(ref to) => t.reshape(to),
                _ => Ok(t),
            });
        if let Ok(sent) = sent {
            let (all, strides) = (sent.to_vec(), sent.strides().to_vec());
            let arrived: Tensor<i32> =
                mp::message::unpack(mp::message::pack(sent).map_err(|e| e.error).unwrap()).unwrap();
            prop_assert_eq!((arrived.to_vec(), arrived.strides()), (all, &strides[..]));
        }
        // All other elements are unchanged.
        prop_assert_eq!(t.to_vec(), (0..n as i32).collect::<Vec<_>>());
        Ok(())
    });
    run.unwrap();
}
