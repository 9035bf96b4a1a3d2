//! Words about devices: the order of a device's streams, and records of the use of its memory.

pub mod stream_order;
pub mod use_record;
