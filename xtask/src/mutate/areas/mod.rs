//! Areas of the code: prefixes of mutation names, each with the tests that may find the mutations.

mod processes;

use super::programs::Run;
use processes::OF_PROCESSES;

/// Prefix of mutation names, and the suites and tests to try, in this order. Quick suites come first.
type Area = (&'static str, &'static [(&'static str, &'static str)]);

/// Areas of structures in shared memory, and of messages.
const OF_STRUCTURES: &[Area] = &[
    (
        "mem.",
        &[
            ("mp-queue/loom_ring", ""),
            ("mp-core/loom_lock", ""),
            ("mp-core/loom_seats", ""),
            ("mp-sync/loom_sync", ""),
            ("mp-queue/loom_bytes", ""),
            ("mp-sync/loom_barrier", ""),
            ("mp-queue/loom_chain", ""),
        ],
    ),
    (
        "steps.",
        &[
            ("mp-core/lib", "steps::"),
            ("mp-core/loom_seats", ""),
            ("mp-models/models", "seats::"),
            ("mp-models/models", "pages::"),
            ("mp-core/loom_seats", ""),
            ("mp-models/models", "recoverers::"),
            ("mp-models/models", "vacating::"),
            ("mp-tests/memory", "statistics::"),
            ("mp-tests/memory", "many_holders::"),
            ("mp-tests/tensors", "sharing::"),
            ("mp-tests/killed", "messages::"),
        ],
    ),
    (
        "steps.claim.",
        &[
            ("mp-models/models", "reuse::"),
            ("mp-models/models", "seats::"),
            ("mp-core/loom_seats", ""),
            ("mp-core/lib", ""),
            ("mp-tests/small_arena", ""),
        ],
    ),
    (
        "steps.group.",
        &[
            ("mp-models/models", "groups::"),
            ("mp-tests/memory", "statistics::memory_of_a_message_burst"),
            ("mp-tests/killed", "messages::process_killed_returning_envelopes_leaks_nothing"),
        ],
    ),
    (
        "steps.lock.",
        &[
            ("mp-core/lib", "steps::lock"),
            ("mp-models/models", "lock::"),
            ("mp-core/loom_lock", ""),
            ("mp-models/models", "rlock::"),
            ("mp-tests/sync", "values::"),
            ("mp-tests/sync", "locks::"),
            ("mp-tests/killed", "values::"),
        ],
    ),
    (
        "steps.unlock.",
        &[
            ("mp-tests/waiting", "wake_ups::lock_wakes"),
            ("mp-core/lib", "steps::lock"),
            ("mp-models/models", "lock::"),
            ("mp-core/loom_lock", ""),
            ("mp-tests/sync", "values::"),
        ],
    ),
    (
        "steps.park.",
        &[
            ("mp-tests/waiting", "wake_ups::lock_wakes"),
            ("mp-models/models", "lock::"),
            ("mp-core/loom_lock", ""),
            ("mp-tests/sync", "values::"),
            ("mp-tests/sync", "locks::"),
        ],
    ),
    (
        "lock-cycle.",
        &[
            ("mp-core/lib", "steps::lock::cycle"),
            ("mp-models/models", "deadlock::"),
            ("mp-tests/sync", "deadlocks::"),
        ],
    ),
    (
        "wait-note.",
        &[
            ("mp-core/lib", "steps::lock::cycle"),
            ("mp-models/models", "deadlock::"),
            ("mp-core/lib", "blocking::deadlock"),
            ("mp-tests/sync", "deadlocks::"),
        ],
    ),
    ("waits.", &[("mp-tests/waiting", "hangs::")]),
    ("spin.", &[("mp-core/lib", "parking::spin")]),
    (
        "invitation.",
        &[
            ("mp-core/lib", "fuzz::"),
            ("mp-core/lib", "invitation::"),
            ("mp-core/lib", "sys::files::socket::"),
            ("mp-tests/invitations", ""),
            ("mp-tests/fork", "raw::forked_copy_does_not"),
        ],
    ),
    ("deadlock.", &[("mp-core/lib", "blocking::deadlock"), ("mp-tests/sync", "deadlocks::")]),
    (
        "steps.recover.",
        &[
            ("mp-models/models", "recoverers::"),
            ("mp-models/models", "vacating::"),
            ("mp-tests/killed", "stopped_recoverers::"),
            ("mp-tests/queues", "deaths::"),
        ],
    ),
    (
        "steps.update.",
        &[
            ("mp-models/models", "update::"),
            ("mp-core/loom_seats", ""),
            ("mp-models/models", "reuse::"),
            ("mp-tests/killed", "stopped_updates::"),
            ("mp-tests/small_arena", ""),
        ],
    ),
    (
        "park.",
        &[
            ("mp-tests/waiting", "wake_ups::"),
            ("mp-core/lib", "parking::"),
            ("mp-models/models", "wait::"),
            ("mp-core/loom_seats", ""),
            ("mp-tests/queues", "waits::"),
            ("mp-tests/sync", "waits::"),
        ],
    ),
    (
        "ring.",
        &[
            ("mp-queue/lib", ""),
            ("mp-queue/hostile_words", ""),
            ("mp-models/models", "ring::"),
            ("mp-models/models", "random_queue::"),
            ("mp-queue/loom_ring", ""),
            ("mp-models/models", "chain::"),
            ("mp-models/models", "lease::"),
            ("mp-tests/queues", "order::"),
            ("mp-tests/queues", "kinds::"),
            ("mp-tests/killed", "queues::"),
            ("mp-tests/killed", "messages::"),
        ],
    ),
    (
        "ring.settle.",
        &[
            ("mp-queue/lib", "ring::settle"),
            ("mp-queue/hostile_words", ""),
            ("mp-models/models", "ring::"),
            ("mp-models/models", "lease::"),
            ("mp-queue/loom_ring", "settle"),
            ("mp-models/models", "vacating::"),
            ("mp-queue/loom_ring", ""),
            ("mp-tests/killed", "queues::"),
            ("mp-tests/queues", "deaths::"),
        ],
    ),
    (
        "ring.chain.",
        &[
            ("mp-queue/lib", "ring::chain"),
            ("mp-queue/hostile_words", ""),
            ("mp-models/models", "chain::"),
            ("mp-queue/loom_chain", ""),
            ("mp-tests/queues", "kinds::"),
        ],
    ),
    (
        "ring.close.",
        &[
            ("mp-models/models", "ring::"),
            ("mp-queue/loom_ring", "close"),
            ("mp-models/models", "chain::"),
            ("mp-queue/lib", ""),
            ("mp-queue/hostile_words", ""),
        ],
    ),
    (
        "ring.retained.",
        &[
            ("mp-models/models", "retained::"),
            ("mp-tests/queues", "broadcast::"),
            ("mp-tests/queues", "watch::"),
            ("mp-tests/killed", "retained::"),
        ],
    ),
    ("queue.get.", &[("mp-tests/descriptors", "limits::"), ("mp-tests/queues", "deaths::")]),
    ("queue.spin.", &[("mp-tests/waiting", "idle_cpu_time::")]),
    ("queue.watch.", &[("mp-tests/queues", "watch::"), ("mp-tests/killed", "retained::")]),
    (
        "queue.broadcast.",
        &[("mp-tests/queues", "broadcast::"), ("mp-queue/lib", ""), ("mp-tests/killed", "retained::")],
    ),
    (
        "queue.retained.",
        &[
            ("mp-tests/queues", "broadcast::"),
            ("mp-tests/queue_limits", ""),
            ("mp-tests/killed", "retained::"),
        ],
    ),
    ("ring.lease.", RETURNS),
    ("ring.return.", RETURNS),
    ("ring.note.", RETURNS),
    ("ring.reclaim.", RETURNS),
    (
        "ring.small.",
        &[
            ("mp-queue/lib", ""),
            ("mp-queue/hostile_words", ""),
            ("mp-models/models", "ring::"),
            ("mp-queue/loom_ring", "small"),
            ("mp-tests/killed", "small_messages::"),
            ("mp-tests/queues", "order::"),
        ],
    ),
    (
        "ring.enclose.",
        &[
            ("mp-models/models", "lease::"),
            ("mp-queue/loom_chain", ""),
            ("mp-queue/lib", ""),
            ("mp-queue/hostile_words", ""),
            ("mp-tests/killed", "small_messages::"),
            ("mp-tests/queues", "kinds::"),
        ],
    ),
    (
        "ring.census.",
        &[
            ("mp-models/models", "join::"),
            ("mp-queue/lib", ""),
            ("mp-queue/hostile_words", ""),
            ("mp-tests/queues", "kinds::"),
            ("mp-tests/killed", "queues::"),
        ],
    ),
    (
        "ring.within.",
        &[
            ("mp-models/models", "bytes::"),
            ("mp-queue/loom_bytes", ""),
            ("mp-queue/lib", ""),
            ("mp-queue/hostile_words", ""),
            ("mp-tests/queues", "bytes::"),
        ],
    ),
    (
        "slot.",
        &[
            ("mp-sync/lib", ""),
            ("mp-models/models", "semaphore::"),
            ("mp-models/models", "condition::"),
            ("mp-models/models", "rwlock::"),
            ("mp-sync/loom_sync", ""),
            ("mp-tests/sync", "waits::"),
        ],
    ),
    (
        "condition.",
        &[
            ("mp-sync/lib", "condition"),
            ("mp-tests/waiting", "wake_ups::notification_wakes"),
            ("mp-models/models", "condition::"),
            ("mp-sync/loom_sync", ""),
            ("mp-sync/lib", ""),
            ("mp-tests/sync", "waits::"),
            ("mp-tests/killed", "sync::"),
        ],
    ),
    ("once.", &[("mp-models/models", "once::"), ("mp-sync/loom_sync", ""), ("mp-tests/sync", "locks::")]),
    (
        "rlock.",
        &[
            ("mp-models/models", "rlock::"),
            ("mp-sync/lib", ""),
            ("mp-sync/hostile_words", ""),
            ("mp-sync/loom_sync", ""),
            ("mp-tests/sync", "locks::"),
            ("mp-tests/killed", "sync::"),
        ],
    ),
    (
        "rwlock.",
        &[
            ("mp-tests/waiting", "wake_ups::last_reader_wakes_a_writer_of_an_rwlock"),
            ("mp-models/models", "rwlock::"),
            ("mp-sync/loom_sync", ""),
            ("mp-sync/lib", ""),
            ("mp-sync/hostile_words", ""),
            ("mp-tests/sync", "locks::"),
            ("mp-tests/killed", "sync::"),
        ],
    ),
    (
        "event.",
        &[
            ("mp-tests/waiting", "wake_ups::event"),
            ("mp-models/models", "event::"),
            ("mp-sync/loom_sync", ""),
            ("mp-sync/lib", ""),
            ("mp-tests/sync", "waits::"),
        ],
    ),
    (
        "barrier.",
        &[
            ("mp-tests/waiting", "wake_ups::last_arrival"),
            ("mp-sync/lib", ""),
            ("mp-sync/hostile_words", ""),
            ("mp-models/models", "barrier::"),
            ("mp-sync/loom_barrier", ""),
            ("mp-tests/sync", "barrier::"),
        ],
    ),
    (
        "semaphore.",
        &[
            ("mp-tests/waiting", "wake_ups::permit_wakes"),
            ("mp-models/models", "semaphore::"),
            ("mp-sync/lib", ""),
            ("mp-tests/sync", "waits::"),
            ("mp-tests/sync", "locks::"),
        ],
    ),
    ("locker.unread.", &[("mp-tests/descriptors", "unread::")]),
    ("locker.ke", &[("mp-core/killed_objects", "")]),
    ("clock.", &[("mp-core/lib", "steps::clock"), ("mp-models/models", "clocks::")]),
    ("arena.exclusive-object.", &[("mp-core/handles", "")]),
    ("steps.part.", &[("mp-models/models", "child_blocks::"), ("mp-core/lib", "alloc::children")]),
    (
        "arena.part.",
        &[
            ("mp-core/lib", "alloc::children"),
            ("mp-core/killed_objects", "child"),
            ("mp-core/handles", ""),
            ("mp-tests/small_arena", "gets_parent"),
        ],
    ),
    ("locker.parcel.", &[("mp-core/lib", "fuzz::")]),
    (
        "locker.",
        &[
            ("mp-core/lib", "transport::attachments"),
            ("mp-tests/descriptors", "deaths::"),
            ("mp-tests/descriptors", "limits::"),
            ("mp-tests/descriptors", "ways::"),
        ],
    ),
    (
        "lock.",
        &[
            ("mp-core/lib", "lock"),
            ("mp-tests/sync", "values::"),
            ("mp-tests/sync", "locks::"),
            ("mp-tests/fork", "memory::"),
            ("mp-tests/fork", "raw::"),
        ],
    ),
    (
        "arena.",
        &[
            ("mp-core/lib", ""),
            ("mp-queue/lib", ""),
            ("mp-tests/descriptors", "deaths::"),
            ("mp-tests/memory", "statistics::"),
            ("mp-tests/messages", "kinds::"),
            ("mp-tests/message_leaks", ""),
            ("mp-tests/memory", "many_holders::"),
            ("mp-tests/tensors", "sharing::"),
            ("mp-tests/messages", "outside::"),
            ("mp-tests/user_errors", ""),
            ("mp-tests/small_arena", ""),
            ("mp-tests/killed", "messages::"),
        ],
    ),
    ("arena.reuse.", &[("mp-core/lib", "alloc::slabs::reuse"), ("mp-tests/small_arena", "")]),
    ("arena.ring.", &[("mp-tests/queues", "deserted::"), ("mp-tests/queues", "deaths::")]),
    ("arena.buffer.", &[("mp-core/lib", "transport::"), ("mp-tests/messages", "buffers::")]),
    (
        "codec.",
        &[
            ("mp-tests/messages", "buffers::"),
            ("mp-tests/messages", "shared::"),
            ("mp-tests/messages", "registered::"),
            ("mp-reduce/standard_names", ""),
            ("mp-reduce/codec", ""),
        ],
    ),
    ("arena.alloc.", &[("mp-tests/user_errors", ""), ("mp-tests/local_arena", ""), ("mp-core/lib", "")]),
    ("arena.commit.", &[("mp-tests/user_errors", ""), ("mp-tests/local_arena", ""), ("mp-core/lib", "")]),
    (
        "arena.hold.",
        &[("mp-tests/queues", "deserted::"), ("mp-tests/queues", "deaths::"), ("mp-tests/queues", "waits::")],
    ),
    (
        "arena.attachment.",
        &[("mp-core/lib", ""), ("mp-reduce/codec", ""), ("mp-tests/messages", ""), ("mp-tests/sync", "")],
    ),
    ("arena.exclusive.", &[("mp-core/lib", ""), ("mp-tests/queues", "kinds::")]),
    ("region.", &[("mp-core/lib", "sys::")]),
    ("layout.", &[("mp-core/lib", "")]),
    ("attach.", &[("mp-core/lib", "sys::"), ("mp-core/lib", "")]),
    ("directory.", &[("mp-core/lib", "sys::files::directory"), ("mp-tests/file_system", "")]),
    ("structure.", &[("mp-core/lib", "shared_structure::"), ("mp-core/handles", "")]),
    (
        "handle.",
        &[
            ("mp-tensor/lib", ""),
            ("mp-tensor/handles", ""),
            ("mp-reduce/codec", ""),
            ("mp-tests/messages", ""),
        ],
    ),
    ("list.", &[("mp-sync/lib", "shareable_list::")]),
    ("name.", &[("mp-core/lib", "fuzz::"), ("mp-tests/memory", "named::")]),
    ("queue.deserted.", &[("mp-tests/queues", "deserted::")]),
    ("gone.", &[("mp-core/loom_seats", "waiter_detects"), ("mp-tests/queues", "deserted::")]),
    (
        "queue.connection.",
        &[
            ("mp-queue/lib", "connection"),
            ("mp-queue/lib", "fuzz::"),
            ("mp-tests/sockets", "refusals::"),
            ("mp-tests/invitations", "sockets::"),
            ("mp-tests/sockets", ""),
        ],
    ),
    ("arena.groups.", GROUPS),
    ("steps.group.", GROUPS),
    ("reclaim.group", GROUPS),
    ("member.", DEATHS),
    ("recover.", DEATHS),
    ("reclaim.", DEATHS),
    ("reclaim.group", &[("mp-tests/killed", "messages::process_killed_returning_envelopes_leaks_nothing")]),
    (
        "queue.",
        &[
            ("mp-tests/waiting", "wake_ups::"),
            ("mp-queue/lib", ""),
            ("mp-tests/queues", "kinds::"),
            ("mp-tests/queues", "bytes::"),
            ("mp-tests/queues", "deaths::"),
            ("mp-tests/killed", "queues::"),
            ("mp-tests/killed", "stopped_recoverers::"),
        ],
    ),
];

const RETURNS: &[(&str, &str)] = &[
    ("mp-models/models", "lease::"),
    ("mp-queue/loom_ring", "re"),
    ("mp-queue/lib", ""),
    ("mp-queue/hostile_words", ""),
    ("mp-tests/queues", "kinds::"),
    ("mp-tests/killed", "queues::"),
    ("mp-tests/killed", "stopped_recoverers::"),
];

const GROUPS: &[(&str, &str)] = &[
    ("mp-core/lib", ""),
    ("mp-core/loom_seats", "loom_group"),
    ("mp-models/models", "groups::"),
    ("mp-tests/memory", "statistics::"),
    ("mp-tests/messages", "unsent::"),
];

const DEATHS: &[(&str, &str)] = &[
    ("mp-core/lib", ""),
    ("mp-tests/queues", "deaths::"),
    ("mp-tests/queues", "deserted::"),
    ("mp-tests/queues", "lost_handles::"),
    ("mp-tests/killed", "stopped_recoverers::"),
    ("mp-tests/small_arena", ""),
    ("mp-tests/killed", "ends::"),
    ("mp-tests/killed", "queues::"),
    ("mp-tests/killed", "messages::"),
    ("mp-tests/killed", "late_joining::"),
    ("mp-tests/tensors", "sharing::"),
];

/// Returns the tests of a mutation's area, which is the area with the longest matching prefix.
pub(super) fn runs(name: &str) -> Result<Vec<Run>, String> {
    let fits = OF_STRUCTURES.iter().chain(OF_PROCESSES).filter(|(begin, _)| name.starts_with(begin));
    let (_, runs) = fits.max_by_key(|(begin, _)| begin.len()).ok_or_else(|| {
        format!("{name}: no area begins like that; give it its tests in xtask/src/mutate/areas")
    })?;
    Ok(runs.iter().map(|(suite, filter)| Run::new(suite, filter)).collect())
}

/// Returns the tests of all areas.
pub(super) fn all() -> impl Iterator<Item = Run> {
    let areas = OF_STRUCTURES.iter().chain(OF_PROCESSES);
    areas.flat_map(|(_, runs)| runs.iter().map(|(suite, filter)| Run::new(suite, filter)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_prefix_selects_the_mutation_area() {
        let first = |name: &str| runs(name).map(|runs| runs[0].to_string());
        assert_eq!(first("steps.lock.x").unwrap(), "`mp-core/lib` `steps::lock`");
        assert_eq!(first("steps.take.x").unwrap(), "`mp-core/lib` `steps::`");
        assert!(first("nowhere.x").is_err());
    }
}
