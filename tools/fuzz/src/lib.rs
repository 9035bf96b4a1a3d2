//! All fuzz targets: the targets of the crates, and the targets for messages with attached memory of the host
//! or of devices.

mod devices;
#[path = "../../../mp-tensor/tests/handles.rs"]
mod handles;
mod messages;
#[path = "../../../mp-reduce/tests/codec/fuzz.rs"]
mod values;

use mp_harness::hostile::Target;

/// Returns all targets. There is a target for each parser of bytes from other processes.
pub fn targets() -> Vec<Target> {
    let of_crates = [
        values::TARGETS,
        mp_core::fuzz::TARGETS,
        handles::TARGETS,
        mp_spawn::fuzz::TARGETS,
        mp_queue::fuzz::TARGETS,
        mp_sync::fuzz::TARGETS,
        mp_pool::fuzz::TARGETS,
        mp_manager::fuzz::TARGETS,
        mp_net::fuzz::TARGETS,
    ];
    [&of_crates.concat()[..], &OF_SEVERAL].concat()
}

/// Targets for formats that several crates encode.
const OF_SEVERAL: [Target; 2] =
    [("messages", messages::messages, messages::seeds), ("devices", devices::devices, devices::seeds)];

/// Returns the target with this name.
pub fn target(name: &str) -> Option<Target> {
    targets().into_iter().find(|(its, ..)| *its == name)
}

/// Defines the libFuzzer program of the target that has the program's name.
#[cfg(feature = "libfuzzer")]
#[macro_export]
macro_rules! libfuzzer {
    () => {
        static RUN: std::sync::LazyLock<fn(&[u8])> =
            std::sync::LazyLock::new(|| $crate::target(env!("CARGO_BIN_NAME")).expect("a target").1);
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| RUN(bytes));
    };
}
#[cfg(feature = "libfuzzer")]
pub use libfuzzer_sys;

/// Mutations that the runner must find, with the target of each. Each mutation removes a check. (Unit tests
/// find mutations of other checks: `docs/mutations.tsv`.)
pub const PLANTED: &[(&str, &str)] = &[
    ("values", "codec.read.depth-not-limited"),
    ("values", "codec.read.count-not-compared"),
    ("values", "codec.parts.count-not-compared"),
    ("messages", "arena.buffer.reads-not-counted"),
    ("devices", "cuda.message.view-not-compared"),
    ("devices", "cuda.message.tick-unchecked"),
    ("envelopes", "arena.envelope.bytes-off-by-one"),
    ("envelopes", "arena.envelope.version-ignored"),
    ("parcels", "locker.parcel.number-not-compared"),
    ("invitations", "invitation.version-not-compared"),
    ("handles", "handle.rest-not-refused"),
    ("frames", "spawn.frame.length-not-compared"),
    ("tokens", "spawn.token.rest-not-refused"),
    ("functions", "spawn.function.name-not-compared"),
    ("sockets", "queue.connection.length-not-compared"),
    ("sockets", "queue.connection.name-length-not-compared"),
    ("hellos", "queue.connection.hello-version-ignored"),
    ("hellos", "queue.connection.hello-magic-ignored"),
    ("named", "queue.connection.name-not-compared"),
    ("slots", "ring.small.length-not-cut"),
    ("lists", "list.count-not-compared"),
    ("lists", "list.end-not-compared"),
    ("lists", "list.length-not-compared"),
    ("names", "name.slash-not-refused"),
    ("places", "invitation.place-not-checked"),
    ("tasks", "pool.ends.count-not-compared"),
    ("replies", "pool.ends.count-not-compared"),
];
