//! The simulated driver, called by small client programs. Each client is a separate process that makes the
//! calls requested by the test, one by one. Also the part of `mp-cuda` that calls the driver.

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
