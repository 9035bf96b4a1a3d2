//! Fuzz target for hostile checkpoint files.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use mp_core::Message;
use rustix::fs::{MemfdFlags, memfd_create};

use super::checksum::Checksum;
use super::error::CheckpointError;
use super::file::CheckpointReader;
use super::format::{TRAILER, Trailer};
use super::restore::restore;
use crate::queue::Queue;
use crate::raw::options::QueueOptions;

/// Type of the messages in the fuzzed files.
type FuzzMessage = (u8, Vec<u32>);

fn memfile(bytes: &[u8]) -> (File, String) {
    let mut file = File::from(memfd_create("checkpoint", MemfdFlags::CLOEXEC).unwrap());
    file.write_all(bytes).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    (file, path)
}

/// Returns the file with correct checksums for its header and table, as an attacker would compute them.
/// Returns `None` if the trailer is invalid.
fn summed(bytes: &[u8]) -> Option<Vec<u8>> {
    let (rest, last) = bytes.split_last_chunk::<TRAILER>()?;
    let trailer = Trailer::unpack(last, bytes.len() as u64)?;
    let table = rest.get(trailer.table_at as usize..)?;
    let mut header_sum = Checksum::default();
    rest.get(..trailer.data_at as usize)?.chunks(super::file::CHUNK).for_each(|chunk| header_sum.add(chunk));
    let last = Trailer { header_sum: header_sum.get(), ..trailer }.pack(table);
    Some([rest, &last].concat())
}

/// Restores the file twice: unchanged, and with corrected checksums of header and table.
pub(crate) fn files(bytes: &[u8]) {
    for bytes in [Some(bytes.to_vec()), summed(bytes)].into_iter().flatten() {
        let (_file, path) = memfile(&bytes);
        take_all(&path, Some(QueueOptions::new().capacity(4)));
        // A table may ask for more slots than there is memory for.
        let few = |file: CheckpointReader| file.queue.options.capacity.is_none_or(|slots| slots <= 1000);
        if CheckpointReader::open(path.as_ref()).is_ok_and(few) {
            take_all(&path, None);
        }
    }
}

fn take_all(path: &str, options: Option<QueueOptions>) {
    match restore::<FuzzMessage>(path.as_ref(), options) {
        Ok(queue) => {
            queue.close();
            while let Ok(Some(_)) | Err(crate::GetError::Failed(_)) = queue.get() {}
        }
        Err(CheckpointError::File { source, .. }) => panic!("{source}"),
        Err(error) => _ = error.to_string(),
    }
}

/// Calls `create` until the new queue's block has no lost messages of an earlier queue, and returns that
/// queue. A test that overwrites the words of a queue loses messages: they stay marked as queued in its block
/// and are in no slot.
pub(crate) fn with_clean_memory<T: Message>(create: impl Fn() -> Queue<T>) -> Queue<T> {
    let mut others = Vec::new();
    loop {
        let queue = create();
        if queue.raw().memory().held_messages().is_some_and(|held| held.is_empty()) {
            return queue;
        }
        others.push(queue);
    }
}

/// Returns valid files with small, large, leased and attached messages.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let queue = with_clean_memory(|| QueueOptions::new().capacity(4).create::<FuzzMessage>().unwrap());
    queue.put((1, vec![])).unwrap();
    queue.put((2, (0..100).collect())).unwrap();
    let plain = written(&queue);
    let lease = queue.get_lease().unwrap();
    let held = written(&queue);
    drop(lease);
    vec![plain, held, Vec::new()]
}

fn written(queue: &Queue<FuzzMessage>) -> Vec<u8> {
    let path = std::env::temp_dir().join(format!("mp-fuzz-{}-checkpoint", std::process::id()));
    queue.checkpoint(&path).unwrap();
    let mut file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::format::{read_table, table};

    /// The file has valid checksums. Two entries of its table name the same range of the file: together they
    /// request more memory than the file has bytes.
    #[test]
    fn checkpoint_with_overlapping_ranges_is_refused() {
        let bytes = seeds().swap_remove(0);
        let (rest, last) = bytes.split_last_chunk::<TRAILER>().unwrap();
        let trailer = Trailer::unpack(last, bytes.len() as u64).unwrap();
        let mut queue = read_table(&rest[trailer.table_at as usize..], &trailer).unwrap();
        let twice = queue.messages[1].clone();
        queue.messages.push(twice);
        assert!(read_table(&table(&queue), &trailer).is_none());
    }
}
