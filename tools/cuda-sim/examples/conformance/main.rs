//! Prints how the driver that `libcuda.so.1` is answers a row of calls: a GPU's, to be compared with `tools/cuda-sim/tests/conformance.txt`,
//! which is what the simulator answers.
//!
//! ```text
//! cargo run -p mp-cuda-sim --example conformance | diff tools/cuda-sim/tests/conformance.txt -
//! ```

mod log;

fn main() {
    print!("{}", log::log());
}
