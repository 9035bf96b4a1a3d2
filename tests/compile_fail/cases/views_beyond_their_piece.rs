//! A piece of a borrowed tensor gives no access to other pieces, which other code may write at the same time.

use mp::Tensor;

fn main() {
    let mut tensor = Tensor::<u64>::zeros(&[8]).unwrap();
    let (left, mut right) = tensor.split_at_mut(4, 0).unwrap();
    let all = left.view().as_strided(&[8], &[1], 0).unwrap();
    right.as_mut_slice().unwrap()[0] = 41;
    let _ = all.as_slice().unwrap()[4];
    let _ = left.as_strided(&[8], &[1], 0);
    let _ = left.view().typed_storage();
    let _ = Tensor::<u64>::zeros(&[8]).unwrap().as_strided(&[8], &[0], 0);
}
