//! Tensors and shared memory.

use mp::memory::{ArenaOptions, set_sharing_strategy};
use mp::{AnyTensor, Arena, DType, ShareableList, SharedMemory, Tensor};

use crate::says;

#[test]
fn a_name_that_can_be_none() {
    says(SharedMemory::create("runs/seven", 8).map(drop).unwrap_err(), &["runs/seven", "a / in it", "name"]);
    says(SharedMemory::open(&"x".repeat(300)).map(drop).unwrap_err(), &["longer than 255 bytes", "name"]);
    says(ShareableList::open("a/b").map(drop).unwrap_err(), &["a/b", "a / in it", "name"]);
}

#[test]
fn a_name_that_is_taken_or_unknown() {
    let name = format!("mp-mistakes-{}", std::process::id());
    says(SharedMemory::open(&name).map(drop).unwrap_err(), &[&name, "create"]);
    let memory = SharedMemory::create(&name, 8).unwrap().unlink_on_drop();
    says(SharedMemory::create(&name, 8).map(drop).unwrap_err(), &[&name, "open"]);
    drop(memory);
    says(SharedMemory::create(&name, 0).map(drop).unwrap_err(), &["0 bytes", "one at least"]);
}

#[test]
fn more_than_there_is() {
    says(
        Tensor::<u8>::zeros([1 << 50]).map(drop).unwrap_err(),
        &["1 PiB asked", "left under", "drop tensors"],
    );
}

#[test]
fn elements_that_do_not_fill_the_shape() {
    says(Tensor::from_slice(&[1, 2, 3], [2, 2]).unwrap_err(), &["3 elements", "[2, 2]", "4"]);
    says(Tensor::<u8>::zeros([6]).unwrap().reshape([4]).unwrap_err(), &["[6]", "[4]", "number of elements"]);
    let (mut to, from) = (Tensor::<u8>::zeros([2]).unwrap(), Tensor::<u8>::zeros([3]).unwrap());
    says(to.copy_from(&from).unwrap_err(), &["[3]", "[2]"]);
}

#[test]
fn another_element_type() {
    let any = AnyTensor::zeros([2], DType::F32).unwrap();
    says(any.downcast::<i64>().map(drop).unwrap_err(), &["f32", "i64", "dtype()"]);
}

#[test]
fn a_column_as_a_slice() {
    let matrix = Tensor::<f32>::zeros([2, 3]).unwrap();
    let column = matrix.view().select(1, 0).unwrap();
    says(column.as_slice().unwrap_err(), &["not contiguous", "contiguous()", "iter()", "[2]"]);
}

#[test]
fn an_index_too_far() {
    let matrix = Tensor::<f32>::zeros([2, 3]).unwrap();
    says(matrix.get(&[0, 3]).unwrap_err(), &["[0, 3]", "outside of shape [2, 3]"]);
    says(matrix.get(&[0]).unwrap_err(), &["1 numbers", "2 dimensions"]);
}

#[test]
fn too_many_dimensions() {
    says(Tensor::<u8>::zeros([1; 9]).map(drop).unwrap_err(), &["9 dimensions", "at most 8"]);
}

#[test]
fn the_arena_is_configured_too_late() {
    let _first = Tensor::<u8>::zeros([1]).unwrap();
    says(
        Arena::configure(ArenaOptions::new().size(1 << 30)).unwrap_err(),
        &["has an arena already", "before"],
    );
}

#[test]
fn a_sharing_strategy_that_does_not_exist() {
    says(
        "sysv".parse::<mp::memory::SharingStrategy>().map(set_sharing_strategy).map(drop).unwrap_err(),
        &["sysv", "file_descriptor"],
    );
}

#[test]
fn gradients_of_integers() {
    says(Tensor::<i32>::zeros([1]).unwrap().set_requires_grad(true).unwrap_err(), &["float"]);
}
