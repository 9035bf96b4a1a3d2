//! Attaching memory to a message is `unsafe`: the caller must guarantee the correct mode of ownership.
use mp::Tensor;
use mp_core::message::{LoanedValue, Outgoing};
use mp_core::words::{Access, Grant};

fn main() {
    let tensor = Tensor::<u8>::zeros(&[4096]).unwrap();
    let mut hold = tensor.storage().hold().clone();
    let mut out = Outgoing::default();
    let _ = out.attached().attach(&hold, Grant::new(Access::Frozen, 0));
    let _ = out.attached().attach_own(&mut hold, Grant::new(Access::Exclusive, 1));
    let (grant, beside) = (Grant::new(Access::Exclusive, 1), std::sync::Arc::new(()));
    let lent = LoanedValue { attachment: 0, grant, bytes: 4096, beside, note: 0 };
    let _ = out.attached().lends(lent);
}
