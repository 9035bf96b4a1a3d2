//! A message of some 200 bytes: numbers, texts, a list.

use serde::{Deserialize, Serialize};

use super::{Plan, now};
use crate::Result;

/// What a program that measures something would send.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    id: u64,
    time: f64,
    name: String,
    tags: [String; 2],
    values: [f64; 12],
    valid: Option<bool>,
}

/// The one with this number.
pub(crate) fn record(id: u64) -> Record {
    Record {
        id,
        time: id as f64 / 1000.0,
        name: "a sensor on the northern roof".to_owned(),
        tags: ["temperature".to_owned(), "calibrated".to_owned()],
        values: [0.5 + id as f64; 12],
        valid: Some(true),
    }
}

/// How many are sent.
pub(crate) fn count(plan: &Plan, full: u64) -> u64 {
    plan.repetitions(full)
}

/// Receives them all: how many in a second, after the first tenth.
///
/// # Errors
/// One that is lost, repeated, out of order or wrong; or the receiver's errors.
pub(crate) fn consume(count: u64, mut receive: impl FnMut() -> Result<Record>) -> Result<f64> {
    let warm_up = count / 10;
    let mut start = now();
    for id in 0..count {
        let got = receive()?;
        if got.id != id || got.values[11] != 0.5 + id as f64 || got.tags[1] != "calibrated" {
            return Err(format!("wrong result: record {id}").into());
        }
        if id == warm_up {
            start = now();
        }
    }
    Ok((count - warm_up) as f64 * 1e9 / (now() - start) as f64)
}
