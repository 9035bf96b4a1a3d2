//! Workers on other hosts.
//!
//! A member of a cluster [serves](crate::Pool::serve) its pool. A pool with a
//! [cluster](crate::PoolBuilder::cluster) has one more worker for each worker of the served pools: a process
//! of this host, the *forwarder*. The forwarder sends its chunks to a served pool, and returns the outcomes
//! to its own pool. All calls, time limits, retries and deaths are thus handled as for other workers. In the
//! table, host A is the host of the forwarder, and host B is the host of the served pool.
//!
//! ```text
//! host A                                          host B
//! pool ── queue ── forwarder ══ service of B ══ served pool ── queue ── worker
//! ```
//!
//! | event | effect |
//! |---|---|
//! | the worker on host B dies, or exceeds a time limit | as for any pool: the running task gets the error of the served pool, the other tasks of the chunk continue on host B |
//! | host B is lost, or its pool ends | the forwarder returns the tasks of its chunk that have no outcome, and ends; other workers begin them, a second time if host B had begun them |
//! | the session of a forwarder is lost, and both processes live | the forwarder connects again, and requests the outcomes that it has not received; host B stores them for a minute. Host B drops the tasks that it has not begun, and other workers begin them. A result with attachments is lost with its reply, and its task is begun again |
//! | the forwarder dies | the tasks of its chunk are lost, because host B may have begun them; host B drops the tasks that it has not begun |
//! | a call is cancelled | host A sends host B a separate request to cancel the chunks that forwarders have; host B settles the tasks that it has not begun, also tasks of a chunk that arrives later |
//! | host A is lost | host B drops the tasks that it has not begun |
//!
//! `messages` has the requests and replies, `forwarder` sends the requests, and `places` decides where
//! processes run. In the folder `dispatcher`, `served` replies, and `hosts` finds the served pools of other
//! members.

pub(crate) mod forwarder;
pub(crate) mod messages;
pub(crate) mod places;
