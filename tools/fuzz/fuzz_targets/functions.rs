//! The target `functions` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
