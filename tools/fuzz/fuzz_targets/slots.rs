//! libFuzzer program that runs the target `slots`.
#![no_main]

mp_fuzz::libfuzzer!();
