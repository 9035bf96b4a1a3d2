//! Waits: for many things at once, how soon they end, what they cost. (For descriptors within a tokio runtime: `tokio_driver.rs`, a
//! program of its own.)

mod death_times;
mod dumps;
mod hangs;
mod idle_cpu_time;
mod interrupts;
mod many;
mod streams;
mod wake_ups;
