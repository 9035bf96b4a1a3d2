//! libFuzzer program that runs the target `requests`.
#![no_main]

mp_fuzz::libfuzzer!();
