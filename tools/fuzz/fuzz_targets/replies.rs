//! libFuzzer program that runs the target `replies`.
#![no_main]

mp_fuzz::libfuzzer!();
