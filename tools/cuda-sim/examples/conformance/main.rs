//! Prints the results of a series of calls of the driver `libcuda.so.1`: a GPU's, to be compared with
//! `tools/cuda-sim/tests/conformance.txt`, which has the simulator's.
//!
//! ```text
//! cargo run -p mp-cuda-sim --example conformance | diff tools/cuda-sim/tests/conformance.txt -
//! ```

mod log;

fn main() {
    print!("{}", log::log());
}
