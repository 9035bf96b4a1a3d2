//! libFuzzer program that runs the target `invitations`.
#![no_main]

mp_fuzz::libfuzzer!();
