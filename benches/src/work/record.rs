//! A message of about 200 bytes: numbers, texts, a list.

use bytemuck::{Pod, Zeroable};
use mp::Message;
use serde::{Deserialize, Serialize};

use super::{Plan, now};
use crate::Result;

/// Typical message of a program.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    id: u64,
    time: f64,
    name: String,
    tags: [String; 2],
    values: [f64; 12],
    valid: Option<bool>,
}

/// Returns the record with this number.
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

/// Plain data of about 200 bytes, which is sent without encoding.
#[derive(Clone, Copy, Pod, Zeroable, Message)]
#[repr(C)]
#[message(as_bytes)]
pub(crate) struct Reading {
    id: u64,
    time: f64,
    values: [f64; 23],
}

/// Returns the reading with this number.
pub(crate) fn reading(id: u64) -> Reading {
    Reading { id, time: id as f64 / 1000.0, values: [0.5 + id as f64; 23] }
}

/// Returns the number of messages of a round.
pub(crate) fn count(plan: &Plan, full: u64) -> u64 {
    plan.repetitions(full)
}

/// Receives `count` records, and returns their rate per second after the first tenth.
///
/// # Errors
/// Returns an error if a record is lost, repeated, out of order or wrong, or the receiver's error.
pub(crate) fn consume(count: u64, mut receive: impl FnMut() -> Result<Record>) -> Result<f64> {
    rate(count, |id| {
        let got = receive()?;
        Ok(got.id == id && got.values[11] == 0.5 + id as f64 && got.tags[1] == "calibrated")
    })
}

/// Does the same as [`consume`] with plain messages.
///
/// # Errors
/// Returns the same errors.
pub(crate) fn consume_plain(count: u64, mut receive: impl FnMut() -> Result<Reading>) -> Result<f64> {
    rate(count, |id| {
        let got = receive()?;
        Ok(got.id == id && got.values[22] == 0.5 + id as f64 && got.time == id as f64 / 1000.0)
    })
}

fn rate(count: u64, mut receives: impl FnMut(u64) -> Result<bool>) -> Result<f64> {
    let warm_up = count / 10;
    let mut start = now();
    for id in 0..count {
        if !receives(id)? {
            return Err(format!("wrong result: record {id}").into());
        }
        if id == warm_up {
            start = now();
        }
    }
    Ok((count - warm_up) as f64 * 1e9 / (now() - start) as f64)
}
