//! libFuzzer program that runs the target `messages`.
#![no_main]

mp_fuzz::libfuzzer!();
