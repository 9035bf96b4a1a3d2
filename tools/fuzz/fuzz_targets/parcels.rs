//! The target `parcels` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
