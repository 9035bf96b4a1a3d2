//! libFuzzer program that runs the target `outcomes`.
#![no_main]

mp_fuzz::libfuzzer!();
