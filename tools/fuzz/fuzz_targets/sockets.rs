//! libFuzzer program that runs the target `sockets`.
#![no_main]

mp_fuzz::libfuzzer!();
