//! Objects of this process that other members call.
//!
//! `object` adapts queues, and `primitives` and `channels` adapt other objects. `object_table` contains the
//! names and numbers of objects, and `session` the calls of one process. `registry` exists only at rank 0,
//! and contains the members of the cluster and the names of objects. `accept` accepts connections, `greeting`
//! verifies the peer, and this file handles the streams.

mod accept;
pub(crate) mod channels;
mod greeting;
pub(crate) mod object;
mod object_table;
pub(crate) mod primitives;
pub(crate) mod registry;
pub(crate) mod session;

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use mp_core::message::Outgoing;
use mp_core::mutex::Mutex;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::transport::server::Server;
use tower_service::Service;

use crate::home::accept::{AcceptedSockets, Gate, UnprovenConnections, accept};
use crate::home::object::{Answer, MethodCall, SharedMessages};
use crate::home::object_table::ObjectTable;
use crate::home::registry::{ClusterRegistry, describe};
use crate::home::session::Session;
use crate::link::stream::{CONNECTION_WINDOW, FRAME, STREAM_WINDOW};
use crate::link::{NodeIdentity, probes};
use crate::wire::messages::{
    CallOutcome, CallerMessage, CallerMessageKind, MemberPresence, Operation, PATH, RemoteCall,
};
use crate::wire::receive::{Part, StreamEnd, StreamReader};
use crate::wire::send::{FrameBody, StreamPacket};
use crate::wire::value::{ArrivalError, ArrivingValues};

/// Minimum time, in addition to the grace, in which a caller can reconnect. The caller may detect the end of
/// its stream later than this process.
const RETURN: Duration = Duration::from_millis(400);
/// Time in which a caller can reconnect if no grace is configured.
const SHORT_RETURN: Duration = Duration::from_millis(60);
/// Maximum number of streams of a connection. A link uses one.
const MOST_STREAMS: u32 = 4;
/// Maximum length in bytes of a message that comes before the proof.
const GREETING: usize = 1 << 16;

/// Objects that this process has published, and the sessions of their callers.
pub(crate) struct Home {
    pub(crate) me: OnceLock<Arc<NodeIdentity>>,
    objects: Mutex<ObjectTable>,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    registry: Option<Arc<ClusterRegistry>>,
    pub(crate) unproven: Arc<UnprovenConnections>,
    /// `true` after this process has ended its membership.
    closed: watch::Sender<bool>,
}

impl Home {
    /// Creates a home without objects. Only rank 0 has a registry.
    pub(crate) fn new(registry: Option<Arc<ClusterRegistry>>) -> Arc<Self> {
        let (me, objects, sessions) = (OnceLock::new(), Mutex::default(), Mutex::default());
        let unproven = Arc::default();
        Arc::new(Self { me, objects, sessions, registry, unproven, closed: watch::Sender::new(false) })
    }

    /// Ends all sessions and unproven connections, and drops the objects.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
        let objects = std::mem::take(&mut *self.objects.lock());
        // A service may have a user-defined `Drop`, which must not run under the lock.
        drop(objects);
        self.unproven.close();
    }

    /// Serves connections until this process ends.
    pub(crate) async fn serve(self: Arc<Self>, me: Arc<NodeIdentity>, listener: TcpListener) {
        let (interval, timeout) = probes(me.config.lease);
        let (to, accepted) = unbounded_channel();
        let accepting = accept(me.clone(), self.unproven.clone(), listener, to);
        let server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .max_concurrent_streams(MOST_STREAMS)
            .http2_keepalive_interval(Some(interval))
            .http2_keepalive_timeout(Some(timeout))
            .add_service(HomeService { home: self, me })
            .serve_with_incoming(AcceptedSockets(accepted));
        tokio::select! {
            () = accepting => {}
            Err(error) = server => {
                log::error!("this member of the cluster has stopped accepting connections: {error}");
            }
        }
    }

    /// Serves one stream: greets the caller, and handles its calls until the stream ends. If the caller does
    /// not reconnect in time, ends the session.
    async fn read(
        self: Arc<Self>,
        me: Arc<NodeIdentity>,
        body: Body,
        to: UnboundedSender<StreamPacket>,
        gate: Arc<Gate>,
    ) {
        let mut from = StreamReader::new(body, GREETING);
        // The connection ends at the latest after the lease.
        let (session, stream) = match self.greet(&me, &mut from, &to).await {
            Ok(accepted) => accepted,
            Err(why) => return gate.refuse(why),
        };
        gate.open();
        drop(gate);
        drop(to);
        let mut closed = self.closed.subscribe();
        let end = tokio::select! {
            end = self.take(&me, &session, stream, &mut from) => end,
            _ = closed.wait_for(|closed| *closed) => StreamEnd::Finished,
        };
        drop(from);
        if !session.end_stream(stream) {
            return;
        }
        log::debug!("the stream of {} ended: {end}", describe(&session.caller));
        if !matches!(end, StreamEnd::Finished | StreamEnd::Malformed(_)) {
            tokio::select! {
                () = tokio::time::sleep(time_to_return(&me)) => {}
                _ = closed.wait_for(|closed| *closed) => {}
            }
        }
        if session.end_unless_resumed(stream) {
            self.sessions.lock().retain(|_, other| !Arc::ptr_eq(other, &session));
            log::info!("{} was lost: {end}", describe(&session.caller));
            // A process does not lose its own session while it runs, even if it was too busy to answer
            // itself.
            let is_own = session.caller.home == me.node.home;
            if let Some(registry) = self.registry.as_ref().filter(|_| session.has_joined() && !is_own) {
                registry.remove(session.caller.home, Some(session_key(&session)), MemberPresence::Lost);
            }
        }
    }

    /// Handles the messages of a stream until the stream ends. Returns the reason for the end.
    pub(crate) async fn take(
        self: &Arc<Self>,
        me: &NodeIdentity,
        session: &Arc<Session>,
        stream: u64,
        from: &mut StreamReader,
    ) -> StreamEnd {
        let mut arriving: Option<(RemoteCall, ArrivingValues)> = None;
        loop {
            let part = match from.next::<CallerMessage>().await {
                Ok(part) => part,
                Err(end) => return end,
            };
            if !session.accepts(stream) {
                return StreamEnd::Malformed("calls of an ended stream");
            }
            let kind = match (part, &mut arriving) {
                (Part::Data(data), Some((_, values))) => {
                    match values.write(&data) {
                        Ok(true) => {}
                        Ok(false) => continue,
                        Err(end) => return end,
                    }
                    if let Some((call, values)) = arriving.take() {
                        self.call(session, call, values.finish());
                    }
                    continue;
                }
                (Part::Message(message), None) => message.kind,
                _ => None,
            };
            match kind {
                Some(CallerMessageKind::Call(mut call)) => {
                    let values = std::mem::take(&mut call.values);
                    match ArrivingValues::new(values, me.config.largest) {
                        Ok(values) if values.are_whole() => self.call(session, call, values.finish()),
                        Ok(values) => arriving = Some((call, values)),
                        Err(end) => return end,
                    }
                }
                Some(CallerMessageKind::Received(list)) => session.received(&list.ids),
                Some(CallerMessageKind::Wanted(list)) => session.keep(&list),
                Some(CallerMessageKind::Cancel(id)) => session.cancel(id),
                Some(CallerMessageKind::Finished(_)) => return StreamEnd::Finished,
                _ => return StreamEnd::Malformed("a message in the wrong place"),
            }
        }
    }

    /// Runs a call. All its values have arrived.
    fn call(
        self: &Arc<Self>,
        session: &Arc<Session>,
        call: RemoteCall,
        values: impl Iterator<Item = Result<Outgoing, ArrivalError>>,
    ) {
        if call.operation() == Operation::GiveBack {
            return session.give_back(&call);
        }
        let (home, caller) = (self.clone(), session.clone());
        let refuse = |error| Box::new(refuse(self.me.get(), error));
        if call.operation() == Operation::Put
            && let Some(queue) = self.queue(call.object)
        {
            let messages = values.map(|value| value.map_err(refuse));
            return session.put(&call, queue, messages.collect());
        }
        let value = { values }.next().map(|value| value.map_err(refuse));
        let ready = |answer: Answer| -> object::Answering { Box::pin(std::future::ready(answer)) };
        let this = call.clone();
        session.run(&call, move || {
            let call = this;
            match call.operation() {
                Operation::Acknowledge => ready(caller.acknowledge(call.number)),
                Operation::Open => ready(home.open(&call, &caller)),
                Operation::Subscribe => ready(home.subscribe(call.object)),
                Operation::Join
                | Operation::Watch
                | Operation::Publish
                | Operation::Find
                | Operation::Withdraw
                | Operation::Leave => home.at_registry(&caller, call),
                Operation::Nothing => {
                    ready(Answer::with_text(CallOutcome::Failed, "unknown operation".into()))
                }
                Operation::Call | Operation::Wait | Operation::Serve => {
                    // Subscribed before the object is looked up: otherwise a withdrawal in between would be
                    // missed.
                    let withdrawal = home.withdrawal(call.object);
                    let object = home.object(call.object);
                    if call.operation() == Operation::Serve {
                        let request = match value.transpose() {
                            Ok(request) => request,
                            Err(refusal) => return ready(*refusal),
                        };
                        return match (object, home.withdrawn(call.object)) {
                            (Some(object), _) => object.serve(request),
                            (None, Some(object)) => object.serve_withdrawn(request),
                            (None, None) => ready(Answer::plain(CallOutcome::NotFound)),
                        };
                    }
                    let Some(object) = object else {
                        return ready(Answer::plain(CallOutcome::NotFound));
                    };
                    let (lost, caller) = (caller.lost.clone(), caller.caller.clone());
                    let (method, number) = (call.method(), call.number);
                    let answering = object.call(MethodCall { method, number, lost, caller });
                    match withdrawal {
                        Some(withdrawal) => Box::pin(async move {
                            tokio::select! {
                                biased;
                                answer = answering => answer,
                                () = withdrawal => Answer::plain(CallOutcome::NotFound),
                            }
                        }),
                        None => answering,
                    }
                }
                operation => {
                    let Some(object) = home.queue(call.object) else {
                        return ready(Answer::plain(CallOutcome::NotFound));
                    };
                    match operation {
                        Operation::Get => object.get(call.number, caller.largest),
                        Operation::Lease => object.lease(),
                        Operation::Close => ready(Answer::number(object.close().into())),
                        Operation::Len => ready(Answer::number(object.len() as u64)),
                        _ => ready(Answer::plain(CallOutcome::NotFound)),
                    }
                }
            }
        });
    }

    fn queue(&self, number: u64) -> Option<Arc<dyn SharedMessages>> {
        self.object(number)?.as_queue()
    }

    fn open(&self, call: &RemoteCall, caller: &Session) -> Answer {
        let objects = self.objects.lock();
        let Some((number, object)) =
            objects.by_name.get(&call.name).and_then(|n| Some((*n, objects.by_number.get(n)?)))
        else {
            return Answer::plain(CallOutcome::NotFound);
        };
        let found = object.object_type();
        // A logger is user code, which must not run under this lock.
        drop(objects);
        if found.fingerprint == call.number {
            Answer::number(number)
        } else {
            let (by, wanted) = (describe(&caller.caller), mp_core::printable(&call.type_name));
            log::warn!("{by} opened {:?} as {wanted}, but it is {}", call.name, found.name);
            Answer::with_text(CallOutcome::WrongType, found.name)
        }
    }

    fn at_registry(&self, caller: &Session, call: RemoteCall) -> object::Answering {
        let answer = match &self.registry {
            None => Answer::with_text(CallOutcome::Failed, "only rank 0 knows the members".into()),
            Some(registry) => {
                let node = call.member.clone().unwrap_or_default();
                match call.operation() {
                    Operation::Join => {
                        caller.joins();
                        registry.join(node, session_key(caller))
                    }
                    Operation::Watch => return registry.clone().watch(call.number, call.name),
                    Operation::Publish => registry.publish(call.name, node),
                    Operation::Find => return registry.clone().find(call.name),
                    Operation::Withdraw => registry.withdraw(&call.name, node.home),
                    _ => {
                        registry.remove(node.home, None, MemberPresence::Left);
                        Answer::plain(CallOutcome::Done)
                    }
                }
            }
        };
        Box::pin(std::future::ready(answer))
    }
}

/// Returns the time after which a caller that has not reconnected is lost. Without a grace, a caller tries to
/// reconnect only once.
fn time_to_return(me: &NodeIdentity) -> Duration {
    match me.config.grace {
        Duration::ZERO => SHORT_RETURN,
        grace => grace + RETURN.max(me.config.lease / 2),
    }
}

/// Returns a number that identifies the session. It is unique while the session exists.
fn session_key(session: &Session) -> usize {
    std::ptr::from_ref(session) as usize
}

/// Returns the answer to a call whose value could not be stored in the arena.
fn refuse(me: Option<&Arc<NodeIdentity>>, error: ArrivalError) -> Answer {
    match error {
        ArrivalError::TooLarge(bytes) => {
            let mut answer = Answer::plain(CallOutcome::TooLarge);
            answer.reply.size = bytes;
            answer.reply.number = me.map_or(0, |me| me.config.largest);
            answer
        }
        ArrivalError::Memory(error) => Answer::with_text(CallOutcome::OutOfMemory, error.to_string()),
    }
}

/// HTTP/2 service that handles the streams of a home.
#[derive(Clone)]
struct HomeService {
    home: Arc<Home>,
    me: Arc<NodeIdentity>,
}

impl tonic::server::NamedService for HomeService {
    const NAME: &'static str = "mp.net.v1.Cluster";
}

impl Service<Request<Body>> for HomeService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut response = Response::new(Body::empty());
        let kind = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert("content-type", kind);
        let gate = request.extensions().get::<Arc<Gate>>().cloned();
        if let Some(gate) = gate.filter(|_| request.uri().path() == PATH) {
            let (to, frames) = unbounded_channel();
            tokio::spawn(self.home.clone().read(self.me.clone(), request.into_body(), to, gate));
            *response.body_mut() = Body::new(FrameBody::new(frames));
        } else {
            // Code 12 of gRPC: unimplemented.
            response.headers_mut().insert("grpc-status", HeaderValue::from_static("12"));
        }
        Box::pin(std::future::ready(Ok(response)))
    }
}
