//! Task of a link: sends calls within the credits of the home, and passes replies to their callers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::auth;
use crate::error::{NetError, PeerLost};
use crate::link::completion::CallResult;
use crate::link::stream::{Stream, StreamError, connect};
use crate::link::{Command, HomePeer, NodeIdentity, PendingCall};
use crate::wire::messages::{
    CallList, CallOutcome, CallReply, CallerMessage, CallerMessageKind, HomeMessage, HomeMessageKind,
    Operation, RemoteCall, Welcome,
};
use crate::wire::receive::{Part, StreamEnd};
use crate::wire::send::StreamPacket;
use crate::wire::value::{ArrivalError, ArrivingValue};

/// Numbers of the driver's own calls have this bit.
const OWN: u64 = 1 << 63;
/// Number of replies without a value that are acknowledged together, if no call is sent before.
const ACKNOWLEDGED: usize = 64;
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);
/// Minimum time for an attempt to reconnect.
const ATTEMPT: Duration = Duration::from_millis(200);

struct LinkDriver {
    me: Arc<NodeIdentity>,
    peer: Arc<Mutex<HomePeer>>,
    /// Calls without their replies.
    pending: BTreeMap<u64, PendingCall>,
    /// Calls that wait for credits, in the order of their arrival.
    waiting: VecDeque<u64>,
    /// Replies with a value that their callers have not taken.
    unreceived: BTreeSet<u64>,
    /// Replies to be acknowledged, and `true` if this is urgent.
    received: (Vec<u64>, bool),
    /// Number of calls that are sent and not answered, and their bytes.
    unanswered: (u32, u64),
    /// Credits of the home: calls, and bytes.
    credits: (u32, u64),
    largest: u64,
    next_own: u64,
    arriving: Option<(CallReply, ArrivingValue)>,
}

/// Runs a link until its handle is dropped.
pub(crate) async fn run(
    me: Arc<NodeIdentity>,
    peer: Arc<Mutex<HomePeer>>,
    mut commands: UnboundedReceiver<Command>,
) {
    let mut driver = LinkDriver {
        me,
        peer,
        pending: BTreeMap::new(),
        waiting: VecDeque::new(),
        unreceived: BTreeSet::new(),
        received: (Vec::new(), false),
        unanswered: (0, 0),
        credits: (1, 0),
        largest: 0,
        next_own: OWN,
        arriving: None,
    };
    loop {
        while driver.pending.is_empty() {
            match commands.recv().await {
                Some(command) => driver.accept(command, None),
                None => return,
            }
        }
        let session = match auth::random() {
            Ok(session) => session,
            Err(error) => {
                driver.fail(|_| mp_core::Error::Unsupported(error.to_string()).into());
                continue;
            }
        };
        let limit = driver.me.config.lease;
        let peer = driver.peer();
        match connect(&driver.me, &peer, session, limit).await {
            Ok(stream) => {
                if driver.serve(stream, session, &mut commands).await.is_none() {
                    return;
                }
            }
            Err(StreamError::Refused(error)) => driver.refuse(error),
            Err(StreamError::Gone(cause) | StreamError::Silent(cause)) if peer.host.is_empty() => {
                let (address, waited) = (peer.address, limit);
                driver.fail(|_| NetError::Unreachable {
                    address: address.clone(),
                    waited,
                    cause: cause.clone(),
                });
            }
            Err(StreamError::Gone(cause) | StreamError::Silent(cause)) => driver.lose(&cause, Duration::ZERO),
        }
    }
}

impl LinkDriver {
    fn peer(&self) -> HomePeer {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs a session until its home is lost. Returns `None` if the link's handle was dropped.
    async fn serve(
        &mut self,
        mut stream: Stream,
        session: u64,
        commands: &mut UnboundedReceiver<Command>,
    ) -> Option<()> {
        self.begin(&stream.welcome);
        loop {
            let end = self.run_stream(&mut stream, commands).await?;
            let silence = match &end {
                StreamEnd::Failed(text) if text.contains("timed out") => self.me.config.lease,
                _ => Duration::ZERO,
            };
            self.arriving = None;
            drop(stream);
            let since = Instant::now();
            match self.resume(session, since + self.me.config.grace).await {
                Ok(resumed) => stream = resumed,
                Err(Some(cause)) => {
                    self.lose(&cause, silence + since.elapsed());
                    return Some(());
                }
                Err(None) => {
                    self.lose(&end.to_string(), silence + since.elapsed());
                    return Some(());
                }
            }
            self.send_again(&stream.to);
        }
    }

    /// Records what a home has said of itself.
    fn begin(&mut self, welcome: &Welcome) {
        let mut peer = self.peer.lock().unwrap_or_else(PoisonError::into_inner);
        peer.home = welcome.home;
        if let Some(from) = &welcome.from {
            peer.rank = from.rank as usize;
            peer.host = format!("{}, process {}", from.host, from.pid);
        }
        self.credits = (welcome.calls.max(1), welcome.bytes);
        self.largest = welcome.largest;
        self.unanswered = (0, 0);
        self.unreceived.clear();
        self.received = (Vec::new(), false);
    }

    /// Connects again to the same session of the home. The error is the cause, if there is a better one than
    /// the end of the former stream.
    async fn resume(&mut self, session: u64, until: Instant) -> Result<Stream, Option<String>> {
        let peer = self.peer();
        loop {
            let limit = until.saturating_duration_since(Instant::now()).max(ATTEMPT);
            match connect(&self.me, &peer, session, limit).await {
                Ok(stream) if stream.welcome.resumed => return Ok(stream),
                Ok(_) => {
                    return Err(Some("it gave up this process, whose connection was interrupted".into()));
                }
                Err(StreamError::Gone(cause)) => return Err(Some(cause)),
                Err(StreamError::Refused(error)) => return Err(Some(error.to_string())),
                Err(StreamError::Silent(_)) if Instant::now() < until => tokio::time::sleep(PAUSE).await,
                Err(StreamError::Silent(_)) => return Err(None),
            }
        }
    }

    /// Sends the calls without replies again. The home does nothing twice.
    fn send_again(&mut self, to: &UnboundedSender<StreamPacket>) {
        let sent = || self.pending.iter().filter(|(_, pending)| pending.sent);
        let ids = sent().map(|(id, _)| *id).chain(self.unreceived.iter().copied()).collect();
        _ = to.send(up(CallerMessageKind::Wanted(CallList { ids })));
        for (_, pending) in sent() {
            _ = to.send(pending.packet());
        }
        self.received = (Vec::new(), false);
    }

    /// Sends and receives until the stream ends. Returns `None` if the link's handle was dropped.
    async fn run_stream(
        &mut self,
        stream: &mut Stream,
        commands: &mut UnboundedReceiver<Command>,
    ) -> Option<StreamEnd> {
        loop {
            self.flush(&stream.to);
            let end = tokio::select! {
                part = stream.from.next::<HomeMessage>() => self.take_all(part, stream),
                command = commands.recv() => {
                    self.accept(command?, Some(&stream.to));
                    while let Ok(command) = commands.try_recv() {
                        self.accept(command, Some(&stream.to));
                    }
                    Ok(())
                }
            };
            if let Err(end) = end {
                return Some(end);
            }
        }
    }

    /// Handles a part, and all others that have arrived.
    fn take_all(
        &mut self,
        part: Result<Part<HomeMessage>, StreamEnd>,
        stream: &mut Stream,
    ) -> Result<(), StreamEnd> {
        let mut next = Some(part?);
        while let Some(part) = next {
            match part {
                Part::Message(HomeMessage { kind: Some(HomeMessageKind::Reply(reply)) }) => {
                    self.replied(reply)?
                }
                Part::Data(data) => {
                    let (reply, value) =
                        self.arriving.take().ok_or(StreamEnd::Malformed("data without a reply"))?;
                    self.arrived(reply, value.write(&data)?);
                }
                Part::Message(_) => return Err(StreamEnd::Malformed("a message that is not a reply")),
            }
            next = stream.from.arrived()?;
        }
        Ok(())
    }

    /// Handles a reply. One for a call that has its reply already is skipped.
    fn replied(&mut self, mut reply: CallReply) -> Result<(), StreamEnd> {
        if self.arriving.is_some() {
            return Err(StreamEnd::Malformed("a reply within another one"));
        }
        match reply.value.take() {
            Some(value) => {
                let value = ArrivingValue::new(value, self.me.config.largest);
                self.arrived(reply, value);
            }
            None => self.complete(reply, None),
        }
        Ok(())
    }

    fn arrived(&mut self, reply: CallReply, value: ArrivingValue) {
        if value.is_whole() {
            self.complete(reply, Some(value));
        } else {
            self.arriving = Some((reply, value));
        }
    }

    /// Passes a whole reply to its caller.
    fn complete(&mut self, reply: CallReply, value: Option<ArrivingValue>) {
        let id = reply.id;
        let Some(pending) = self.pending.remove(&id) else { return };
        self.unanswered.0 = self.unanswered.0.saturating_sub(1);
        self.unanswered.1 = self.unanswered.1.saturating_sub(pending.size);
        let Some(value) = value else {
            pending.completion.complete(Ok((reply, None)));
            self.received.0.push(id);
            return;
        };
        let limit = self.me.config.largest;
        let result: CallResult = match value.finish() {
            Ok(value) => Ok((reply, Some(value))),
            Err(ArrivalError::TooLarge(bytes)) => Err(NetError::TooLarge { bytes, limit }),
            Err(ArrivalError::Memory(error)) => Err(error.into()),
        };
        let arrived = result.is_ok();
        if pending.completion.complete(result) && arrived {
            self.unreceived.insert(id);
        } else {
            self.give_back(id);
        }
    }

    /// Gives back the message of a reply.
    fn give_back(&mut self, id: u64) {
        self.next_own += 1;
        let mut call = RemoteCall { id: self.next_own, number: id, ..RemoteCall::default() };
        call.set_operation(Operation::GiveBack);
        self.accept(Command::Call(PendingCall::new(call, None)), None);
    }

    /// Handles a command of a caller. `to` is the stream, if there is one.
    fn accept(&mut self, command: Command, to: Option<&UnboundedSender<StreamPacket>>) {
        match command {
            Command::Call(pending) => {
                self.waiting.push_back(pending.id);
                self.pending.insert(pending.id, pending);
            }
            Command::Received(id) => {
                if self.unreceived.remove(&id) {
                    self.received.0.push(id);
                    self.received.1 = true;
                }
            }
            Command::Cancel(id) => match self.pending.get(&id) {
                Some(pending) if pending.sent => {
                    if let Some(to) = to {
                        _ = to.send(up(CallerMessageKind::Cancel(id)));
                    }
                }
                Some(_) => self.withdraw(id),
                None if self.unreceived.remove(&id) => self.give_back(id),
                None => {}
            },
        }
    }

    /// Ends a call that was not sent.
    fn withdraw(&mut self, id: u64) {
        let Some(pending) = self.pending.remove(&id) else { return };
        self.waiting.retain(|waiting| *waiting != id);
        let mut reply = CallReply { id, ..CallReply::default() };
        reply.set_outcome(match pending.operation {
            Operation::Put => CallOutcome::Full,
            _ => CallOutcome::Empty,
        });
        pending.completion.complete(Ok((reply, None)));
    }

    /// Sends acknowledgements, and calls within the credits.
    fn flush(&mut self, to: &UnboundedSender<StreamPacket>) {
        let (ids, urgent) = &mut self.received;
        if *urgent || ids.len() >= ACKNOWLEDGED || !(ids.is_empty() || self.waiting.is_empty()) {
            let ids = std::mem::take(ids);
            *urgent = false;
            _ = to.send(up(CallerMessageKind::Received(CallList { ids })));
        }
        while let Some(id) = self.waiting.front() {
            let Some(pending) = self.pending.get_mut(id) else {
                self.waiting.pop_front();
                continue;
            };
            let (calls, bytes) = &mut self.unanswered;
            let fits =
                *bytes == 0 || pending.size == 0 || bytes.saturating_add(pending.size) <= self.credits.1;
            if *calls >= self.credits.0 || !fits {
                break;
            }
            if pending.size > self.largest {
                let error = NetError::TooLarge { bytes: pending.size, limit: self.largest };
                if let Some(pending) = self.pending.remove(id) {
                    pending.completion.complete(Err(error));
                }
                continue;
            }
            *calls += 1;
            *bytes += pending.size;
            pending.sent = true;
            _ = to.send(pending.packet());
            self.waiting.pop_front();
        }
    }

    /// Ends all calls with an error. `error` is called with `true` for calls that may have had their effect.
    fn fail(&mut self, error: impl Fn(bool) -> NetError) {
        self.waiting.clear();
        self.unreceived.clear();
        for pending in std::mem::take(&mut self.pending).into_values() {
            pending.completion.complete(Err(error(pending.sent)));
        }
    }

    /// Ends all calls after a refusal. The first has the whole error, the others its text.
    fn refuse(&mut self, error: NetError) {
        let text = error.to_string();
        let mut first = Some(error);
        self.waiting.clear();
        for pending in std::mem::take(&mut self.pending).into_values() {
            let error = first.take().unwrap_or_else(|| NetError::Configuration(text.clone()));
            pending.completion.complete(Err(error));
        }
    }

    /// Ends all calls because the home was lost.
    fn lose(&mut self, cause: &str, silent: Duration) {
        let HomePeer { rank, host, .. } = self.peer();
        log::warn!("rank {rank} ({host}) was lost: {cause}");
        self.fail(|in_doubt| {
            let (host, cause) = (host.clone(), cause.to_owned());
            PeerLost { rank, host, silent, in_doubt, cause }.into()
        });
    }
}

impl PendingCall {
    fn packet(&self) -> StreamPacket {
        StreamPacket { message: self.bytes.clone(), memory: self.memory.clone() }
    }
}

fn up(kind: CallerMessageKind) -> StreamPacket {
    StreamPacket::of(&CallerMessage { kind: Some(kind) })
}
