//! What it does is in its tests.
