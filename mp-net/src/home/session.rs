//! Calls of one process, across its streams.
//!
//! | state of a call | event | next state |
//! |---|---|---|
//! | unknown | the call arrives | running, or answered if the object answers at once |
//! | running | the object answers, or the caller cancels the call | answered: the answer is sent |
//! | answered | the caller reconnects, and the call arrives again | answered: the answer is sent again |
//! | answered | the caller has received the answer | unknown: the home forgets the call |
//!
//! A cancelled call has no further effect. A session whose caller doesn't reconnect in time ends. Running
//! calls of an ended session have no further effect. Messages that were taken and not received, or leased and
//! not acknowledged, go back to their queues. Permits and other resources that the caller holds are given
//! back, too.

use crate::sync::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use mp_core::mutex::Mutex;
use prost::Message;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use crate::home::object::{Answer, Answering, ArrivedMessages, CallerHold, PutNow, SharedMessages};
use crate::wire::LONGEST;
use crate::wire::held::HeldMessage;
use crate::wire::messages::{
    CallOutcome, CallReply, CallRuns, HomeMessage, HomeMessageKind, Node, Operation, RemoteCall,
};
use crate::wire::send::StreamPacket;
use crate::wire::value::size_of;

/// Maximum number of calls of a session that are unanswered, or whose answers the caller has not received.
/// Calls that acknowledge have a limit that is twice as high.
const MOST_CALLS: usize = 1 << 16;
/// State of a recorded call.
enum CallProgress {
    Running(Arc<Notify>),
    Answered(Bytes, Option<Arc<HeldMessage>>),
}

#[derive(Default)]
struct SessionState {
    calls: HashMap<u64, CallProgress>,
    /// Permits, leased messages and other resources that the caller holds, by the number of the call that
    /// returned them.
    holds: HashMap<u64, Box<dyn CallerHold>>,
    /// Sender of the current stream. The next field is the number of streams so far.
    to: Option<UnboundedSender<StreamPacket>>,
    streams: u64,
    /// Locks that keep the puts of this caller into an object in order, by the number of the object.
    orders: HashMap<u64, Arc<tokio::sync::Mutex<()>>>,
    ended: bool,
}

/// Session of a caller: the calls of one process, and the resources that it holds.
pub(crate) struct Session {
    pub(crate) caller: Arc<Node>,
    /// Size of the largest message that the caller accepts, in bytes.
    pub(crate) largest: u64,
    /// `true` if the caller has joined the cluster through this session.
    joined: AtomicBool,
    /// `true` after the session has ended.
    pub(crate) lost: Arc<AtomicBool>,
    state: Mutex<SessionState>,
}

impl Session {
    pub(crate) fn new(caller: Node, largest: u64) -> Arc<Self> {
        let (joined, lost) = (AtomicBool::new(false), Arc::default());
        Arc::new(Self { caller: Arc::new(caller), largest, joined, lost, state: Mutex::default() })
    }

    /// Makes the caller a member, for as long as this session lasts.
    pub(crate) fn joins(&self) {
        self.joined.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    /// Begins a stream, which replaces the former stream of the session. Returns the number of the new
    /// stream, or `None` if the session has ended.
    pub(crate) fn begin_stream(&self, to: UnboundedSender<StreamPacket>) -> Option<u64> {
        let mut state = self.state.lock();
        if state.ended {
            return None;
        }
        state.to = Some(to);
        state.streams += 1;
        Some(state.streams)
    }

    /// Returns `true` if no later stream has begun, and the session has not ended. Messages of an older
    /// stream must be ignored, since the caller sends them again in the new stream.
    pub(crate) fn accepts(&self, stream: u64) -> bool {
        let state = self.state.lock();
        state.streams == stream && !state.ended
    }

    /// Ends a stream. Returns `true` if no later stream has begun.
    pub(crate) fn end_stream(&self, stream: u64) -> bool {
        let mut state = self.state.lock();
        if state.streams == stream {
            state.to = None;
        }
        state.streams == stream
    }

    /// Ends the session, unless a later stream has begun. Returns `true` if this call ended the session.
    pub(crate) fn end_unless_resumed(&self, stream: u64) -> bool {
        let mut state = self.state.lock();
        if state.streams != stream || state.ended {
            return false;
        }
        state.ended = true;
        self.lost.store(true, Ordering::Relaxed);
        let calls = std::mem::take(&mut state.calls);
        let holds = std::mem::take(&mut state.holds);
        drop(state);
        for call in calls.into_values() {
            match call {
                CallProgress::Running(cancelled) => cancelled.notify_one(),
                CallProgress::Answered(_, Some(memory)) => memory.give_back(),
                CallProgress::Answered(_, None) => {}
            }
        }
        drop(holds);
        true
    }

    /// Runs a put, unless the session has already recorded this call. Puts of one caller into one queue stay
    /// in order.
    pub(crate) fn put(
        self: &Arc<Self>,
        call: &RemoteCall,
        object: Arc<dyn SharedMessages>,
        messages: ArrivedMessages,
    ) {
        let mut state = self.state.lock();
        let order = state.orders.entry(call.object).or_default().clone();
        let Some(cancelled) = state.begin(call) else { return };
        let put = Arc::<AtomicU64>::default();
        let answering = match order.try_lock() {
            Err(_) => object.put(messages, put.clone()),
            Ok(_) => match object.put_now(messages, put.clone()) {
                // Most puts end at once, and need no future.
                PutNow::Done(answer) => return state.answer(call.id, *answer),
                PutNow::Waits(answering) => answering,
            },
        };
        drop(state);
        let ordered = async move {
            let _turn = order.lock().await;
            answering.await
        };
        self.finish(call, cancelled, put, Box::pin(ordered));
    }

    /// Records an answer, and sends it if there is a stream.
    fn answer(&self, id: u64, answer: Answer) {
        let answer = self.fit(answer);
        let mut state = self.state.lock();
        if !state.ended {
            return state.answer(id, answer);
        }
        drop(state);
        if let Some(memory) = answer.memory {
            memory.give_back();
        }
    }

    /// Returns the answer, if the caller accepts the size of each message in it. Otherwise gives the messages
    /// back, and returns an answer with the size of the largest message.
    fn fit(&self, answer: Answer) -> Answer {
        let size = answer.reply.values.iter().map(size_of).max().unwrap_or(0);
        let is_long = answer.reply.values.iter().any(|value| value.bytes.len() > LONGEST);
        if size <= self.largest && !is_long {
            return answer;
        }
        if let Some(memory) = answer.memory {
            memory.give_back();
        }
        let mut refusal = Answer::plain(CallOutcome::ReplyTooLarge);
        (refusal.reply.number, refusal.reply.size) = (self.largest, size);
        refusal
    }

    /// Runs a call, unless the session has already recorded this call.
    pub(crate) fn run(self: &Arc<Self>, call: &RemoteCall, answering: impl FnOnce() -> Answering) {
        let Some(cancelled) = self.state.lock().begin(call) else { return };
        self.finish(call, cancelled, Arc::default(), answering());
    }

    /// Waits for the answer to a running call, its time limit or its cancellation, and records the answer.
    /// `put` counts the messages that the call has put.
    fn finish(
        self: &Arc<Self>,
        call: &RemoteCall,
        cancelled: Arc<Notify>,
        put: Arc<AtomicU64>,
        mut answering: Answering,
    ) {
        let (id, outcome) = (call.id, unmet(call));
        let limit = call.wait.map(Duration::from_micros);
        let unmet = move || {
            let mut answer = Answer::plain(outcome);
            answer.reply.put = put.load(Ordering::Relaxed);
            answer
        };
        // Most calls end at once, and need no task.
        match answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => return self.answer(id, answer),
            Poll::Pending if limit == Some(Duration::ZERO) => return self.answer(id, unmet()),
            Poll::Pending => {}
        }
        let session = self.clone();
        tokio::spawn(async move {
            let expired = async {
                match limit {
                    Some(limit) => tokio::time::sleep(limit).await,
                    None => std::future::pending().await,
                }
            };
            let answer = tokio::select! {
                biased;
                answer = answering => answer,
                () = cancelled.notified() => unmet(),
                () = expired => unmet(),
            };
            session.answer(id, answer);
        });
    }

    /// Cancels a running call. Its answer is the same as after an expired time limit.
    pub(crate) fn cancel(&self, id: u64) {
        if let Some(CallProgress::Running(cancelled)) = self.state.lock().calls.get(&id) {
            cancelled.notify_one();
        }
    }

    /// Forgets calls whose answers were received.
    pub(crate) fn received(&self, ids: &[u64]) {
        let mut state = self.state.lock();
        for id in ids {
            if matches!(state.calls.get(id), Some(CallProgress::Answered(..))) {
                state.calls.remove(id);
            }
        }
    }

    /// Forgets all answered calls except those in `wanted`.
    pub(crate) fn keep(&self, wanted: &CallRuns) {
        let ranges = wanted.ranges();
        let is_wanted = |id: &u64| {
            let after = ranges.partition_point(|range| range.end <= *id);
            ranges.get(after).is_some_and(|range| range.contains(id))
        };
        self.state.lock().calls.retain(|id, call| is_wanted(id) || matches!(call, CallProgress::Running(_)));
    }

    /// Gives back the resources of call `call.number`: the leased message, the held permit or subscription,
    /// or the taken messages except for the first `call.kept`. `call` itself is not recorded and does not
    /// count towards the limit on calls, since a repetition of `call` has no effect.
    pub(crate) fn give_back(&self, call: &RemoteCall) {
        let (id, mut state) = (call.number, self.state.lock());
        let hold = state.holds.remove(&id);
        let answered = match state.calls.get(&id) {
            Some(CallProgress::Answered(..)) => state.calls.remove(&id),
            _ => None,
        };
        drop(state);
        let found = hold.is_some() || answered.is_some();
        if let (None, Some(CallProgress::Answered(_, Some(memory)))) = (&hold, answered) {
            memory.give_back_after(usize::try_from(call.kept).unwrap_or(usize::MAX));
        }
        drop(hold);
        let answer = Answer::plain(if found { CallOutcome::Done } else { CallOutcome::NotFound });
        self.state.lock().send(encode(call.id, answer.reply), None);
    }

    /// Acknowledges the message that call `id` leased, or removes the permit or other resource that the call
    /// holds from its object.
    pub(crate) fn acknowledge(&self, id: u64) -> Answer {
        let hold = self.state.lock().holds.remove(&id);
        match hold {
            Some(hold) => {
                hold.acknowledge();
                Answer::plain(CallOutcome::Done)
            }
            None => Answer::plain(CallOutcome::NotFound),
        }
    }
}

impl SessionState {
    /// Records a new call as running, and returns the `Notify` that cancels it. Returns `None` for a call
    /// that is recorded already (its answer, if any, is sent again), exceeds the limit on calls, or belongs
    /// to an ended session.
    fn begin(&mut self, call: &RemoteCall) -> Option<Arc<Notify>> {
        let id = call.id;
        let most = match call.operation() {
            Operation::Acknowledge => 2 * MOST_CALLS,
            _ => MOST_CALLS,
        };
        match self.calls.get(&id) {
            None if self.ended => None,
            None if self.calls.len() >= most => {
                let text = format!("this process has {most} unanswered calls, which is the limit");
                self.send(encode(id, Answer::with_text(CallOutcome::Failed, text).reply), None);
                None
            }
            None => {
                let cancelled = Arc::new(Notify::new());
                self.calls.insert(id, CallProgress::Running(cancelled.clone()));
                Some(cancelled)
            }
            Some(CallProgress::Running(_)) => None,
            Some(CallProgress::Answered(reply, memory)) => {
                self.send(reply.clone(), memory.clone());
                None
            }
        }
    }

    /// Records an answer, and sends it if there is a stream.
    fn answer(&mut self, id: u64, answer: Answer) {
        let Answer { mut reply, memory, hold } = answer;
        reply.holds = hold.is_some();
        let reply = encode(id, reply);
        if let Some(hold) = hold {
            self.holds.insert(id, hold);
        }
        self.send(reply.clone(), memory.clone());
        self.calls.insert(id, CallProgress::Answered(reply, memory));
    }

    fn send(&self, message: Bytes, memory: Option<Arc<HeldMessage>>) {
        if let Some(to) = &self.to {
            _ = to.send(StreamPacket { message, memory });
        }
    }
}

/// Returns the message with the reply to a call.
fn encode(id: u64, reply: CallReply) -> Bytes {
    let reply = CallReply { id, ..reply };
    HomeMessage { kind: Some(HomeMessageKind::Reply(reply)) }.encode_to_vec().into()
}

/// Returns the outcome of a call that was cancelled, or whose time limit has expired.
fn unmet(call: &RemoteCall) -> CallOutcome {
    match call.operation() {
        Operation::Put => CallOutcome::Full,
        Operation::Find | Operation::Watch => CallOutcome::NotFound,
        _ => CallOutcome::Empty,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[test]
    fn ordinary_call_above_the_session_limit_is_refused() {
        let session = Session::new(Node::default(), 1 << 20);
        let (to, mut from) = unbounded_channel();
        session.begin_stream(to).unwrap();
        let mut call = |id, operation| {
            let mut call = RemoteCall { id, number: 7, ..RemoteCall::default() };
            call.set_operation(operation);
            match operation {
                Operation::GiveBack => session.give_back(&call),
                _ => session.run(&call, || Box::pin(std::future::ready(Answer::plain(CallOutcome::Done)))),
            }
            match HomeMessage::decode(from.try_recv().unwrap().message).unwrap().kind {
                Some(HomeMessageKind::Reply(reply)) if reply.id == id => reply,
                other => panic!("{other:?}"),
            }
        };
        let most = MOST_CALLS as u64;
        assert!((1..=most).all(|id| call(id, Operation::Nothing).outcome() == CallOutcome::Done));
        let refused = call(most + 1, Operation::Nothing);
        assert!(refused.outcome() == CallOutcome::Failed && refused.text.contains("65536"), "{refused:?}");
        assert_eq!(call(most + 2, Operation::Acknowledge).outcome(), CallOutcome::Done);
        assert_eq!(call(most + 3, Operation::GiveBack).outcome(), CallOutcome::Done);
        session.received(&[8]);
        assert_eq!(call(most + 4, Operation::Nothing).outcome(), CallOutcome::Done);
    }
}
