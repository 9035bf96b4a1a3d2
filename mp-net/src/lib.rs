//! Queues across hosts, over gRPC.

pub mod launcher;
