//! Queues in files: [`Queue::checkpoint`] while other processes use the queue, are killed or have no space.
//! Programs that need their own memory are this program, started again.

mod busy;
mod killed;
mod programs;

use std::path::Path;

use mp::message::Bundle;
use mp::{Queue, Tensor};
use mp_tests::scratch::scenario;

/// Message with a number and an exclusive tensor, which is filled with that number.
type Numbered = Bundle<(u32, Tensor<u8>)>;

fn numbered(number: u32, len: usize) -> Numbered {
    Bundle((number, Tensor::full([len], number as u8).unwrap()))
}

/// Takes all messages of a queue, and returns their numbers. Checks the tensors.
fn numbers(queue: &Queue<Numbered>) -> Vec<u32> {
    let mut all = Vec::new();
    while let Ok(Some(Bundle((number, tensor)))) = queue.try_get() {
        assert!(tensor.iter().all(|byte| byte == number as u8), "message {number}");
        all.push(number);
    }
    all
}

/// Returns the numbers of the messages in a checkpoint.
#[track_caller]
fn numbers_in(path: &Path) -> Vec<u32> {
    numbers(&Queue::restore(path).unwrap())
}

/// Entry of the programs that `Scratch::program` starts. Not a test.
#[test]
fn helper() {
    let Some((what, _, directory)) = scenario() else { return };
    match &*what {
        "writes" => programs::writes(&directory),
        "full" => programs::full(&directory),
        "files" => programs::files(&directory),
        _ => panic!("{what}"),
    }
}
