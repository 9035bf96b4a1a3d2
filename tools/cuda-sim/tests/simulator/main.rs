//! Tests of the simulated driver. Small client processes make the calls that the test requests, one by one.
//! Also tests the part of `mp-cuda` that calls the driver.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod deaths;
mod findings;
mod injected;
mod library;
mod memory;
mod order;
mod support;
