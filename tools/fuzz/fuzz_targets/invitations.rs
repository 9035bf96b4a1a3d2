//! The target `invitations` under libFuzzer.
#![no_main]

mp_fuzz::libfuzzer!();
