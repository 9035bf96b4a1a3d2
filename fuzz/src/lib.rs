//! All targets: those of the crates, and messages with what is attached to them.

mod messages;

use mp_harness::hostile::Target;

/// Each parser of bytes that another process may have made.
pub fn targets() -> Vec<Target> {
    let of_crates = [
        mp_reduce::fuzz::TARGETS,
        mp_core::fuzz::TARGETS,
        mp_tensor::fuzz::TARGETS,
        mp_spawn::fuzz::TARGETS,
        mp_queue::fuzz::TARGETS,
        mp_sync::fuzz::TARGETS,
    ];
    [&of_crates.concat()[..], &[("messages", messages::messages, messages::seeds)]].concat()
}

/// The one of this name.
pub fn target(name: &str) -> Option<Target> {
    targets().into_iter().find(|(its, ..)| *its == name)
}

/// Mistakes that the runner has to find, and in which target: a check that is not made, each.
pub const PLANTED: &[(&str, &str)] = &[
    ("values", "codec.read.depth-not-limited"),
    ("values", "codec.read.count-not-compared"),
    ("values", "codec.parts.count-not-compared"),
    ("messages", "codec.row.rest-not-refused"),
    ("messages", "arena.buffer.length-not-compared"),
    ("envelopes", "arena.envelope.bytes-off-by-one"),
    ("envelopes", "arena.envelope.version-ignored"),
    ("parcels", "locker.parcel.number-not-compared"),
    ("invitations", "invitation.version-not-compared"),
    ("handles", "handle.rest-not-refused"),
    ("frames", "spawn.frame.length-not-compared"),
    ("frames", "spawn.frame.depth-not-limited"),
    ("tokens", "spawn.token.rest-not-refused"),
    ("functions", "spawn.function.name-not-compared"),
    ("sockets", "queue.connection.length-not-compared"),
    ("hellos", "queue.connection.hello-version-ignored"),
    ("named", "queue.connection.name-not-compared"),
    ("slots", "ring.small.length-not-cut"),
    ("lists", "list.count-not-compared"),
    ("lists", "list.end-not-compared"),
    ("names", "name.slash-not-refused"),
    ("places", "invitation.place-not-checked"),
];
