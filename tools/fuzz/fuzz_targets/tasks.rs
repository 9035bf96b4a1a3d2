//! libFuzzer program that runs the target `tasks`.
#![no_main]

mp_fuzz::libfuzzer!();
