//! Doc tests of the programs in the book. The macro below defines a type for each page with programs.

/// Defines types. The documentation of each type is a page of the book, so its programs run as doc tests.
macro_rules! pages {
    ($($(#[$attribute:meta])* $name:ident: $path:literal,)*) => {$(
        $(#[$attribute])*
        #[doc = include_str!(concat!("../docs/", $path))]
        struct $name;
    )*};
}

pages! {
    FirstProgram: "start/first-program.md",
    TenMinutes: "start/ten-minutes.md",
    Tensors: "guide/tensors.md",
    Queues: "guide/queues.md",
    Pools: "guide/pools.md",
    #[cfg(feature = "data")]
    Loader: "guide/data-loader.md",
    #[cfg(feature = "data")]
    LoaderReference: "data.md",
    Locks: "guide/locks.md",
    ProcessDeath: "guide/process-death.md",
    Hangs: "guide/hangs.md",
    Mistakes: "guide/mistakes.md",
    Production: "production.md",
    #[cfg(feature = "ndarray")]
    Libraries: "guide/libraries.md",
    Threads: "guide/threads.md",
    #[cfg(feature = "cuda")]
    Cuda: "guide/cuda.md",
    #[cfg(feature = "authkey")]
    Sockets: "guide/sockets.md",
    #[cfg(feature = "net")]
    Hosts: "guide/cluster.md",
}
