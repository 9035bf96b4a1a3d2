//! The target `sockets` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
