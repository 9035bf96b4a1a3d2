//! Workload with objects of a manager. All workers call the objects concurrently, sometimes one object
//! through another, while callers are killed and stopped.
//!
//! | killed process | guarantee |
//! |---|---|
//! | a caller, at any point | each of its calls has run once or not at all; other callers get their answers |
//! | none | calls run once, in the order of their caller, with the arguments that were sent; each call returns its own result |
//!
//! Calls from the first object to the second and back can form a cycle. One of these calls returns an error,
//! and has not run.

use std::collections::BTreeMap;

use mp::manager::{CallError, ManagerHandle};
use mp::{FrozenTensor, Manager, Proxy, Tensor, closure};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::{Op, Row};
use crate::random::Random;
use crate::workloads::work::LONG;

/// Number of elements of a tensor. Arguments with the tensor and additional bytes are too long for an
/// envelope.
const LEN: usize = 100;

/// State of an object: for each caller, by its mark, the number of its last call that has run.
type Shelf = BTreeMap<u64, u64>;

/// Arguments of a call: mark of the caller, number of the call, and data that must arrive unchanged.
type Args = (u64, u64, FrozenTensor<u64>, Vec<u8>);

fn args(mark: u64, number: u64) -> mp::AnyResult<Args> {
    Ok((mark, number, Tensor::full([LEN], number)?.freeze(), vec![number as u8; 3 * LEN]))
}

/// Runs a call: checks that it is the caller's next call, records it, and returns the answer.
fn note(shelf: &mut Shelf, (mark, number, tensor, bytes): Args) -> Result<(u64, u64), String> {
    if tensor.iter().any(|v| v != number) || bytes.iter().any(|&b| b != number as u8) {
        return Err(format!("torn: call {number} of {mark:#x}, with {tensor} and {bytes:?}"));
    }
    let last = shelf.entry(mark).or_default();
    if *last + 1 != number {
        return Err(format!("duplicated, or lost: call {number} of {mark:#x} after {last}"));
    }
    *last = number;
    Ok((mark, number))
}

/// Two objects, and a handle by which workers create more objects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Objects {
    handle: ManagerHandle,
    shelves: [Proxy<Shelf>; 2],
}

impl Objects {
    pub(crate) fn new(manager: &Manager) -> mp::AnyResult<Self> {
        let shelf = || manager.create(Shelf::new).map(|shelf| shelf.with_timeout(LONG));
        Ok(Self { handle: manager.handle(), shelves: [shelf()?, shelf()?] })
    }

    /// Calls objects at random, until the round has ended.
    pub(crate) fn work(&self, row: &Row, random: &mut Random) -> mp::AnyResult<()> {
        let (mark, mut done) = (row.mark(), [0_u64; 2]);
        while !row.over() {
            let at = random.below(2) as usize;
            let number = done[at] + 1;
            if random.percent(5) {
                row.note(Op::Begin, number);
                self.own_object(mark)?;
            }
            row.note(Op::Submit, number);
            let shelf = &self.shelves[at];
            let ran = match random.below(4) {
                // Calls through the other object.
                0 => {
                    let by = closure!([shelf = shelf.clone()] |_by: &mut Shelf, args: Args| {
                        let noted = closure!([] |shelf: &mut Shelf, args: Args| note(shelf, args));
                        Ok::<_, String>(shelf.call_with(noted, args))
                    });
                    self.shelves[1 - at].call_with(by, args(mark, number)?)
                }
                _ => Ok(shelf.call_with(
                    closure!([] |shelf: &mut Shelf, args: Args| note(shelf, args)),
                    args(mark, number)?,
                )),
            };
            match ran.and_then(|ran| ran) {
                Ok(answer) if answer == (mark, number) => done[at] = number,
                Ok((mark, number)) => {
                    return Err(format!("torn: the answer to call {number} of {mark:#x}").into());
                }
                Err(CallError::Cycle { .. }) => {}
                Err(CallError::Raised(raised)) => return Err(raised.message.into()),
                Err(error) => return Err(format!("call {number}: {error}").into()),
            }
        }
        row.note(Op::Leave, 0);
        for (shelf, done) in self.shelves.iter().zip(done) {
            let ran = shelf
                .call(closure!([mark] |shelf: &mut Shelf| shelf.get(mark).copied().unwrap_or_default()))?;
            if ran != done {
                return Err(format!("lost: {ran} calls of {done}").into());
            }
        }
        Ok(())
    }

    /// Creates and uses an object that ends with its only proxy, or with this process.
    fn own_object(&self, mark: u64) -> mp::AnyResult<()> {
        let own = self.handle.create(Shelf::new)?.with_timeout(LONG);
        let answer =
            own.call_with(closure!([] |shelf: &mut Shelf, args: Args| note(shelf, args)), args(mark, 1)?)?;
        if answer == (mark, 1) { Ok(()) } else { Err("torn: the answer of an own object".into()) }
    }
}
