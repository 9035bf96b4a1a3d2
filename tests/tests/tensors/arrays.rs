//! Tensors as arrays of `ndarray` and as `bytes::Bytes`, which use the same memory, also in another process.

use mp::{FrozenTensor, Queue, Tensor};
use mp_tests::{Outcome, give, join, next, one_process, send, take};
use ndarray::{Array, Axis, IxDyn};

#[test]
fn arrays_share_memory_and_return_by_one_copy() {
    fn worker(_: usize, (there, back): (Queue<FrozenTensor<f64>>, Queue<Tensor<f64>>)) -> Outcome {
        let x = next(&there)?.ok_or("nothing came")?;
        // The array is not copied. The result is copied.
        let array = x.as_ndarray()?;
        assert_eq!(array.as_ptr(), x.view().permute(&[1, 0])?.to_slice()?.as_ptr());
        send(&back, Tensor::from_ndarray(&array.sum_axis(Axis(0)))?)
    }
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(worker, (there.clone(), back.clone()));
    let mut x = Tensor::<f64>::zeros([2, 3]).unwrap();
    x.as_mut_ndarray()
        .unwrap()
        .assign(&Array::from_shape_fn(IxDyn(&[2, 3]), |at| (at[0] * 3 + at[1]) as f64));
    give(&there, x.freeze().t().unwrap());
    assert_eq!(take(&back).to_vec(), [3.0, 12.0]);
    join(&context).unwrap();
}

#[test]
fn written_array_views_touch_only_their_elements() {
    let mut t = Tensor::<u8>::zeros([4, 4]).unwrap();
    let (mut left, mut right) = t.split_at_mut(2, 1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| left.as_mut_ndarray().unwrap().fill(1));
        scope.spawn(|| right.as_mut_ndarray().unwrap().fill(2));
    });
    assert_eq!(t.to_vec(), [[1, 1, 2, 2]; 4].concat());
    // A row that appears many times may be read, but not written.
    let rows = t.view().select(0, 0).unwrap().expand(&[3, 4]).unwrap();
    assert_eq!(rows.as_ndarray().unwrap().sum(), 18);
    for shape in [&[0, 3][..], &[3, 0], &[]] {
        let mut t = Tensor::<u8>::zeros(shape).unwrap();
        assert_eq!(t.as_ndarray().unwrap().shape(), shape);
        assert_eq!(t.as_mut_ndarray().unwrap().len(), t.len());
    }
    let nine = Array::<u8, _>::zeros(IxDyn(&[1; 9]));
    assert!(Tensor::from_ndarray(&nine).unwrap_err().to_string().contains("9 dimensions"));
    let backwards = Array::from_vec(vec![1, 2, 3]);
    assert_eq!(Tensor::from_ndarray(&backwards.slice(ndarray::s![..;-1])).unwrap().to_vec(), [3, 2, 1]);
}

#[test]
fn frozen_bytes_outlive_every_tensor() {
    let queue = Queue::bounded(1).unwrap();
    give(&queue, Tensor::<u32>::from_fn(&[2, 1000], |i| i as u32).unwrap().freeze());
    let row = take(&queue).select(0, 1).unwrap();
    let (at, hold) = (row.as_slice().unwrap().as_ptr(), row.storage().hold().clone());
    assert!(row.unsqueeze(1).unwrap().expand([1000, 2]).unwrap().into_bytes().is_err(), "not contiguous");
    let bytes = bytes::Bytes::try_from(row).unwrap();
    assert_eq!((bytes.as_ptr(), bytes.len(), &bytes[..4]), (at.cast(), 4000, &1000_u32.to_ne_bytes()[..]));
    let last = bytes.slice(3996..);
    drop(bytes);
    let read = std::thread::spawn(move || u32::from_ne_bytes(last.as_ref().try_into().unwrap()));
    assert_eq!((read.join().unwrap(), hold.count()), (1999, 1), "released with the last of them");
}
