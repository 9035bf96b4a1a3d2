//! Calls of an object in a manager's server.

use mp::{Manager, closure};

use crate::Result;
use crate::process::pin;
use crate::work::{Outcome, Plan};

/// Runs a round of the row `manager_call`: the round trip of a call of a proxy that was called before. The
/// closure captures nothing, has no arguments, and returns a number.
pub(crate) fn call(plan: &Plan) -> Outcome {
    let manager = Manager::start()?;
    let object = manager.create(|| 0_u64)?;
    if let Some(cores) = plan.cores {
        let cpu = cores.child;
        object.call(closure!([cpu] |_number: &mut u64| pin(*cpu).map_err(|error| error.to_string())))?;
    }
    let mut calls = 0;
    let time = plan.batches(500_000).time(|_| -> Result<()> {
        calls += 1;
        let number = object.call(closure!([] |number: &mut u64| {
            *number += 1;
            *number
        }))?;
        if number == calls { Ok(()) } else { Err(format!("wrong result: {number}, and not {calls}").into()) }
    })?;
    manager.shutdown(std::time::Duration::from_secs(1))?;
    Ok(Some(time))
}
