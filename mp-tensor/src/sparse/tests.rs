//! Sparse tensors with valid and invalid parts, and parts changed by another holder.

use crate::{FrozenTensor, Shared};
use crate::{Layout, NestedTensor, ShareMemory, SparseCompressed, SparseCoo, Tensor};

fn ints(all: &[i64]) -> FrozenTensor<i64> {
    all.share_memory().unwrap().freeze()
}

fn table(all: &[i64], rows: usize) -> FrozenTensor<i64> {
    ints(all).reshape([rows, all.len() / rows.max(1)]).unwrap()
}

#[test]
fn sparse_coo_tensor_refuses_invalid_coordinates() {
    let values = ints(&[10, 20, 30]);
    let coo = |indices: FrozenTensor<i64>, shape: &[usize]| SparseCoo::new(indices, values.clone(), shape);
    let s = coo(table(&[0, 1, 0, 2, 2, 2], 2), &[2, 3]).unwrap();
    assert_eq!((s.to_dense().unwrap().to_vec(), s.is_coalesced()), (vec![0, 0, 40, 0, 0, 20], false));
    let dense = SparseCoo::from_dense(&s.to_dense().unwrap()).unwrap();
    assert_eq!((dense.nnz(), dense.is_coalesced(), dense.indices().to_vec()), (2, true, vec![0, 1, 2, 2]));
    for (indices, shape, why) in [
        (table(&[0, 1, 2, 2, 2, 2], 2), &[2, 3][..], "a row too far"),
        (table(&[0, 1, -1, 2, 2, 2], 2), &[2, 3], "negative"),
        (table(&[0, 1, i64::MAX, 2, 2, 2], 2), &[2, 3], "far away"),
        (table(&[0, 1, 0, 2, 2, 2], 3), &[2, 3, 1], "two elements"),
        (table(&[0, 1, 0], 1), &[2, 3], "values have too few dimensions"),
        (table(&[0, 1, 0, 2, 2, 2], 2), &[2], "more coordinates than dimensions"),
        (ints(&[0, 1, 0]), &[2], "one dimension"),
        (table(&[0, 1, 0], 1), &[1; 9], "nine dimensions"),
    ] {
        assert!(coo(indices, shape).is_err(), "{why}");
    }
    let endless = ints(&[0]).expand([1, 1 << 50]).unwrap();
    let many = ints(&[1]).expand([1 << 50]).unwrap();
    assert!(SparseCoo::new(endless, many.clone(), [1]).is_err());
    assert!(SparseCoo::new(Tensor::empty([0, 1 << 50]).unwrap().freeze(), many.clone(), []).is_err());
    assert!(SparseCompressed::new(Layout::Csr, many, ints(&[]), ints(&[]), [(1 << 50) - 1, 1]).is_err());
    // Hybrid: the values are rows.
    let rows = Tensor::from_slice(&[1, 2, 3, 4], [2, 2]).unwrap().freeze();
    let hybrid = SparseCoo::new(table(&[2, 0], 1), rows, [3, 2]).unwrap();
    assert_eq!(hybrid.to_dense().unwrap().to_vec(), [3, 4, 0, 0, 1, 2]);
    // Too large for a dense tensor.
    let one = SparseCoo::new(table(&[5, 7], 2), ints(&[1]), [1 << 40, 1 << 40]).unwrap();
    assert!(one.to_dense().is_err());
    let none = SparseCoo::new(table(&[], 0), ints(&[]), []);
    assert!(none.is_err() || none.unwrap().to_dense().unwrap().to_vec() == [0]);
}

#[test]
fn compressed_sparse_tensor_refuses_invalid_parts() {
    let csr = |rows: &[i64], columns: &[i64], values: usize, shape| {
        let values = Tensor::from_fn(&[values], |i| i as i32 + 1).unwrap().freeze();
        SparseCompressed::new(Layout::Csr, ints(rows), ints(columns), values, shape)
    };
    let m = csr(&[0, 2, 2, 3], &[0, 2, 1], 3, [3, 3]).unwrap();
    assert_eq!(m.to_dense().unwrap().to_vec(), [1, 0, 2, 0, 0, 0, 0, 3, 0]);
    let again = SparseCompressed::from_dense(&m.to_dense().unwrap()).unwrap();
    assert_eq!(again.compressed_indices().to_vec(), [0, 2, 2, 3]);
    for (refused, why) in [
        (csr(&[0, 2, 2, 3], &[0, 3, 1], 3, [3, 3]), "a column too far"),
        (csr(&[0, 2, 2, 3], &[0, -1, 1], 3, [3, 3]), "negative"),
        (csr(&[0, 2, 2, 3], &[2, 0, 1], 3, [3, 3]), "out of order"),
        (csr(&[0, 2, 2, 3], &[0, 0, 1], 3, [3, 3]), "twice"),
        (csr(&[0, 2, 1, 3], &[0, 1, 2], 3, [3, 3]), "falling"),
        (csr(&[0, 4, 2, 3], &[0, 1, 2], 3, [3, 3]), "beyond the end"),
        (csr(&[0, 2, 2, 4], &[0, 2, 1], 3, [3, 3]), "a wrong end"),
        (csr(&[1, 2, 2, 3], &[0, 2, 1], 3, [3, 3]), "a wrong start"),
        (csr(&[0, 2, 3], &[0, 2, 1], 3, [3, 3]), "too few rows"),
        (csr(&[0, 2, 2, 3], &[0, 2, 1], 2, [3, 3]), "too few values"),
        (csr(&[], &[], 0, [0, 3]), "no end at all"),
        (csr(&[0], &[], 0, [usize::MAX, 3]), "more rows than there can be"),
    ] {
        assert!(refused.is_err(), "{why}");
    }
    assert_eq!(csr(&[0], &[], 0, [0, 3]).unwrap().to_dense().unwrap().shape(), [0, 3]);
    let csc = SparseCompressed::new(Layout::Csc, ints(&[0, 1, 1, 2]), ints(&[1, 0]), ints(&[7, 8]), [2, 3])
        .unwrap();
    assert_eq!(csc.to_dense().unwrap().to_vec(), [0, 0, 8, 7, 0, 0]);
    let blocks = Tensor::from_fn(&[2, 1, 2], |i| i as i32 + 1).unwrap().freeze();
    let bsr =
        |shape| SparseCompressed::new(Layout::Bsr, ints(&[0, 1, 2]), ints(&[1, 0]), blocks.clone(), shape);
    assert_eq!(bsr([2, 4]).unwrap().to_dense().unwrap().to_vec(), [0, 0, 1, 2, 3, 4, 0, 0]);
    assert!(bsr([2, 3]).is_err(), "half a block");
    let empty = Tensor::<i32>::zeros([0, 0, 2]).unwrap().freeze();
    assert!(
        SparseCompressed::new(Layout::Bsr, ints(&[0]), ints(&[]), empty, [0, 4]).is_err(),
        "blocks of nothing"
    );
}

#[test]
fn reading_overwritten_sparse_or_nested_parts_fails() {
    let shared = |all: &[i64]| all.share_memory().unwrap().share();
    let indices = shared(&[0, 1]).reshape([1, 2]).unwrap();
    let coo = SparseCoo::<i64, Shared>::new(indices.clone(), shared(&[5, 6]), [3]).unwrap();
    assert_eq!(coo.to_dense().unwrap().to_vec(), [5, 6, 0]);
    let rows = shared(&[0, 1, 2]);
    let csr =
        SparseCompressed::new(Layout::Csr, rows.clone(), shared(&[0, 1]), shared(&[1, 2]), [2, 2]).unwrap();
    let sizes = shared(&[2, 2]).reshape([2, 1]).unwrap();
    let strides = shared(&[1, 1]).reshape([2, 1]).unwrap();
    let nested = NestedTensor::new(shared(&[1, 2, 3, 4]), sizes.clone(), strides, shared(&[0, 2])).unwrap();
    assert_eq!(nested.get(1).unwrap().to_vec(), [3, 4]);
    for hostile in [3, -1, i64::MAX, i64::MIN] {
        indices.store(1, hostile);
        rows.store(1, hostile);
        sizes.store(1, hostile);
        assert!(coo.to_dense().is_err() && csr.to_dense().is_err() && nested.get(1).is_err(), "{hostile}");
    }
}

#[test]
fn nested_tensor_refuses_invalid_parts() {
    let buffer = ints(&[0, 1, 2, 3, 4, 5]);
    let nested = |sizes: &[i64], strides: &[i64], offsets: &[i64]| {
        let n = offsets.len().max(1);
        NestedTensor::new(buffer.clone(), table(sizes, n), table(strides, n), ints(offsets))
    };
    let all = nested(&[2, 1, 1, 3], &[1, 1, 3, 1], &[0, 3]).unwrap().unbind().unwrap();
    assert_eq!(all.iter().map(FrozenTensor::to_vec).collect::<Vec<_>>(), [vec![0, 1], vec![3, 4, 5]]);
    for (refused, why) in [
        (nested(&[2, 1, 1, 4], &[1, 1, 3, 1], &[0, 3]), "beyond the end"),
        (nested(&[2, 1, 1, 3], &[1, 1, 3, 2], &[0, 3]), "strides beyond the end"),
        (nested(&[2, 1, 1, 3], &[1, 1, 3, -1], &[0, 3]), "a negative stride"),
        (nested(&[2, 1, 1, -3], &[1, 1, 3, 1], &[0, 3]), "a negative size"),
        (nested(&[2, 1, 1, 3], &[1, 1, 3, 1], &[0, -3]), "a negative offset"),
        (nested(&[2, 1, 1, 3], &[1, 1], &[0, 3]), "too few strides"),
        (nested(&[1; 18], &[1; 18], &[0, 3]), "nine dimensions"),
    ] {
        assert!(refused.is_err(), "{why}");
    }
    let endless = ints(&[1]).expand([1, 1 << 50]).unwrap();
    assert!(NestedTensor::new(buffer.clone(), endless.clone(), endless, ints(&[0])).is_err());
    // A buffer that does not begin at the start of its storage.
    let behind = buffer.narrow(0, 4, 2).unwrap();
    let one = |size| NestedTensor::new(behind.clone(), table(&[size], 1), table(&[1], 1), ints(&[0]));
    assert_eq!(one(2).unwrap().get(0).unwrap().to_vec(), [4, 5]);
    assert!(one(3).is_err() && one(2).unwrap().get(1).is_err());
    let scattered = buffer.slice(0, .., 2).unwrap();
    assert!(NestedTensor::new(scattered, table(&[2], 1), table(&[1], 1), ints(&[0])).is_err());
    let mixed = [Tensor::<u8>::zeros([1]).unwrap(), Tensor::zeros([1, 1]).unwrap()];
    assert!(NestedTensor::from_tensors(&mixed).is_err());
    assert!(NestedTensor::from_tensors::<crate::Exclusive>(&[] as &[Tensor<u8>]).unwrap().is_empty());
}
