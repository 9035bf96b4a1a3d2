//! The target `requests` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
