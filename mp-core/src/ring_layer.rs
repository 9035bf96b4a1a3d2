//! Operations that the arena needs from the layer that implements rings.
//!
//! # Safety
//! This module dereferences no pointers. The trait is `unsafe` because an implementation that breaks its
//! contract could create two owners of the same memory.
#![allow(unsafe_code)]

use crate::arena::Arena;
use crate::mem::Word;
use crate::parking::detach_notice::DetachedProcess;
use crate::process::SetOnce;
use crate::wait_times::WaitTimes;
use crate::words::{BlockId, EnvelopeId, Member, Owner};
use serde::{Deserialize, Serialize};

/// The ring layer, if this program is linked with one.
// fork: a reference to code, which a child has as well.
pub(crate) static RINGS: SetOnce<&'static dyn RingLayer> = SetOnce::new();

/// Possible location of a message that both a dead member and a living thread were handling.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InDoubt {
    /// No message is in doubt.
    Nothing,
    /// A message that was sent to this ring, and may return to this ring only.
    Ring(BlockId),
    /// Several messages of several rings.
    Rings,
}

/// State of a ring.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RingState {
    /// Kind of object: `queue`, `channel`, `pipe`, or `cell` for `watch` and `broadcast`.
    pub kind: String,
    /// Type of the messages.
    pub type_name: String,
    /// Number of messages, including returned messages. Dead letters are excluded.
    pub len: u64,
    /// Capacity in messages, without returned ones. `None` if unbounded.
    pub capacity: Option<u64>,
    /// `true` if no more messages can be put.
    pub closed: bool,
    /// Number of puts since the queue was created. Wraps around.
    pub puts: u64,
    /// Number of gets since the queue was created. Wraps around.
    pub gets: u64,
    /// Durations of waits for messages. Waits that timed out or failed, and waits for several objects, are
    /// not counted.
    #[serde(default)]
    pub get_waits: WaitTimes,
    /// Durations of waits for room.
    #[serde(default)]
    pub put_waits: WaitTimes,
}

impl RingState {
    /// Creates the state of an empty ring.
    pub fn new(kind: &str, type_name: String) -> Self {
        Self {
            kind: kind.into(),
            type_name,
            len: 0,
            capacity: None,
            closed: false,
            puts: 0,
            gets: 0,
            get_waits: WaitTimes::default(),
            put_waits: WaitTimes::default(),
        }
    }
}

/// Operations that the arena needs from the layer that implements rings.
///
/// # Safety
/// `settle` assigns an envelope to the dead member only if no living process has it or can get it. `drain`
/// and `holder_gone` change only the words of the ring that they are called for. `contents` lists only
/// messages that are in that ring.
pub unsafe trait RingLayer: Send + Sync {
    /// Settles the intents of a dead member. `dead` is that member and the locations of its intents. `others`
    /// lists the intent words of all members not known to be dead, at the time of the call. Any number of
    /// processes may call this at once. Messages in doubt that belong to no living process then belong to the
    /// dead member, or are leased by it. Returns the location of messages that could not be settled because
    /// of a living thread. The caller retries later.
    fn settle(&self, arena: Arena, dead: (Member, &[Word]), others: &dyn Fn() -> Vec<Word>) -> InDoubt;

    /// Gives an envelope that a dead member had leased back to the envelope's queue, if the envelope's owner
    /// word is still `owner`. Changes no word of that queue, because it is possible that this process does
    /// not hold the queue. If the dead member has a seat of the queue, a call of
    /// [`holder_gone`](Self::holder_gone) follows.
    fn take_back(&self, arena: Arena, envelope: EnvelopeId, owner: Owner);

    /// Removes and drops every envelope in a ring that has no holders. If this process is killed, another
    /// process repeats the call.
    fn drain(&self, arena: Arena, memory: (Word, u64), block: BlockId);

    /// Calls `each` with every message that is in a ring or was returned to it. No living process holds that
    /// ring.
    fn contents(&self, arena: Arena, memory: (Word, u64), block: BlockId, each: &mut dyn FnMut(EnvelopeId));

    /// Records that a member that held this ring died or is about to release it, or that a process never
    /// received the ring's handle. Then wakes the ring's sleepers. `memory` is the position and length of the
    /// ring. This process holds the ring or recovers the dead member, whose seat remains in place meanwhile.
    /// Messages that the member had leased were [taken back](Self::take_back) before. Any number of processes
    /// may call this at once.
    fn holder_gone(&self, arena: Arena, memory: (Word, u64), block: BlockId, gone: DetachedProcess, pid: u32);

    /// Returns the state of a ring, or `None` if the block contains none. Changes no word: the ring may be
    /// another program's, or be freed meanwhile.
    fn describe(&self, arena: Arena, memory: (Word, u64), block: BlockId) -> Option<RingState>;

    /// Wakes all sleepers of a ring. Called when a condition that they check has changed outside of the ring.
    fn wake(&self, arena: Arena, memory: (Word, u64), block: BlockId);
}

/// Registers the ring layer, before this process joins an arena. With a ring layer, the process can release
/// messages that dead processes had in queues, even if it uses no queue itself. Only the first call has an
/// effect.
pub fn register(rings: &'static &'static dyn RingLayer) {
    RINGS.set_static(rings);
}

/// Returns `true` if this process has a ring layer.
pub(crate) fn is_registered() -> bool {
    RINGS.get().is_some()
}
