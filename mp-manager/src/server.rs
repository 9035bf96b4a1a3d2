//! The server process: its main thread starts a thread for each object, which serves only that object.
//!
//! | the object's thread | state | state ends when |
//! |---|---|---|
//! | begins | `Empty`, or `Present` if a call of another object created this one | at once |
//! | waits for its maker | `Empty` | [`ObjectRequest::Make`] arrives; or no sender is left: the thread ends |
//! | serves calls | `Present` | the last proxy is dropped: the thread drops the object and ends; or [`ObjectRequest::Free`] arrives: `Freed` |
//! | answers each call with `Freed` | `Freed` | the last proxy is dropped: the thread ends |
//! | answers the maker with an error | `Refused` | at once: the thread ends |
//!
//! | the server is killed | effect on its callers |
//! |---|---|
//! | at any time | the seats of its receivers and of the senders of answers are reclaimed, which its callers detect |
//! | before it has read a caller's first request | the sender of the answers is still in the object's channel, and the caller itself keeps this channel alive. So the caller also checks that the channel has a receiver |
//!
//! | a caller is killed | effect on the object's thread |
//! |---|---|
//! | before the caller's request is sent | none |
//! | between sending the request and the answer | handles the request; the answer is dropped with its channel |
//! | while it has a proxy | the seat of the proxy's sender is reclaimed: if it was the last sender, the thread finds that the channel has ended |

use std::collections::BTreeMap;
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use mp_core::Arena;
use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use mp_core::user_code::{UserValue, catch_panic, drop_caught};
use mp_queue::{GetError, PutError, Receiver, Sender};
use mp_spawn::{CallFailure, LazyClosure};
use serde::{Deserialize, Serialize};

use crate::answer::{AnswerStatus, CallAnswer, MessageBody};
use crate::call_cycle;
use crate::caller::{CHECK_INTERVAL, is_of};
use crate::object::{BoxedError, ObjectCall, ObjectResult, ServedObject, failure};
use crate::request::{Control, ObjectRequest};

/// Number of requests after which an object that is never idle drops callers that have ended.
const CHECK_REQUESTS: u64 = 256;
/// First and maximum pause after a failed receive.
const PAUSE_RANGE: (Duration, Duration) = (Duration::from_millis(1), CHECK_INTERVAL);

/// Back-off of a thread whose receive fails at once and would fail again: for example, a message stays in its
/// channel while this process lacks descriptors for it. Each pause is twice as long as the previous one,
/// until a receive succeeds.
#[derive(Default)]
pub(crate) struct RetryPause(Option<Duration>);

impl RetryPause {
    /// Records a failure. Returns the next pause.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let (first, longest) = PAUSE_RANGE;
        let pause = self.0.map_or(first, |last| (2 * last).min(longest));
        *self.0.insert(pause)
    }

    /// Resets the pauses after a success.
    pub(crate) fn reset(&mut self) {
        self.0 = None;
    }
}

/// Arguments of the server process.
#[derive(Serialize, Deserialize)]
pub(crate) struct ServerArgs {
    pub(crate) control: Receiver<Control>,
    /// Channel on which the server reports that it is ready.
    pub(crate) ready: Sender<u32>,
}

/// Connection of another program.
#[cfg(feature = "authkey")]
pub(crate) struct RemoteConnection {
    pub(crate) connection: mp_queue::Connection,
    /// Number of the session whose calls the connection serves. The end of the session shuts the connection
    /// down.
    pub(crate) session: Option<u64>,
}

/// State shared by all threads of the server.
pub(crate) struct ManagerServer {
    /// Set when the manager ends.
    stop: OnceLock<()>,
    /// Sender of which each thread that delays the end of the manager has a clone. After this sender and all
    /// clones are dropped, the channel is disconnected.
    working: Mutex<Option<mpsc::Sender<()>>>,
    /// Number of the next object.
    next: Mutex<u64>,
    /// Connections of other programs. The end of the manager shuts them down, because their threads may be
    /// blocked in a receive.
    #[cfg(feature = "authkey")]
    pub(crate) connections: Mutex<BTreeMap<u64, RemoteConnection>>,
}

static SERVER: PerProcess<OnceLock<ManagerServer>> = mp_core::per_process!(OnceLock::new());

impl ManagerServer {
    /// Returns the server of this process, if it is a manager's server.
    pub(crate) fn current() -> Result<&'static ManagerServer, BoxedError> {
        SERVER.get().ok_or_else(|| "this process is no manager's server".into())
    }

    /// Returns `true` if the manager is ending.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.get().is_some()
    }

    /// Starts a thread for which the end of the manager waits, up to the grace period.
    pub(crate) fn start(&self, name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let working = self.working.lock().clone();
        let run = move || {
            let _working = working;
            // User code runs only in places that catch its panics, so this catches only panics of the
            // library.
            catch_panic(run);
        };
        thread::Builder::new().name(name).spawn(run).map(drop)
    }

    /// Starts the thread of an object that a later request creates.
    pub(crate) fn serve(&'static self, requests: Receiver<ObjectRequest>) -> io::Result<()> {
        self.spawn_object_thread(requests, || ObjectState::Empty).map(drop)
    }

    /// Starts the thread of an object, and moves the value to the thread. Returns the object's number.
    pub(crate) fn serve_value<T: Send + 'static>(
        &'static self,
        requests: Receiver<ObjectRequest>,
        value: T,
    ) -> io::Result<u64> {
        self.spawn_object_thread(requests, || ObjectState::Present(ServedObject::new(value)))
    }

    fn spawn_object_thread(
        &'static self,
        requests: Receiver<ObjectRequest>,
        state: impl FnOnce() -> ObjectState + Send + 'static,
    ) -> io::Result<u64> {
        let object = {
            let mut next = self.next.lock();
            *next += 1;
            *next - 1
        };
        let run =
            move || ObjectThread { state: state(), ..ObjectThread::default() }.serve(object, requests, self);
        self.start(format!("object-{object}"), run)?;
        Ok(object)
    }
}

/// Main function of the process.
pub(crate) fn serve(orders: ServerArgs) -> Result<(), BoxedError> {
    let ServerArgs { control, ready } = orders;
    let (working, done) = mpsc::channel::<()>();
    let server = SERVER.get_or_init(|| ManagerServer {
        stop: OnceLock::new(),
        working: Mutex::new(Some(working)),
        next: Mutex::new(0),
        #[cfg(feature = "authkey")]
        connections: Mutex::default(),
    });
    // A failed send means that the owner has ended: then this process will be ended soon.
    _ = ready.send(std::process::id());
    drop(ready);
    let mut backoff = RetryPause::default();
    let grace = loop {
        match control.recv() {
            Ok(Control::Serve { requests }) => {
                backoff.reset();
                if let Err(error) = server.serve(requests.clone()) {
                    refuse(&requests, &error);
                }
            }
            Ok(Control::Stop { grace }) => break Duration::from_millis(grace),
            Err(GetError::Interrupted) => {}
            Err(GetError::Failed(_)) => thread::sleep(backoff.next_pause()),
            Err(_) => break Duration::ZERO,
        }
    };
    _ = server.stop.set(());
    #[cfg(feature = "authkey")]
    server.connections.lock().values().for_each(|remote| remote.connection.shut_down());
    server.working.lock().take();
    // Waits until all threads have dropped their ends of channels, or the time has expired. After that, the
    // remaining threads end with the process. Idle threads check within `CHECK_INTERVAL`.
    _ = done.recv_timeout(grace.saturating_add(2 * CHECK_INTERVAL));
    Ok(())
}

/// Answers the process that requested an object with an error, because no thread could be started.
fn refuse(requests: &Receiver<ObjectRequest>, error: &io::Error) {
    let mut answers = None;
    // The process has sent both its requests (`Hello` and `Make`), or has died.
    while let Ok(request) = requests.recv_timeout(CHECK_INTERVAL) {
        match request {
            ObjectRequest::Hello { answers: sender, .. } => answers = Some(*sender),
            ObjectRequest::Make { .. } => break,
            _ => {}
        }
    }
    if let Some(answers) = answers {
        _ = answers.try_send(CallAnswer(Err(AnswerStatus::NoThread(error.to_string()))));
    }
}

/// State of a caller in the object's thread.
struct CallerState {
    answers: Sender<CallAnswer>,
    /// Codes of closures by number. If a code can't be called, the reason is stored instead.
    codes: Vec<Result<ObjectCall, String>>,
    /// Set when the caller has ended: value of `ObjectThread::received` at which the caller is dropped,
    /// because all its requests were handled.
    last: Option<u64>,
}

impl Drop for CallerState {
    fn drop(&mut self) {
        // The captures of a code are user values, whose drop may panic.
        self.codes.drain(..).for_each(drop_caught);
    }
}

#[derive(Default)]
enum ObjectState {
    #[default]
    Empty,
    Present(ServedObject),
    Freed,
    Refused,
}

/// State of an object's thread.
#[derive(Default)]
struct ObjectThread {
    state: ObjectState,
    /// Callers by number. There are few callers, and often only one.
    callers: BTreeMap<u32, CallerState>,
    /// Slot of this process among the members of the arena.
    slot: Option<u32>,
    /// Number of received requests.
    received: u64,
    /// Smallest value of `received` at which a caller is dropped.
    next_drop: Option<u64>,
}

impl ObjectThread {
    fn serve(mut self, object: u64, requests: Receiver<ObjectRequest>, server: &ManagerServer) {
        call_cycle::set_own_object(object);
        self.slot = Arena::get().and_then(|arena| Some(arena.me().ok()?.slot()));
        let mut backoff = RetryPause::default();
        // Updated only after this time has passed, because the clock is not read for each call.
        let mut next_check = Instant::now() + CHECK_INTERVAL;
        while !server.is_stopping() && !matches!(self.state, ObjectState::Refused) {
            match requests.recv_deadline(next_check) {
                Ok(request) => {
                    backoff.reset();
                    self.serve_request(object, request, &requests);
                }
                Err(GetError::Empty | GetError::Interrupted) => {
                    backoff.reset();
                    self.drop_ended_callers(&requests);
                    next_check = Instant::now() + CHECK_INTERVAL;
                }
                Err(GetError::Failed(_)) => thread::sleep(backoff.next_pause()),
                // All proxies were dropped.
                Err(_) => break,
            }
        }
        // The channel is closed first, so that waiting callers are notified before the object is dropped.
        drop(requests);
        let ObjectThread { state, callers, .. } = self;
        drop(callers);
        drop_caught(state);
    }

    fn serve_request(&mut self, object: u64, request: ObjectRequest, requests: &Receiver<ObjectRequest>) {
        self.received += 1;
        self.handle(object, request, requests);
        let is_due = self.next_drop.is_some_and(|drop| drop <= self.received);
        if is_due || self.received.is_multiple_of(CHECK_REQUESTS) {
            self.drop_ended_callers(requests);
        }
    }

    /// Finds callers that have ended, and drops the callers whose requests were all handled. An answer that
    /// was sent to an ended caller is dropped with its channel, and an object in the answer is freed.
    fn drop_ended_callers(&mut self, requests: &Receiver<ObjectRequest>) {
        let ended = self.callers.values_mut();
        let ended = ended.filter(|caller| caller.last.is_none() && caller.answers.is_disconnected());
        // The waiting requests are counted after the ended callers were found: all requests of these were
        // sent before.
        let ended: Vec<_> = ended.collect();
        let last = self.received + requests.len() as u64;
        ended.into_iter().for_each(|caller| caller.last = Some(last));
        let received = self.received;
        self.callers.retain(|_, caller| caller.last.is_none_or(|last| last > received));
        self.next_drop = self.callers.values().filter_map(|caller| caller.last).min();
    }

    fn handle(&mut self, object: u64, request: ObjectRequest, requests: &Receiver<ObjectRequest>) {
        match request {
            ObjectRequest::Hello { caller, answers } => {
                self.drop_ended_callers(requests);
                self.callers.insert(caller, CallerState { answers: *answers, codes: Vec::new(), last: None });
            }
            ObjectRequest::Make { caller, maker } => {
                if self.slot.is_none_or(|slot| is_of(caller, slot)) {
                    call_cycle::record_created(caller, object);
                }
                let answer = match make(maker) {
                    Ok(made) => {
                        self.state = ObjectState::Present(made);
                        AnswerStatus::Created { object }
                    }
                    Err(answer) => {
                        self.state = ObjectState::Refused;
                        answer
                    }
                };
                self.answer(caller, CallAnswer(Err(answer)));
            }
            ObjectRequest::Learn { caller, code, task } => {
                let Some(caller_state) = self.callers.get_mut(&caller) else { return };
                // A caller that starts its numbers again from 0 replaces its earlier codes.
                caller_state
                    .codes
                    .drain(usize::from(code).min(caller_state.codes.len())..)
                    .for_each(drop_caught);
                caller_state.codes.push(task.read().map(|maker| maker.call(())));
            }
            ObjectRequest::Call { caller, code, body } => {
                let Some(caller_state) = self.callers.get(&caller) else { return };
                let answer = call(&self.state, caller_state, code, body);
                self.answer(caller, CallAnswer(answer));
            }
            ObjectRequest::Free { caller } => {
                let was = std::mem::replace(&mut self.state, ObjectState::Freed);
                drop_caught(was);
                self.answer(caller, CallAnswer(Err(AnswerStatus::Freed)));
            }
        }
    }

    fn answer(&mut self, caller: u32, answer: CallAnswer) {
        let Some(caller_state) = self.callers.get(&caller) else { return };
        if self.slot.is_none_or(|slot| is_of(caller, slot)) {
            call_cycle::record_answer(caller);
        }
        let Err(error) = caller_state.answers.try_send(answer) else { return };
        self.unanswered(caller, error);
    }

    /// Handles an answer that could not be sent.
    #[cold]
    fn unanswered(&mut self, caller: u32, error: PutError<CallAnswer>) {
        if error.is_disconnected() {
            // The caller has ended, or no longer waits.
            self.callers.remove(&caller);
            return;
        }
        let Some(caller_state) = self.callers.get(&caller) else { return };
        // The answer is, for example, too large for the available memory.
        let why = error.to_string();
        drop_caught(error);
        if caller_state.answers.try_send(CallAnswer(Err(AnswerStatus::Unsendable(why)))).is_err() {
            // The caller is dropped, because without an answer it would wait forever.
            self.callers.remove(&caller);
        }
    }
}

/// Calls the object for this caller.
fn call(
    state: &ObjectState,
    caller: &CallerState,
    code: u16,
    body: MessageBody,
) -> Result<MessageBody, AnswerStatus> {
    let ObjectState::Present(object) = state else { return Err(AnswerStatus::Freed) };
    match caller.codes.get(usize::from(code)) {
        Some(Ok(task)) => task.run(object, body),
        Some(Err(why)) => Err(AnswerStatus::Unreadable(why.clone())),
        None => Err(AnswerStatus::Unreadable("its code did not arrive".into())),
    }
}

/// Creates the object, or returns an error answer.
fn make(maker: LazyClosure<ObjectResult>) -> Result<ServedObject, AnswerStatus> {
    let maker = UserValue::new(maker.read().map_err(AnswerStatus::Unreadable)?);
    let Some(maker) = maker.get() else { return Err(AnswerStatus::Freed) };
    match CallFailure::catch(|| maker.call(()).map_err(failure)) {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(answer)) => Err(answer),
        Err(raise) => Err(AnswerStatus::Raised(raise)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::{Caller, send};

    #[test]
    fn busy_object_drops_callers_that_have_ended() {
        let (to, requests) = mp_queue::channel::<ObjectRequest>().unwrap();
        let (ended, busy) = (Caller::new(&to, 0).unwrap(), Caller::new(&to, 0).unwrap());
        let mut object = ObjectThread::default();
        let free = |object: &mut ObjectThread, caller: &Caller| {
            send(&to, ObjectRequest::Free { caller: caller.number() }, 0).unwrap();
            while let Ok(request) = requests.try_recv() {
                object.serve_request(0, request, &requests);
            }
        };
        free(&mut object, &ended);
        assert_eq!((ended.answers().len(), object.callers.len()), (1, 2));
        drop(ended);
        for _ in 0..2 * CHECK_REQUESTS {
            free(&mut object, &busy);
            busy.answers().try_recv().unwrap();
        }
        assert_eq!(object.callers.len(), 1);
    }

    #[test]
    fn retry_pauses_of_the_server_double_and_reset() {
        let mut backoff = RetryPause::default();
        let pauses = [1, 2, 4, 8, 16, 32, 64, 100, 100].map(Duration::from_millis);
        assert_eq!(pauses.map(|_| backoff.next_pause()), pauses);
        backoff.reset();
        assert_eq!(backoff.next_pause(), PAUSE_RANGE.0);
    }
}
