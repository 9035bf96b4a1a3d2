//! Memory of envelopes: groups of 64, and hints of the free ones.

mod group;
mod hints;

pub use group::{AdoptGroup, AdoptedGroup, BeginFill, EmptyGroup, EnvelopesAt, FillGroup, GroupAt};
pub use hints::{HintGroup, HintsAt, UnmarkGroup};
