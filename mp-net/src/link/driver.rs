//! Task of a link: sends calls within the credits of the home, and passes replies to their callers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::mutex::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::auth;
use crate::error::{NetError, PeerLost};
use crate::link::completion::CallResult;
use crate::link::ended::{EndedSessions, SentReceipts};
use crate::link::resend::ResendQueue;
use crate::link::stream::{Stream, StreamError, connect};
use crate::link::{CallValues, Command, HomePeer, NodeIdentity, PendingCall, up};
use crate::wire::messages::{
    CallList, CallOutcome, CallReply, CallRuns, CallerMessageKind, HomeMessage, HomeMessageKind, Operation,
    RemoteCall, Welcome,
};
use crate::wire::receive::{Part, StreamEnd};
use crate::wire::send::StreamPacket;
use crate::wire::value::{ArrivalError, ArrivingValues};

/// Bit that is set in the numbers of calls that the driver itself makes.
const OWN: u64 = 1 << 63;
/// Number of replies without a value that are acknowledged together, unless a call is sent earlier.
const ACKNOWLEDGED: usize = 64;
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);
/// Minimum time limit of an attempt to reconnect.
const ATTEMPT: Duration = Duration::from_millis(200);

/// Calls with a value to one object. The credits of the home limit these calls.
#[derive(Default)]
struct PutQueue {
    /// Calls that wait for credits, in the order of their arrival.
    waiting: VecDeque<u64>,
    /// Number of calls that are sent and not answered, and their bytes.
    unanswered: (u32, u64),
}

struct LinkDriver {
    me: Arc<NodeIdentity>,
    peer: Arc<Mutex<HomePeer>>,
    /// Highest number of a call that a caller has made.
    last: u64,
    ended: Arc<EndedSessions>,
    /// `true` after the first connection.
    was_connected: bool,
    /// Calls whose replies have not arrived.
    pending: BTreeMap<u64, Box<PendingCall>>,
    /// Calls without a value that were not sent.
    unsent: VecDeque<u64>,
    puts: HashMap<u64, PutQueue>,
    /// Replies with a value or a permit, which their callers have not taken.
    unreceived: BTreeMap<u64, Operation>,
    /// Replies to be acknowledged, and `true` if the acknowledgement is urgent.
    received: (Vec<u64>, bool),
    receipts: SentReceipts,
    /// `true` if `received` has a call that took a message of a queue.
    took: bool,
    /// Credits of the home for each object: calls, and bytes.
    credits: (u32, u64),
    largest: u64,
    next_own: u64,
    resend: ResendQueue,
    arriving: Option<(CallReply, ArrivingValues)>,
}

/// Runs a link until its handle is dropped.
pub(crate) async fn run(
    me: Arc<NodeIdentity>,
    peer: Arc<Mutex<HomePeer>>,
    ended: Arc<EndedSessions>,
    mut commands: UnboundedReceiver<Command>,
) {
    let mut driver = LinkDriver {
        me,
        peer,
        last: 0,
        ended,
        was_connected: false,
        pending: BTreeMap::new(),
        unsent: VecDeque::new(),
        puts: HashMap::new(),
        unreceived: BTreeMap::new(),
        received: (Vec::new(), false),
        receipts: SentReceipts::default(),
        took: false,
        credits: (1, 0),
        largest: 0,
        next_own: OWN,
        resend: ResendQueue::default(),
        arriving: None,
    };
    while driver.run_session(&mut commands).await.is_some() {}
}

impl LinkDriver {
    fn peer(&self) -> HomePeer {
        self.peer.lock().clone()
    }

    /// Waits for a call, connects, and runs a session until its home is lost. Returns `None` if the link's
    /// handle was dropped.
    async fn run_session(&mut self, commands: &mut UnboundedReceiver<Command>) -> Option<()> {
        while self.pending.is_empty() {
            self.accept(commands.recv().await?, None);
        }
        let session = match auth::random() {
            Ok(session) => session,
            Err(error) => {
                self.fail(|_| mp_core::Error::Unsupported(error.to_string()).into());
                return Some(());
            }
        };
        let (since, limit) = (Instant::now(), self.me.config.lease);
        let connected = loop {
            let left = limit.saturating_sub(since.elapsed());
            match self.connect(session, left, commands, false).await? {
                // A home with too many unproven connections resets the oldest ones: a new attempt can
                // succeed.
                Err(StreamError::Reset(_)) if since.elapsed() + PAUSE < limit => {
                    tokio::time::sleep(PAUSE).await;
                }
                connected => break connected,
            }
        };
        match connected {
            Ok(stream) => self.serve(stream, session, commands).await?,
            Err(StreamError::Refused(error)) => self.refuse(&error),
            Err(StreamError::Gone(cause) | StreamError::Reset(cause) | StreamError::Silent(cause))
                if !self.was_connected =>
            {
                let (address, waited) = (self.peer().address, since.elapsed());
                self.fail(|_| NetError::Unreachable {
                    address: address.clone(),
                    waited,
                    cause: cause.clone(),
                });
            }
            Err(StreamError::Gone(cause) | StreamError::Reset(cause) | StreamError::Silent(cause)) => {
                self.lose(&cause, since.elapsed());
            }
        }
        Some(())
    }

    /// Connects, and handles commands meanwhile. If the link's handle is dropped before a session has begun,
    /// returns `None`. If the handle is dropped later (`has_begun`), still connects, so that the home records
    /// which messages were received.
    async fn connect(
        &mut self,
        session: u64,
        limit: Duration,
        commands: &mut UnboundedReceiver<Command>,
        has_begun: bool,
    ) -> Option<Result<Stream, StreamError>> {
        let (me, peer) = (self.me.clone(), self.peer());
        let mut connecting = pin!(connect(&me, &peer, session, limit));
        let mut is_dropped = false;
        loop {
            tokio::select! {
                result = &mut connecting => return Some(result),
                command = commands.recv(), if !is_dropped => match command {
                    Some(command) => self.accept(command, None),
                    None if has_begun => is_dropped = true,
                    None => return None,
                },
                () = self.deadline() => self.withdraw_late(),
            }
        }
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
            self.arriving = None;
            drop(stream);
            let cancelled = self.pending.values().filter(|pending| pending.cancelled);
            cancelled.clone().for_each(|pending| pending.interrupt());
            let unsent: Vec<_> =
                cancelled.filter(|pending| !pending.sent).map(|pending| pending.id).collect();
            unsent.into_iter().for_each(|id| self.withdraw(id));
            let silence = match &end {
                StreamEnd::Failed { timed_out: true, .. } => self.me.config.lease,
                _ => Duration::ZERO,
            };
            let since = Instant::now();
            let resumed = match &end {
                // A new connection is useless: the home would send the same bytes again.
                StreamEnd::Malformed(_) => Err(None),
                _ => self.resume(session, since + self.me.config.grace, commands).await?,
            };
            match resumed {
                Ok(resumed) => stream = resumed,
                Err(cause) => {
                    let cause = cause.unwrap_or_else(|| end.to_string());
                    self.lose(&cause, silence + since.elapsed());
                    return Some(());
                }
            }
            self.send_again(&stream.to);
        }
    }

    /// Records the identity and limits that a home has sent.
    fn begin(&mut self, welcome: &Welcome) {
        let mut peer = self.peer.lock();
        peer.home = welcome.home;
        if let Some(from) = &welcome.from {
            peer.rank = from.rank as usize;
            peer.host = format!("{}, process {}", from.host, from.pid);
        }
        drop(peer);
        self.was_connected = true;
        self.credits = (welcome.calls.max(1), welcome.bytes);
        self.largest = welcome.largest;
        self.unreceived.clear();
        self.received = (Vec::new(), false);
        (self.receipts, self.took) = (SentReceipts::default(), false);
    }

    /// Connects again to the same session of the home. `Err` has the cause of the failure, or `None` if the
    /// home did not answer. Returns `None` if the link's handle was dropped.
    async fn resume(
        &mut self,
        session: u64,
        until: Instant,
        commands: &mut UnboundedReceiver<Command>,
    ) -> Option<Result<Stream, Option<String>>> {
        let until = until.max(Instant::now() + ATTEMPT);
        loop {
            // Several attempts: the kernel doubles its pause before each retransmission of a packet.
            let attempt = ATTEMPT.max(self.me.config.lease / 4);
            let limit = until.saturating_duration_since(Instant::now()).min(attempt);
            return Some(match self.connect(session, limit, commands, true).await? {
                Ok(stream) if stream.welcome.resumed => Ok(stream),
                Ok(_) => Err(Some("it gave up this process, whose connection was interrupted".into())),
                Err(StreamError::Gone(cause)) => Err(Some(cause)),
                Err(StreamError::Refused(error)) => Err(Some(error.to_string())),
                Err(StreamError::Reset(_) | StreamError::Silent(_)) if Instant::now() < until => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(StreamError::Reset(_) | StreamError::Silent(_)) => Err(None),
            });
        }
    }

    /// Begins to resend the calls without replies. The home runs each call only once.
    fn send_again(&mut self, to: &UnboundedSender<StreamPacket>) {
        self.resend.start(&mut self.pending);
        let sent = self.pending.values().filter(|pending| pending.sent);
        let given_back = self.pending.values().filter_map(|pending| Some(pending.gives_back?.0));
        let ids = sent.map(|pending| pending.id).chain(given_back).chain(self.unreceived.keys().copied());
        _ = to.send(up(CallerMessageKind::Wanted(CallRuns::new(ids.collect()))));
        self.receipts.sent += u64::from(std::mem::take(&mut self.took));
        self.received = (Vec::new(), false);
    }

    /// Resends the next group of calls, if the home has read the last group.
    fn send_group(&mut self, to: &UnboundedSender<StreamPacket>) {
        let group = self.resend.next_group(&self.pending);
        if group.is_empty() {
            return;
        }
        group.iter().filter_map(|id| self.pending.get(id)).for_each(|pending| pending.send_again(to));
        if self.resend.has_more() {
            self.next_own += 1;
            let call = RemoteCall { id: self.next_own, ..RemoteCall::default() };
            let mut probe = PendingCall::new(call, CallValues::None, None);
            probe.send(self.receipts.sent, to);
            self.resend.set_probe(probe.id);
            self.pending.insert(probe.id, Box::new(probe));
        }
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
                    let Some(command) = command else {
                        self.finish(stream).await;
                        return None;
                    };
                    self.accept(command, Some(&stream.to));
                    while let Ok(command) = commands.try_recv() {
                        self.accept(command, Some(&stream.to));
                    }
                    Ok(())
                }
                () = self.deadline() => {
                    self.withdraw_late();
                    Ok(())
                }
            };
            if let Err(end) = end {
                return Some(end);
            }
        }
    }

    /// Closes the stream after everything that was sent, and waits until the home has closed the stream, too.
    async fn finish(&mut self, stream: &mut Stream) {
        self.received.1 = true;
        self.resend.skip_probes();
        self.flush(&stream.to);
        _ = stream.to.send(up(CallerMessageKind::Finished(true)));
        // The body of the stream ends when its sender is dropped.
        let (closed, _) = unbounded_channel();
        stream.to = closed;
        let end = async { while stream.from.next::<HomeMessage>().await.is_ok() {} };
        _ = tokio::time::timeout(self.me.config.lease, end).await;
    }

    /// Waits until the earliest deadline of the calls that wait for credits.
    fn deadline(&self) -> impl Future<Output = ()> + use<> {
        let waiting = self.puts.values().flat_map(|queue| &queue.waiting);
        let first = waiting.filter_map(|id| self.pending.get(id)?.deadline).min();
        async move {
            match first {
                Some(first) => tokio::time::sleep_until(first.into()).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Ends the calls that have waited for credits until their deadlines.
    fn withdraw_late(&mut self) {
        let now = Instant::now();
        let waiting = self.puts.values().flat_map(|queue| &queue.waiting);
        let is_late = |id: &&u64| self.pending.get(id).is_some_and(|p| p.deadline.is_some_and(|d| d <= now));
        let late: Vec<u64> = waiting.filter(is_late).copied().collect();
        late.into_iter().for_each(|id| self.withdraw(id));
    }

    /// Handles a part of the stream, and all further parts that have already arrived.
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
                    let arriving = self.arriving.as_mut();
                    let (_, values) = arriving.ok_or(StreamEnd::Malformed("data without a reply"))?;
                    if values.write(&data)?
                        && let Some((reply, values)) = self.arriving.take()
                    {
                        self.complete(reply, values);
                    }
                }
                Part::Message(_) => return Err(StreamEnd::Malformed("a message that is not a reply")),
            }
            next = stream.from.arrived()?;
        }
        Ok(())
    }

    /// Begins to receive the values of a reply. [`complete`](Self::complete) ignores a second reply to a
    /// call.
    fn replied(&mut self, mut reply: CallReply) -> Result<(), StreamEnd> {
        if self.arriving.is_some() {
            return Err(StreamEnd::Malformed("a reply within another one"));
        }
        let values = ArrivingValues::new(std::mem::take(&mut reply.values), self.me.config.largest)?;
        if values.are_whole() {
            self.complete(reply, values);
        } else {
            self.arriving = Some((reply, values));
        }
        Ok(())
    }

    /// Passes a reply to its caller after all its values have arrived.
    fn complete(&mut self, reply: CallReply, values: ArrivingValues) {
        let id = reply.id;
        let Some(pending) = self.pending.remove(&id) else { return };
        self.resend.replied(id, &mut self.pending);
        self.receipts.answered(pending.receipts);
        if let Some(queue) = self.puts.get_mut(&pending.object).filter(|_| pending.size > 0) {
            queue.unanswered.0 = queue.unanswered.0.saturating_sub(1);
            queue.unanswered.1 = queue.unanswered.1.saturating_sub(pending.size);
        }
        let limit = self.me.config.largest;
        let result: CallResult = match values.finish().collect::<Result<Vec<_>, _>>() {
            Ok(values) if values.is_empty() && !reply.holds => {
                pending.completion.complete(Ok((reply, values)));
                self.received.0.push(id);
                return;
            }
            Ok(values) => Ok((reply, values)),
            Err(ArrivalError::TooLarge(bytes)) => Err(NetError::TooLarge { bytes, limit }),
            Err(ArrivalError::Memory(error)) => Err(error.into()),
        };
        let arrived = result.is_ok();
        if pending.completion.complete(result) && arrived {
            self.unreceived.insert(id, pending.operation);
        } else {
            self.give_back(id, 0);
        }
    }

    /// Gives back the messages of the reply to call `id` after the first `kept`, or the permit in the reply.
    fn give_back(&mut self, id: u64, kept: u64) {
        self.next_own += 1;
        let mut call = RemoteCall { id: self.next_own, number: id, kept, ..RemoteCall::default() };
        call.set_operation(Operation::GiveBack);
        let mut pending = PendingCall::new(call, CallValues::None, None);
        pending.gives_back = Some((id, kept));
        self.accept(Command::Call(Box::new(pending)), None);
    }

    /// Handles a command of a caller. `to` is the stream, if there is one.
    fn accept(&mut self, command: Command, to: Option<&UnboundedSender<StreamPacket>>) {
        match command {
            Command::Call(pending) => {
                if pending.id < OWN {
                    self.last = self.last.max(pending.id);
                }
                match pending.size {
                    0 => self.unsent.push_back(pending.id),
                    _ => self.puts.entry(pending.object).or_default().waiting.push_back(pending.id),
                }
                self.pending.insert(pending.id, pending);
            }
            Command::Received(id) => {
                if let Some(operation) = self.unreceived.remove(&id) {
                    self.received.0.push(id);
                    self.received.1 = true;
                    self.took |= operation == Operation::Get;
                }
            }
            Command::GiveBack(id, kept) => {
                if self.unreceived.remove(&id).is_some() {
                    self.give_back(id, kept);
                }
            }
            Command::Interrupt(id) => match self.pending.get_mut(&id) {
                // The caller waits for the reply: most calls end soon, and their effect must be known.
                Some(pending) if pending.sent || (pending.size == 0 && to.is_some()) => {
                    pending.cancelled = true;
                    match to {
                        Some(to) if pending.sent => _ = to.send(up(CallerMessageKind::Cancel(id))),
                        // The call is cancelled when it is sent.
                        Some(_) => {}
                        None => pending.interrupt(),
                    }
                }
                Some(_) => self.withdraw(id),
                // The call has its reply already.
                None => {}
            },
            Command::Abandon(id) => match self.pending.get_mut(&id) {
                Some(pending) if pending.sent => {
                    pending.cancelled = true;
                    if let Some(to) = to {
                        _ = to.send(up(CallerMessageKind::Cancel(id)));
                    }
                }
                Some(_) => self.withdraw(id),
                None => self.accept(Command::GiveBack(id, 0), to),
            },
        }
    }

    /// Ends a call before it is sent.
    fn withdraw(&mut self, id: u64) {
        let Some(pending) = self.pending.remove(&id) else { return };
        self.unsent.retain(|unsent| *unsent != id);
        if let Some(queue) = self.puts.get_mut(&pending.object) {
            queue.waiting.retain(|waiting| *waiting != id);
        }
        let mut reply = CallReply { id, ..CallReply::default() };
        reply.set_outcome(match pending.operation {
            Operation::Put => CallOutcome::Full,
            _ => CallOutcome::Empty,
        });
        pending.completion.complete(Ok((reply, Vec::new())));
    }

    /// Sends the acknowledgements, and as many calls as the credits allow.
    fn flush(&mut self, to: &UnboundedSender<StreamPacket>) {
        self.send_group(to);
        let delayed = self.resend.delays_new_calls(&self.pending);
        let sends = !self.unsent.is_empty() || self.puts.values().any(|queue| !queue.waiting.is_empty());
        let (ids, urgent) = &mut self.received;
        if !ids.is_empty() && (*urgent || sends || ids.len() >= ACKNOWLEDGED) {
            let ids = std::mem::take(ids);
            _ = to.send(up(CallerMessageKind::Received(CallList { ids })));
            self.receipts.sent += u64::from(std::mem::take(&mut self.took));
        }
        *urgent = false;
        if delayed {
            return;
        }
        for id in self.unsent.drain(..) {
            if let Some(pending) = self.pending.get_mut(&id) {
                pending.send(self.receipts.sent, to);
            }
        }
        let (calls, bytes) = self.credits;
        for queue in self.puts.values_mut() {
            while let Some(id) = queue.waiting.front() {
                let Some(pending) = self.pending.get_mut(id) else {
                    queue.waiting.pop_front();
                    continue;
                };
                let mut is_single = true;
                if let Some(batch) = &pending.batch {
                    (pending.size, is_single) = batch.size();
                }
                if pending.size > self.largest && is_single {
                    let error = NetError::TooLarge { bytes: pending.size, limit: self.largest };
                    pending.completion.complete(Err(error));
                    self.pending.remove(id);
                    continue;
                }
                let fits =
                    queue.unanswered.1 == 0 || queue.unanswered.1.saturating_add(pending.size) <= bytes;
                if queue.unanswered.0 >= calls || !fits {
                    break;
                }
                pending.send(self.receipts.sent, to);
                queue.unanswered.0 += 1;
                queue.unanswered.1 += pending.size;
                queue.waiting.pop_front();
            }
        }
        let waiting = self.puts.values().flat_map(|queue| &queue.waiting);
        let is_refused = |id: &&u64| self.pending.get(id).is_some_and(|pending| pending.never_waits);
        let refused: Vec<u64> = waiting.filter(is_refused).copied().collect();
        refused.into_iter().for_each(|id| self.withdraw(id));
    }

    /// Ends all calls with an error. `error` gets `true` for calls that may have had their effect.
    fn fail(&mut self, error: impl Fn(bool) -> NetError) {
        self.ended.add(self.last);
        self.unsent.clear();
        self.puts.clear();
        self.unreceived.clear();
        for pending in std::mem::take(&mut self.pending).into_values() {
            pending.completion.complete(Err(error(pending.sent)));
        }
    }

    /// Ends all calls with the error of a refused connection.
    fn refuse(&mut self, error: &NetError) {
        self.fail(|_| match error {
            NetError::Refused { address, why } => {
                NetError::Refused { address: address.clone(), why: why.clone() }
            }
            other => NetError::Configuration(other.to_string()),
        });
    }

    /// Ends all calls with [`PeerLost`].
    fn lose(&mut self, cause: &str, silent: Duration) {
        let HomePeer { rank, host, .. } = self.peer();
        log::warn!("rank {rank} ({host}) was lost: {cause}");
        let lost = |in_doubt| {
            let (host, cause) = (host.clone(), cause.to_owned());
            PeerLost { rank, host, silent, in_doubt, cause }
        };
        let took = |operation: &Operation| *operation == Operation::Get;
        let keeps = |pending: &PendingCall| pending.gives_back.is_some_and(|(_, kept)| kept > 0);
        if !self.receipts.are_known()
            || self.took
            || self.unreceived.values().any(took)
            || self.pending.values().any(|pending| keeps(pending))
        {
            self.ended.add_unflushed(lost(true));
        }
        (self.receipts, self.took) = (SentReceipts::default(), false);
        self.fail(|in_doubt| lost(in_doubt).into());
    }
}
