//! libFuzzer program that runs the target `lists`.
#![no_main]

mp_fuzz::libfuzzer!();
