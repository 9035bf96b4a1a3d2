//! Random chains of views, compared with a naive model: a list of values that each step copies.

use mp::{FrozenTensor, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Operation on the previous view. Numbers are taken modulo the valid range, or a bit beyond it.
#[derive(Clone, Debug)]
enum Op {
    Narrow(usize, usize, usize),
    Select(usize, usize),
    Transpose(usize, usize),
    Reshape(Vec<usize>),
    Chunk(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..5_usize, 0..7_usize, 0..7_usize).prop_map(|(d, s, n)| Op::Narrow(d, s, n)),
        (0..5_usize, 0..7_usize).prop_map(|(d, i)| Op::Select(d, i)),
        (0..5_usize, 0..5_usize).prop_map(|(a, b)| Op::Transpose(a, b)),
        proptest::collection::vec(0..7_usize, 0..4).prop_map(Op::Reshape),
        (0..5_usize, 0..5_usize).prop_map(|(n, d)| Op::Chunk(n, d)),
    ]
}

/// Values in row-major order.
#[derive(Clone, PartialEq, Debug)]
struct Model {
    shape: Vec<usize>,
    values: Vec<i32>,
}

/// Returns all indices of a shape, in row-major order.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &n in shape {
        all = all.iter().flat_map(|at| (0..n).map(move |i| [&at[..], &[i]].concat())).collect();
    }
    all
}

impl Model {
    fn at(&self, index: &[usize]) -> i32 {
        let i = index.iter().zip(&self.shape).fold(0, |i, (&at, &n)| i * n + at);
        self.values[i]
    }

    /// Returns a model of another shape. `from` returns the index of each element in this model.
    fn view(&self, shape: Vec<usize>, from: impl Fn(&[usize]) -> Vec<usize>) -> Option<Self> {
        let values = indices(&shape).iter().map(|at| self.at(&from(at))).collect();
        Some(Self { shape, values })
    }

    fn narrow(&self, d: usize, start: usize, n: usize) -> Option<Self> {
        if d >= self.shape.len() || start + n > self.shape[d] {
            return None;
        }
        let mut shape = self.shape.clone();
        shape[d] = n;
        self.view(shape, |at| {
            let mut from = at.to_vec();
            from[d] += start;
            from
        })
    }

    /// Returns the result of the operation, or `None` if the operation must fail.
    fn apply(&self, op: &Op) -> Option<Self> {
        match *op {
            Op::Narrow(d, start, n) => self.narrow(d, start, n),
            Op::Select(d, i) => {
                let one = self.narrow(d, i, 1)?;
                let mut shape = one.shape;
                shape.remove(d);
                Some(Self { shape, values: one.values })
            }
            Op::Transpose(a, b) => {
                let mut shape = self.shape.clone();
                if a >= shape.len() || b >= shape.len() {
                    return None;
                }
                shape.swap(a, b);
                self.view(shape, |at| {
                    let mut from = at.to_vec();
                    from.swap(a, b);
                    from
                })
            }
            Op::Reshape(ref shape) => (shape.iter().product::<usize>() == self.values.len())
                .then(|| Self { shape: shape.clone(), values: self.values.clone() }),
            Op::Chunk(n, d) => {
                if n == 0 || d >= self.shape.len() {
                    return None;
                }
                // Takes the last piece, which may be shorter.
                let len = self.shape[d].div_ceil(n).max(1);
                let start = (self.shape[d].max(1) - 1) / len * len;
                self.narrow(d, start, self.shape[d] - start)
            }
        }
    }
}

fn apply(t: &FrozenTensor<i32>, op: &Op) -> Result<FrozenTensor<i32>, mp::Error> {
    match *op {
        Op::Narrow(d, start, n) => t.narrow(d, start, n),
        Op::Select(d, i) => t.select(d, i),
        Op::Transpose(a, b) => t.transpose(a, b),
        Op::Reshape(ref shape) => t.reshape(shape),
        Op::Chunk(n, d) => t.chunk(n, d).map(|all| all.last().expect("at least one").clone()),
    }
}

fn check(t: &FrozenTensor<i32>, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(t.shape(), &model.shape[..]);
    prop_assert_eq!(t.len(), model.values.len());
    prop_assert_eq!(&t.to_vec(), &model.values);
    prop_assert!(t.iter().eq(model.values.iter().copied()));
    for at in indices(&model.shape) {
        prop_assert_eq!(t.get(&at).unwrap(), model.at(&at));
    }
    prop_assert!(t.get(&model.shape).is_err() || model.shape.is_empty());
    // The view is contiguous exactly if each element directly follows the previous one.
    let in_a_row = model.values.windows(2).all(|two| two[1] == two[0] + 1);
    prop_assert_eq!(t.is_contiguous(), in_a_row, "strides {:?}", t.strides());
    prop_assert_eq!(t.as_slice().ok(), in_a_row.then_some(&model.values[..]));
    Ok(())
}

#[test]
fn random_tensor_views_match_a_list_of_coordinates() {
    let config = Config { cases: 2000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let inputs = (proptest::collection::vec(0..6_usize, 0..4), proptest::collection::vec(op(), 0..12));
    let run = runner.run(&inputs, |(shape, ops)| {
        // All elements differ, so that a value identifies its element.
        let mut t = Tensor::from_fn(&shape, |i| i as i32).unwrap().freeze();
        let storage = t.storage().clone();
        let values = (0..shape.iter().product::<usize>() as i32).collect();
        let mut model = Model { shape, values };
        check(&t, &model)?;
        for op in &ops {
            match (apply(&t, op), model.apply(op)) {
                (Ok(view), Some(next)) => (t, model) = (view, next),
                // Only a copy could have the requested shape.
                (Err(_), Some(_)) if matches!(op, Op::Reshape(_)) && !t.is_contiguous() => {}
                (Err(error), None) => {
                    use mp::Error::{InvalidArgument, LimitExceeded, OutOfBounds, Shape};
                    let about_the_view =
                        matches!(error, Shape(_) | OutOfBounds(_) | InvalidArgument(_) | LimitExceeded(_));
                    prop_assert!(about_the_view, "{op:?}: {error:?}");
                }
                (got, expected) => {
                    return Err(TestCaseError::fail(format!("{op:?} gave {got:?} and not {expected:?}")));
                }
            }
            check(&t, &model)?;
            prop_assert!(*t.storage() == storage);
        }
        // The view is the same after it was sent.
        let strides = t.strides().to_vec();
        let t: FrozenTensor<i32> =
            mp::message::unpack(mp::message::pack(t).map_err(|e| e.error).unwrap()).unwrap();
        prop_assert!((t.strides(), t.storage()) == (&strides[..], &storage));
        check(&t, &model)
    });
    run.unwrap();
}
