//! What the tests of this workspace share: the explorer of the exhaustive models.

pub mod explore;
