//! Sparse and nested tensors are sent as their parts, whose memory is shared. The receiver refuses parts that
//! don't fit together.

use mp::message::{Message, Outgoing};
use mp::tensor::{Frozen, Layout, NestedTensor, Shared, SparseCompressed, SparseCoo};
use mp::{FrozenTensor, Queue, ShareMemory, Tensor};
use mp_reduce::MessagePack;
use mp_tests::{give, take, travels};

fn ints(all: &[i64]) -> FrozenTensor<i64> {
    all.share_memory().unwrap().freeze()
}

fn dense() -> Tensor<f32> {
    Tensor::from_slice(&[0.0, 1.5, 0.0, 0.0, 0.0, -2.0], [2, 3]).unwrap()
}

#[test]
fn sparse_tensors_round_trip_as_their_parts() {
    travels(
        || vec![SparseCoo::from_dense(&dense()).unwrap()],
        |_, s: SparseCoo<f32>| {
            assert_eq!((s.shape(), s.nnz(), s.is_coalesced()), (&[2, 3][..], 2, true));
            assert_eq!(s.to_dense().unwrap().to_vec(), dense().to_vec());
        },
    );
    travels(
        || vec![SparseCompressed::from_dense(&dense()).unwrap()],
        |_, s: SparseCompressed<f32>| {
            assert_eq!((s.layout(), s.shape(), s.nnz()), (Layout::Csr, [2, 3], 2));
            assert_eq!(s.to_dense().unwrap().to_vec(), dense().to_vec());
        },
    );
    travels(
        || vec![NestedTensor::from_tensors(&[dense(), Tensor::full([1, 1], 7.0).unwrap()]).unwrap()],
        |_, n: NestedTensor<f32>| {
            let all = n.unbind().unwrap();
            assert_eq!((all[0].to_vec(), all[1].to_vec()), (dense().to_vec(), vec![7.0]));
            assert!(all.iter().all(|t| t.storage() == n.buffer().storage()));
        },
    );
}

#[test]
fn receivers_writes_to_sparse_parts_are_visible() {
    let queue = Queue::bounded(1).unwrap();
    let parts = || [[1_i64, 0]].share_memory().unwrap().share();
    let (indices, values) = (parts(), [1_i32, 2].share_memory().unwrap().share());
    give(&queue, SparseCoo::<i32, Shared>::new(indices.clone(), values.clone(), [2]).unwrap());
    let there = take(&queue);
    assert!(there.indices().storage() == indices.storage() && there.values().storage() == values.storage());
    values.store(0, 10);
    assert_eq!(there.to_dense().unwrap().to_vec(), [2, 10]);
}

/// Writes one value as a message, reads its bytes as another type, and returns the error.
fn reread<T: Message>(mut value: impl Message) -> String {
    let mut out = Outgoing::default();
    value.encode::<MessagePack>(&mut out).unwrap();
    T::decode::<MessagePack>(&mut out.into_incoming()).map(drop).unwrap_err().to_string()
}

#[test]
fn mismatched_sparse_parts_are_refused_by_receiver() {
    let values = || ints(&[1, 2]);
    let indices = |all: &[i64]| ints(all).reshape([1, 2]).unwrap();
    let error = reread::<SparseCoo<i64>>((indices(&[0, 3]), values(), vec![3_usize]));
    assert!(error.contains("index 3") && error.contains("3 entries"), "{error}");
    let error = reread::<SparseCoo<i64>>((indices(&[0, -1]), values(), vec![3_usize]));
    assert!(error.contains("index -1"), "{error}");
    let error = reread::<SparseCoo<i64>>((indices(&[0, 1]), values(), vec![1_usize; 9]));
    assert!(error.contains("9 dimensions"), "{error}");
    let error = reread::<SparseCoo<f32>>((indices(&[0, 1]), values(), vec![3_usize]));
    assert!(error.contains("of i64 where one of f32"), "{error}");
    type Csr = SparseCompressed<i64, Frozen>;
    let csr = |rows: &[i64], columns: &[i64]| {
        reread::<Csr>((Layout::Csr, ints(rows), ints(columns), values(), [2_usize, 2]))
    };
    assert!(csr(&[0, 1, 2], &[0, 2]).contains("plain index 2"));
    assert!(csr(&[0, 3, 2], &[0, 1]).contains("compressed index 3"));
    assert!(csr(&[0, 1, 3], &[0, 1]).contains("don't go from 0 to 2"));
    assert!(csr(&[0, 2], &[0, 1]).contains("don't make a matrix"));
    let error = reread::<NestedTensor<i64>>((values(), indices(&[3, 1]), indices(&[1, 1]), ints(&[0])));
    assert!(error.contains("outside of a storage of 2"), "{error}");
}
