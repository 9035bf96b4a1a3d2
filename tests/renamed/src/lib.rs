//! Package for its tests only.
