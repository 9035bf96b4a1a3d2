//! Thread that runs the connections of this process.

use std::sync::OnceLock;
use std::sync::mpsc;

use mp_core::Error;
use mp_core::fork::PerProcess;
use mp_core::long_lived_fds;
use tokio::runtime::{Builder, Handle};

/// Handle of this process's tokio runtime for connections, or the text of the error.
static HANDLE: PerProcess<OnceLock<Result<Handle, String>>> = mp_core::per_process!(OnceLock::new());

/// Returns the handle of the runtime that runs this process's connections. The first call starts the
/// runtime's thread.
///
/// # Errors
/// [`Error::Unsupported`] if the thread or its runtime can't be started.
pub(crate) fn handle() -> Result<&'static Handle, Error> {
    let started = HANDLE.get_or_init(|| start().map_err(|e| e.to_string()));
    started
        .as_ref()
        .map_err(|e| Error::Unsupported(format!("the thread for the network can't be started: {e}")))
}

/// Size in bytes of a block that this thread allocates and frees when it starts. glibc then retains up to
/// twice this size of free memory at the end of a heap instead of 128 KiB (`M_MMAP_THRESHOLD` in mallopt(3)).
/// Otherwise the kernel would reclaim and clear the pages of HTTP/2's buffers for each frame.
const RETAINED: usize = 4 << 20;

fn start() -> std::io::Result<Handle> {
    let (to, from) = mpsc::sync_channel(1);
    std::thread::Builder::new().name("mp-net".into()).spawn(move || {
        let build = || Builder::new_current_thread().enable_all().build();
        match long_lived_fds::register_made("thread for the network", build) {
            Ok(runtime) => {
                drop(std::hint::black_box(Vec::<u8>::with_capacity(RETAINED)));
                _ = to.send(Ok(runtime.handle().clone()));
                runtime.block_on(std::future::pending::<()>());
            }
            Err(error) => _ = to.send(Err(error)),
        }
    })?;
    from.recv().unwrap_or_else(|_| Err(std::io::Error::other("the thread ended")))
}
