//! Numbers that callers may give: sizes, counts and times, at their limits.

mod arguments;
mod times;
