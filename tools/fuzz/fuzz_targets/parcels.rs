//! libFuzzer program that runs the target `parcels`.
#![no_main]

mp_fuzz::libfuzzer!();
