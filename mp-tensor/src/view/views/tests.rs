//! Views of small tensors, checked by hand. `tests/tests/tensors/random_views.rs` compares random views with
//! another library.

use crate::view::View;

fn of(v: &View) -> Vec<usize> {
    let all: Vec<_> = v.positions().collect();
    assert_eq!(all, (0..v.len()).map(|i| v.nth(i)).collect::<Vec<_>>());
    assert_eq!(all, v.positions().fold(vec![], |mut all, p| (all.push(p), all).1));
    all
}

fn matrix() -> View {
    View::contiguous(&[3, 4]).unwrap()
}

#[test]
fn views_of_a_matrix_list_the_selected_elements() {
    let v = matrix();
    assert_eq!(v.strides(), [4, 1]);
    assert_eq!(of(&v), (0..12).collect::<Vec<_>>());
    let column = v.with(|v| v.select(1, 2)).unwrap();
    assert_eq!((column.shape(), column.strides(), column.offset()), (&[3][..], &[4][..], 2));
    assert!(!column.is_contiguous());
    assert_eq!(of(&v.with(|v| v.t()).unwrap()), [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
    assert_eq!(of(&v.with(|v| v.slice(1, 1.., 2)).unwrap()), [1, 3, 5, 7, 9, 11]);
    assert_eq!(of(&v.with(|v| v.slice(0, ..=1, 5)).unwrap()), [0, 1, 2, 3]);
    assert!(v.with(|v| v.narrow(0, 1, 2)).unwrap().is_contiguous());
    assert_eq!(v.with(|v| v.narrow(0, 1, 2)).unwrap().with(|v| v.reshape(&[8])).unwrap().offset(), 4);
    assert_eq!(of(&v.with(|v| v.diagonal(1, 0, 1)).unwrap()), [1, 6, 11]);
    assert_eq!(of(&v.with(|v| v.diagonal(-2, 0, 1)).unwrap()), [8]);
    assert_eq!(v.with(|v| v.diagonal(4, 0, 1)).unwrap().len(), 0);
    let windows = v.with(|v| v.unfold(1, 3, 1)).unwrap();
    assert_eq!((windows.shape(), &of(&windows)[..6]), (&[3, 2, 3][..], &[0, 1, 2, 1, 2, 3][..]));
    assert_eq!(v.position(&[2, 3]).unwrap(), 11);
}

#[test]
fn tensor_view_refuses_out_of_range_arguments() {
    let v = matrix();
    for (refused, why) in [
        (v.position(&[3, 0]).err(), "outside of shape"),
        (v.with(|v| v.narrow(0, 2, 2)).err(), "which has 3"),
        (v.with(|v| v.narrow(0, usize::MAX, 2)).err(), "which has 3"),
        (v.with(|v| v.select(2, 0)).err(), "dimension 2"),
        (v.with(|v| v.select(0, 3)).err(), "entry 3"),
        (v.with(|v| v.slice(0, 2..4, 1)).err(), "of 3"),
        (v.with(|v| v.slice(0, .., 0)).err(), "greater than zero"),
        (v.with(|v| v.slice(0, .., -1)).err(), "greater than zero"),
        (v.with(|v| v.permute(&[0, 0])).err(), "does not name each"),
        (v.with(|v| v.permute(&[0])).err(), "does not name each"),
        (v.with(|v| v.permute(&[0, usize::MAX])).err(), "does not name each"),
        (v.with(|v| v.reshape(&[5])).err(), "other number of elements (12 and 5)"),
        (v.with(|v| v.t()).unwrap().with(|v| v.reshape(&[12])).err(), "contiguous()"),
        (v.with(|v| v.expand(&[6, 4])).err(), "can't be expanded"),
        (v.with(|v| v.expand(&[4])).err(), "can't be expanded"),
        (v.with(|v| v.unfold(1, 5, 1)).err(), "which has 4"),
        (v.with(|v| v.unfold(1, 2, 0)).err(), "step 0"),
        (v.with(|v| v.diagonal(0, 1, 1)).err(), "with itself"),
        (v.with(|v| v.flatten(1..3)).err(), "of 2"),
        (v.with(|v| v.unsqueeze(3)).err(), "new dimension 3"),
        (View::from_parts(0, &[2], &[12], 12).err(), "outside of a storage"),
        (View::from_parts(3, &[2], &[-1], 12).err(), "negative"),
        (View::from_parts(0, &[2, 1], &[1], 12).err(), "1 strides"),
    ] {
        let why_not = refused.unwrap_or_else(|| panic!("not refused: {why}")).to_string();
        assert!(why_not.contains(why), "{why_not}, not {why}");
    }
    assert!(v.split(0, 0).is_err() && v.chunk(0, 0).is_err() && v.chunk(1, 2).is_err());
    assert!(v.split_sizes(&[1, 1], 0).is_err() && v.split_sizes(&[usize::MAX, 4], 0).is_err());
    let eight = View::contiguous(&[1; 8]).unwrap();
    assert!(eight.with(|v| v.unsqueeze(0)).unwrap_err().to_string().contains("at most 8"));
    assert!(eight.with(|v| v.unfold(0, 1, 1)).is_err() && eight.with(|v| v.expand(&[1; 9])).is_err());
}

#[test]
fn reshape_of_a_tensor_view_follows_its_strides() {
    let v = View::contiguous(&[4, 6, 5]).unwrap();
    let half = v.with(|v| v.slice(2, 1..4, 1)).unwrap();
    let two = half.with(|v| v.reshape(&[2, 12, 3])).unwrap();
    assert_eq!((two.strides(), of(&two)), (&[60, 5, 1][..], of(&half)));
    assert_eq!(half.with(|v| v.flatten(..2)).unwrap().strides(), [5, 1]);
    assert!(half.with(|v| v.flatten(1..)).is_err());
    let turned = v.with(|v| v.transpose(0, 1)).unwrap();
    assert_eq!(turned.with(|v| v.reshape(&[6, 2, 2, 5, 1])).unwrap().strides()[..4], [5, 60, 30, 1]);
    assert!(turned.with(|v| v.reshape(&[24, 5])).is_err());
    let ones = View::contiguous(&[1]).unwrap().with(|v| v.expand(&[6])).unwrap();
    assert_eq!(ones.with(|v| v.reshape(&[2, 3])).unwrap().strides(), [0, 0]);
    assert_eq!(View::contiguous(&[]).unwrap().with(|v| v.reshape(&[1, 1])).unwrap().len(), 1);
}

#[test]
fn split_tensor_views_are_disjoint_and_complete() {
    let v = matrix();
    let all = |pieces: Vec<View>| pieces.iter().map(of).collect::<Vec<_>>();
    assert_eq!(all(v.chunk(2, 0).unwrap()), [(0..8).collect::<Vec<_>>(), (8..12).collect()]);
    assert_eq!(all(v.split(3, 1).unwrap()), [vec![0, 1, 2, 4, 5, 6, 8, 9, 10], vec![3, 7, 11]]);
    assert_eq!(
        all(v.split_sizes(&[1, 0, 2], 0).unwrap()),
        [(0..4).collect(), vec![], (4..12).collect::<Vec<_>>()]
    );
    assert_eq!(v.unbind(1).unwrap().len(), 4);
    assert_eq!(v.chunk(9, 0).unwrap().len(), 3);
}

#[test]
fn empty_and_scalar_tensor_views_have_valid_shapes() {
    let scalar = View::contiguous(&[]).unwrap();
    assert_eq!((of(&scalar), scalar.is_contiguous()), (vec![0], true));
    assert_eq!(scalar.with(|v| v.unsqueeze(0)).unwrap().shape(), [1]);
    assert_eq!(scalar.with(|v| v.flatten(..)).unwrap().shape(), [1]);
    let empty = View::contiguous(&[2, 0, 3]).unwrap();
    assert_eq!((empty.len(), empty.fits(0), empty.is_contiguous()), (0, true, true));
    assert_eq!(empty.with(|v| v.reshape(&[0, 7])).unwrap().shape(), [0, 7]);
    assert!(View::contiguous(&[usize::MAX, 2]).is_err());
    assert!(
        scalar.with(|v| v.expand(&[usize::MAX])).is_err()
            && scalar.with(|v| v.expand(&[1 << 40, 1 << 40])).is_err()
    );
    let huge = View::contiguous(&[1 << 40, 1 << 40, 0]).unwrap();
    assert_eq!((huge.len(), huge.with(|v| v.transpose(0, 2)).unwrap().len(), huge.fits(0)), (0, 0, true));
    assert!(huge.with(|v| v.flatten(..2)).is_err());
    let nothing = View::contiguous(&[0, 100]).unwrap().with(|v| v.narrow(1, 50, 2)).unwrap();
    assert!(nothing.fits(0) && of(&nothing).is_empty());
    assert!(View::contiguous(&[100, 0]).unwrap().with(|v| v.select(0, 50)).unwrap().fits(0));
    assert!(View::contiguous(&[1; 9]).is_err());
}

#[test]
fn received_hostile_tensor_views_are_refused() {
    let wire = |offset, shape: &[usize], strides: &[isize]| View::from_parts(offset, shape, strides, 4);
    assert!(wire(0, &[4], &[1]).is_ok());
    for (view, why) in [
        (wire(1, &[4], &[1]), "one too far"),
        (wire(0, &[4], &[-1]), "negative"),
        (wire(3, &[4], &[-1]), "negative, and inside"),
        (wire(usize::MAX, &[1], &[1]), "offset"),
        (wire(0, &[usize::MAX, 2], &[1, 1]), "elements"),
        (wire(0, &[usize::MAX], &[0]), "elements, all the same one"),
        (wire(0, &[2, 2], &[isize::MAX, isize::MAX]), "strides"),
        (wire(0, &[2, 2], &[1]), "number of strides"),
        (wire(5, &[0], &[1]), "empty, but outside"),
        (wire(0, &[1; 9], &[1; 9]), "dimensions"),
    ] {
        assert!(view.is_err(), "{why}");
    }
}

#[test]
fn tensor_view_with_overlap_is_not_injective() {
    let v = matrix();
    for injective in [
        v,
        v.with(|v| v.t()).unwrap(),
        v.with(|v| v.slice(1, .., 2)).unwrap(),
        v.with(|v| v.diagonal(0, 0, 1)).unwrap(),
        v.with(|v| v.select(0, 1)).unwrap(),
    ] {
        assert!(injective.is_injective(), "{injective:?}");
    }
    let row = v.with(|v| v.select(0, 0)).unwrap();
    for overlapping in [
        row.with(|v| v.expand(&[3, 4])).unwrap(),
        row.with(|v| v.unfold(0, 2, 1)).unwrap(),
        View::from_parts(0, &[2, 3], &[2, 1], 12).unwrap(),
        View::from_parts(0, &[3], &[0], 12).unwrap(),
    ] {
        assert!(!overlapping.is_injective(), "{overlapping:?}");
    }
    assert!(row.with(|v| v.unfold(0, 2, 2)).unwrap().is_injective(), "windows side by side");
    assert!(View::from_parts(0, &[1, 3], &[0, 1], 12).unwrap().is_injective(), "a stride that is not used");
}
