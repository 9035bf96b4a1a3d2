//! One of the targets under libFuzzer: `MP_FUZZ_TARGET` says which.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static RUN: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("MP_FUZZ_TARGET").expect("MP_FUZZ_TARGET names a target");
    mp_fuzz::target(&name).expect("MP_FUZZ_TARGET names a target").1
});

fuzz_target!(|bytes: &[u8]| RUN(bytes));
