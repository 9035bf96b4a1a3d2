//! Queues in files: [`Queue::checkpoint`] and [`Queue::restore`].

mod checksum;
mod error;
mod file;
mod format;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
pub(crate) mod fuzz;
mod restore;
mod save;
#[cfg(all(test, not(mp_loom)))]
mod tests;

use std::path::Path;

use mp_core::Message;

pub use error::CheckpointError;

use crate::queue::Queue;
use crate::raw::options::QueueOptions;
use file::CheckpointWriter;

impl<T: Message> Queue<T> {
    /// Writes all messages of the queue to a file, from which [`restore`](Self::restore) makes a queue with
    /// the same contents. Returns the number of messages.
    ///
    /// ```
    /// use mp_queue::Queue;
    ///
    /// let path = std::env::temp_dir().join(format!("jobs-{}", std::process::id()));
    /// let jobs = Queue::bounded(4)?;
    /// jobs.put("resize image 7".to_string())?;
    /// jobs.put("resize image 8".to_string())?;
    /// let job = jobs.get_lease()?.expect("it is not closed"); // a consumer works on it
    /// assert_eq!(jobs.checkpoint(&path)?, 2);
    /// job.ack();
    ///
    /// // In another program, perhaps on another host.
    /// let again = Queue::<String>::restore(&path)?;
    /// assert_eq!(again.get_lease()?.expect("it was not done").deliveries(), 2);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Contents of the file
    /// The queue is unchanged. The file has the bounds of the queue, and the messages that the queue
    /// contained at one instant of the call, in their order. It also has messages that consumers have
    /// [leased](Self::get_lease) and not yet acknowledged, messages that were given back, and [dead
    /// letters](Self::dead_letter), with their numbers of deliveries. [`QueueOptions::spin`] is not in the
    /// file.
    ///
    /// Messages that are put, taken or acknowledged during the call may be in the file or not. If a consumer
    /// puts a result into the same queue before it takes or acknowledges another message, the file has at
    /// least one of the two. No message is in the file twice, unless a consumer was killed while it took a
    /// lease.
    ///
    /// A message that a consumer has taken by [`get`](Self::get) is not in the file. For a job that can be
    /// continued, consumers must take messages by [`get_lease`](Self::get_lease).
    ///
    /// The file has the format [safetensors](https://github.com/huggingface/safetensors), so that other tools
    /// can read the memory of the tensors. The memory of attachment `a` of message `m` has the name `m.a`.
    /// This memory is a flat array: the elements of an exclusive tensor, or the bytes of a frozen tensor. It
    /// may be longer than the tensor, since the allocator rounds up sizes. The shape of the tensor is in the
    /// encoded part of the message. A tensor that is in several messages is written once for each of them.
    ///
    /// # Blocking
    /// Waits for the file system. Other processes continue, and their puts and gets are not delayed. The call
    /// ends with [`CheckpointError::Busy`] if consumers take messages faster than the call can write them for
    /// about 10 s. In a queue with leases, the call also needs a short pause in which no consumer takes a
    /// message. The pause must begin within about 10 s after the first complete copy. The required length of
    /// the pause grows with the number of messages of the program. After `Busy`, pause the consumers and call
    /// again.
    ///
    /// # Errors
    /// Returns a [`CheckpointError`]. A message with a shared tensor, queue, lock, file or device tensor
    /// can't be written. The queue is unchanged after any error. After an error, an earlier file at the path
    /// is unchanged too, unless only the synchronization of the directory failed: then the new file is in
    /// place.
    ///
    /// # When a process dies
    /// The file is written with the suffix `.mp-partial` and renamed when it is on the disk. So an earlier
    /// file at the path is whole after a crash at any moment. A killed process leaves the partial file, which
    /// the next checkpoint of the same path replaces. Only this user can read the file. On a file system that
    /// can't synchronize a directory, a crash of the host may restore the earlier file.
    pub fn checkpoint(&self, path: impl AsRef<Path>) -> Result<usize, CheckpointError> {
        save::save(self.raw(), CheckpointWriter::create(path.as_ref())?)
    }

    /// Creates a queue with the messages and bounds of a file that [`checkpoint`](Self::checkpoint) has
    /// written. The file is unchanged.
    ///
    /// ```
    /// use mp_queue::Queue;
    /// use mp_tensor::Tensor;
    ///
    /// let path = std::env::temp_dir().join(format!("batches-{}", std::process::id()));
    /// let batches = Queue::<Tensor<f32>>::bounded(4)?;
    /// batches.put(Tensor::full(&[1000], 2.0)?)?;
    /// batches.checkpoint(&path)?;
    ///
    /// let again = Queue::<Tensor<f32>>::restore(&path)?;
    /// assert_eq!(again.get()?.expect("it was saved").iter().sum::<f32>(), 2000.0);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Leases end as if their consumers had died: their messages are delivered first, or are [dead
    /// letters](Self::dead_letter) if they had been delivered as often as the queue allows. A closed queue is
    /// closed again. Tensors are exclusive or frozen as before. [`QueueOptions::restore`] sets other bounds.
    ///
    /// The message type must have the same name as in the program that wrote the file. The file is checked by
    /// checksums, which find accidental changes. A hostile file can contain any message of the type.
    ///
    /// # Blocking
    /// Waits for the file system.
    ///
    /// # Errors
    /// Returns a [`CheckpointError`], also if there is not enough shared memory.
    pub fn restore(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        restore::restore(path.as_ref(), None)
    }
}

impl QueueOptions {
    /// Creates a queue with the messages of a file, as [`Queue::restore`] does, but with these options.
    ///
    /// ```
    /// use mp_queue::{Queue, QueueOptions};
    ///
    /// let path = std::env::temp_dir().join(format!("larger-{}", std::process::id()));
    /// let small = Queue::<u64>::bounded(1)?;
    /// small.put(7)?;
    /// small.checkpoint(&path)?;
    /// let larger = QueueOptions::new().capacity(100).restore::<u64>(&path)?;
    /// assert_eq!((larger.capacity(), larger.get()?), (100, Some(7)));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Queue::restore`], and [`CheckpointError::TooMany`] or
    /// [`CheckpointError::TooLarge`] if the messages exceed the bounds.
    pub fn restore<T: Message>(self, path: impl AsRef<Path>) -> Result<Queue<T>, CheckpointError> {
        restore::restore(path.as_ref(), Some(self))
    }
}
