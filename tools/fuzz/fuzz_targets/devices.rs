//! libFuzzer program that runs the target `devices`.
#![no_main]

mp_fuzz::libfuzzer!();
