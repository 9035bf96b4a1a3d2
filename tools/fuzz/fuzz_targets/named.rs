//! libFuzzer program that runs the target `named`.
#![no_main]

mp_fuzz::libfuzzer!();
