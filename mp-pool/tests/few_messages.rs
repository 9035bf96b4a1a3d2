//! A pool in an arena in which few messages can be on their way at once: tasks wait for room, and none fails for lack of it.

mod common;

use common::{got, join};
use mp_core::{Arena, ArenaOptions};
use mp_pool::Pool;

/// Quick tasks in chunks of one are given to workers far ahead.
#[test]
fn workers_are_given_no_more_ahead_than_the_arena_has_messages_for() {
    Arena::configure(ArenaOptions::new().messages(1024)).unwrap();
    let pool = Pool::new(4).unwrap();
    // One that knows how long a task takes gives many more.
    for _ in 0..3 {
        let sums = got(pool.task(|x: u64| x + 1).chunksize(1).map_async(0..20_000)).unwrap();
        assert!(sums.into_iter().eq(1..=20_000));
    }
    join(&pool);
}
