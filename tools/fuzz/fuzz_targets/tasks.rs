//! The target `tasks` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
