//! libFuzzer program that runs the target `values`.
#![no_main]

mp_fuzz::libfuzzer!();
