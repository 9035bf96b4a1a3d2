//! libFuzzer program that runs the target `checkpoints`.
#![no_main]

mp_fuzz::libfuzzer!();
