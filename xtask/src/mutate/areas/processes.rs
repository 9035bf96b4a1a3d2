//! Areas of processes, pools, managers, loaders and devices, and mutations that the torture must find.

use super::Area;

pub(super) const OF_PROCESSES: &[Area] = &[
    (
        "loader.",
        &[("mp-data/loader", ""), ("mp-data/lib", ""), ("mp-data/torch_names", ""), ("mp-data/memory", "")],
    ),
    ("plan.", &[("mp-data/order", "")]),
    (
        "cuda.row.",
        &[("mp-models/models", "rows::"), ("mp-core/loom_rows", ""), ("mp-cuda-sim/processes", "")],
    ),
    ("orders.", &[("mp-models/models", "orders::"), ("mp-core/lib", "clocks::orders")]),
    (
        "cuda.message.",
        &[("mp-cuda/lib", "tensor::message"), ("mp-cuda-sim/processes", ""), ("mp-cuda-sim/memory", "")],
    ),
    (
        "cuda.clock.",
        &[
            ("mp-cuda/lib", "stream::"),
            ("mp-cuda-sim/processes", "capture::"),
            ("mp-cuda-sim/processes", "failures::"),
            ("mp-cuda-sim/processes", ""),
        ],
    ),
    (
        "cuda.stream.",
        &[
            ("mp-cuda-sim/processes", "ends::"),
            ("mp-cuda-sim/processes", "events::"),
            ("mp-cuda-sim/processes", ""),
        ],
    ),
    ("cuda.", &[("mp-cuda/lib", "memory::"), ("mp-cuda-sim/memory", ""), ("mp-cuda-sim/processes", "")]),
    ("stream.", &[("mp-data/streams", "")]),
    ("planted.", &[("mp-torture/mp-torture", "--seconds=60 --seed=5")]),
    ("planted.answer-to-another", OBJECTS),
    ("planted.object-freed-with-its-caller", OBJECTS),
    ("inherited.", &[("mp-spawn/launching", ""), ("mp-tests/invitations", ""), ("mp-spawn/set_user_id", "")]),
    (
        "net.",
        &[
            ("mp-net/lib", "home::channels"),
            ("mp-net/primitives", ""),
            ("mp-net/channels", ""),
            ("mp-net/sessions", ""),
            ("mp-net/killed", "_killed"),
            ("mp-net/lost", "killed_"),
            ("mp-net/queues", ""),
            ("mp-net/credits", ""),
            ("mp-net/limits", ""),
            ("mp-net/interrupts", ""),
            ("mp-net/memory", ""),
            ("mp-net/interrupted", ""),
            ("mp-net/bad_input", "open_listeners_"),
            ("mp-net/builds", ""),
        ],
    ),
    (
        "spawn.",
        &[
            ("mp-spawn/lib", ""),
            ("mp-spawn/outcomes", ""),
            ("mp-spawn/process", ""),
            ("mp-spawn/misbehaving", ""),
            ("mp-spawn/family", ""),
            ("mp-spawn/forkserver", ""),
            ("mp-spawn/launching", ""),
            ("mp-spawn/limits", ""),
            ("mp-tests/queues", "deaths::"),
            ("mp-tests/message_leaks", ""),
        ],
    ),
    (
        "spawn.parcel-",
        &[
            ("mp-tests/message_leaks", ""),
            ("mp-tests/killed", "ends::"),
            ("mp-tests/killed", "late_joining::"),
        ],
    ),
    (
        "pool.",
        &[
            ("mp-pool/lib", ""),
            ("mp-pool/calls", ""),
            ("mp-pool/deaths", ""),
            ("mp-pool/ends", ""),
            ("mp-pool/closures", ""),
            ("mp-pool/chunks", ""),
            ("mp-pool/stopped", ""),
            ("mp-pool/interrupts", ""),
            ("mp-tests/waiting", "interrupts::"),
            ("mp-models/models", "chunks::"),
            ("mp-pool/loom_journal", ""),
            ("mp-pool/state", ""),
            ("mp-pool/retries", ""),
            ("mp-pool/stream", ""),
            ("mp-pool/stream_ends", ""),
            ("mp-pool/notes", ""),
            ("mp-tests/killed_pool", ""),
        ],
    ),
];

/// Runs of the torture test that use only objects of a manager, because runs with all structures rarely
/// detect a fault of such an object.
const OBJECTS: &[(&str, &str)] =
    &[("mp-torture/mp-torture", "--seconds=60 --seed=5 --only objects --processes=8")];
