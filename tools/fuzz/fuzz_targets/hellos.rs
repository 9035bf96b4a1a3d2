//! libFuzzer program that runs the target `hellos`.
#![no_main]

mp_fuzz::libfuzzer!();
