//! libFuzzer program that runs the target `calls`.
#![no_main]

mp_fuzz::libfuzzer!();
