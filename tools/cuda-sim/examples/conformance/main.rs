//! Prints the results of a series of calls of the driver `libcuda.so.1`. To check the simulator, compare the
//! output on a GPU with the output of the simulator in `tools/cuda-sim/tests/conformance.txt`.
//!
//! ```text
//! cargo run -p mp-cuda-sim --example conformance | diff tools/cuda-sim/tests/conformance.txt -
//! ```

mod log;

fn main() {
    print!("{}", log::log());
}
