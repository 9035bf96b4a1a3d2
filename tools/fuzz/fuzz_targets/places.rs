//! libFuzzer program that runs the target `places`.
#![no_main]

mp_fuzz::libfuzzer!();
