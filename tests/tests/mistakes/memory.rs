//! Tensors and shared memory.

use mp::memory::{ArenaOptions, set_sharing_strategy};
use mp::{AnyTensor, Arena, DType, ShareableList, SharedMemory, Tensor};

use crate::says;

#[test]
fn invalid_memory_name_error_names_the_rule() {
    says(SharedMemory::create("runs/seven", 8).map(drop).unwrap_err(), &["runs/seven", "a / in it", "name"]);
    says(SharedMemory::open(&"x".repeat(300)).map(drop).unwrap_err(), &["longer than 255 bytes", "name"]);
    says(ShareableList::open("a/b").map(drop).unwrap_err(), &["a/b", "a / in it", "name"]);
}

#[test]
fn taken_or_unknown_name_error_says_open_or_create() {
    let name = format!("mp-mistakes-{}", std::process::id());
    says(SharedMemory::open(&name).map(drop).unwrap_err(), &[&name, "create"]);
    let memory = SharedMemory::create(&name, 8).unwrap().unlink_on_drop();
    says(SharedMemory::create(&name, 8).map(drop).unwrap_err(), &[&name, "open"]);
    drop(memory);
    says(SharedMemory::create(&name, 0).map(drop).unwrap_err(), &["0 bytes", "at least 1"]);
}

#[test]
fn out_of_memory_error_names_size_and_limit() {
    says(
        Tensor::<u8>::zeros([1 << 50]).map(drop).unwrap_err(),
        &["1 PiB asked", "left under", "drop tensors"],
    );
}

#[test]
fn shape_mismatch_error_names_both_sizes() {
    says(Tensor::from_slice(&[1, 2, 3], [2, 2]).unwrap_err(), &["3 elements", "[2, 2]", "4"]);
    says(Tensor::<u8>::zeros([6]).unwrap().reshape([4]).unwrap_err(), &["[6]", "[4]", "number of elements"]);
    let (mut to, from) = (Tensor::<u8>::zeros([2]).unwrap(), Tensor::<u8>::zeros([3]).unwrap());
    says(to.copy_from(&from).unwrap_err(), &["[3]", "[2]"]);
}

#[test]
fn element_type_error_names_both_types() {
    let any = AnyTensor::zeros([2], DType::F32).unwrap();
    says(any.downcast::<i64>().map(drop).unwrap_err(), &["f32", "i64", "dtype()"]);
}

#[test]
fn strided_slice_error_suggests_contiguous() {
    let matrix = Tensor::<f32>::zeros([2, 3]).unwrap();
    let column = matrix.view().select(1, 0).unwrap();
    says(column.as_slice().unwrap_err(), &["not contiguous", "contiguous()", "iter()", "[2]"]);
}

#[test]
fn tensor_index_error_names_the_shape() {
    let matrix = Tensor::<f32>::zeros([2, 3]).unwrap();
    says(matrix.get(&[0, 3]).unwrap_err(), &["[0, 3]", "outside of shape [2, 3]"]);
    says(matrix.get(&[0]).unwrap_err(), &["1 numbers", "2 dimensions"]);
}

#[test]
fn tensor_dimension_error_names_the_limit() {
    says(Tensor::<u8>::zeros([1; 9]).map(drop).unwrap_err(), &["9 dimensions", "at most 8"]);
}

#[test]
fn late_configure_error_says_call_it_before_use() {
    let _first = Tensor::<u8>::zeros([1]).unwrap();
    says(
        Arena::configure(ArenaOptions::new().size(1 << 30)).unwrap_err(),
        &["has an arena already", "before"],
    );
}

#[test]
fn unknown_strategy_error_lists_the_strategies() {
    says(
        "sysv".parse::<mp::memory::SharingStrategy>().map(set_sharing_strategy).map(drop).unwrap_err(),
        &["sysv", "file_descriptor"],
    );
}

#[test]
fn integer_gradient_error_says_float_is_needed() {
    says(Tensor::<i32>::zeros([1]).unwrap().set_requires_grad(true).unwrap_err(), &["float"]);
}
