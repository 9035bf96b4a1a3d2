//! `derive(Message)` finds the library under the name that a program has given it in its `Cargo.toml`.

use parallel_work::message::{pack, unpack};
use parallel_work::{Message, Tensor};

#[derive(Message)]
struct Step<T> {
    number: u32,
    weights: T,
}

#[derive(Message)]
enum Order {
    Run(Step<Tensor<f32>>),
    Stop { why: String },
}

/// The derive macro uses the path of the attribute.
#[derive(Message)]
#[message(crate = ::parallel_work)]
struct Named(Tensor<u8>);

#[test]
fn derived_messages_of_a_renamed_dependency_arrive() {
    let weights = Tensor::full([3], 1.5).unwrap();
    let order = Order::Run(Step { number: 7, weights });
    match unpack::<Order>(pack(order).unwrap()).unwrap() {
        Order::Run(Step { number: 7, weights }) => assert_eq!(weights.iter().sum::<f32>(), 4.5),
        _ => panic!("another variant arrived"),
    }
    match unpack::<Order>(pack(Order::Stop { why: "done".into() }).unwrap()).unwrap() {
        Order::Stop { why } => assert_eq!(why, "done"),
        Order::Run(_) => panic!("another variant arrived"),
    }
    let Named(bytes) = unpack(pack(Named(Tensor::full([2], 9).unwrap())).unwrap()).unwrap();
    assert_eq!(bytes.len(), 2);
}

/// The other macros refer to their own crates, whatever name the program gives to this crate.
#[test]
fn macros_expand_in_a_renamed_dependency() {
    let add = parallel_work::closure!([n = 5_u8] |x: u8| x + n);
    assert_eq!(add.call(2), 7);
    assert_eq!(parallel_work::tensor::dispatch!(parallel_work::DType::F32, T => size_of::<T>()), 4);
}
