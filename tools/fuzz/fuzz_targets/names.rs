//! libFuzzer program that runs the target `names`.
#![no_main]

mp_fuzz::libfuzzer!();
