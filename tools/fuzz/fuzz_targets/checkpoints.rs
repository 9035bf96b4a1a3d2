//! The target `checkpoints` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
