//! libFuzzer program that runs the target `answers`.
#![no_main]

mp_fuzz::libfuzzer!();
