//! mp itself: one function per row, each doing one round and returning its figure, or `None` where there is nothing to
//! measure yet. The work is in [`crate::work`]; here mp only has to carry it.

use crate::work::{Outcome, Plan};

/// A round trip while both processes are awake: [`crate::work::small::round_trips`].
pub(crate) fn rtt_awake(_: &Plan) -> Outcome {
    Ok(None)
}

/// A round trip while both processes sleep in between: [`crate::work::small::sleepy_round_trips`].
pub(crate) fn rtt_asleep(_: &Plan) -> Outcome {
    Ok(None)
}

/// One producer, one consumer: [`crate::work::small::consume`].
pub(crate) fn one_way(_: &Plan) -> Outcome {
    Ok(None)
}

/// The same tensor again and again: [`crate::work::tensor::again`].
pub(crate) fn tensor_again(_: &Plan) -> Outcome {
    Ok(None)
}

/// A fresh tensor each time: [`crate::work::tensor::fresh`].
pub(crate) fn tensor_fresh(_: &Plan) -> Outcome {
    Ok(None)
}

/// Start and join of one process that does nothing: the median time of one in ns.
pub(crate) fn spawn_exec(_: &Plan) -> Outcome {
    Ok(None)
}
