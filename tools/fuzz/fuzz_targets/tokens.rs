//! libFuzzer program that runs the target `tokens`.
#![no_main]

mp_fuzz::libfuzzer!();
