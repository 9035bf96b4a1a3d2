//! iceoryx2: processes poll one publish-subscribe service in each direction. Processes that sleep use an
//! event service in addition. Settings follow the benchmarks of iceoryx2: one publisher, one subscriber, no
//! history, and each sample is loaned in advance.

use std::sync::atomic::{AtomicU32, Ordering};

use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::sample_mut_uninit::SampleMutUninit;
use iceoryx2::service::port_factory::{event, publish_subscribe};

use super::{round, word};
use crate::Result;
use crate::process;
use crate::work::tensor::{self, Amount, Times};
use crate::work::{Link, Outcome, Plan, small};

/// Name in the roles of children.
pub(super) const NAME: &str = "iceoryx2";

/// Number of messages that wait for a subscriber in `one_way`.
const DEEP: usize = 1024;

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Parent,
    Child,
}

impl End {
    /// Returns the names of the services that this end sends to and receives from.
    fn services(self, base: &str) -> Result<[ServiceName; 2]> {
        let down = ServiceName::new(&format!("{base}/down"))?;
        let up = ServiceName::new(&format!("{base}/up"))?;
        Ok(match self {
            Self::Parent => [down, up],
            Self::Child => [up, down],
        })
    }
}

/// Returns a name that no other program on this machine uses.
fn unique() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("mp-bench/{}/{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn node() -> Result<Node<ipc::Service>> {
    set_log_level(LogLevel::Error);
    Ok(NodeBuilder::new().signal_handling_mode(SignalHandlingMode::Disabled).create::<ipc::Service>()?)
}

/// Creates a service for one publisher and one subscriber. With a `depth` of 1, a new message overwrites the
/// previous message, as in iceoryx2's own benchmark of latency. A deeper service is lossless.
fn service(
    node: &Node<ipc::Service>,
    name: &ServiceName,
    depth: usize,
) -> Result<publish_subscribe::PortFactory<ipc::Service, u64, ()>> {
    let builder = node.service_builder(name).publish_subscribe::<u64>();
    let builder = builder.max_publishers(1).max_subscribers(1).history_size(0);
    Ok(builder.subscriber_max_buffer_size(depth).enable_safe_overflow(depth == 1).open_or_create()?)
}

/// A publisher and the sample that it will send next.
struct LoaningPublisher {
    publisher: Publisher<ipc::Service, u64, ()>,
    next: Option<SampleMutUninit<ipc::Service, std::mem::MaybeUninit<u64>, ()>>,
}

impl LoaningPublisher {
    fn new(service: &publish_subscribe::PortFactory<ipc::Service, u64, ()>) -> Result<Self> {
        let builder = service.publisher_builder();
        let publisher = builder.backpressure_strategy(BackpressureStrategy::RetryUntilDelivered).create()?;
        Ok(Self { publisher, next: None })
    }

    #[inline]
    fn send(&mut self, message: u64) -> Result<()> {
        let sample = match self.next.take() {
            Some(sample) => sample,
            None => self.publisher.loan_uninit()?,
        };
        sample.write_payload(message).send()?;
        self.next = Some(self.publisher.loan_uninit()?);
        Ok(())
    }
}

/// Polls until a sample arrives, and returns its value.
#[inline]
fn poll(subscriber: &Subscriber<ipc::Service, u64, ()>) -> Result<u64> {
    let mut found = Ok(None);
    process::spin_until(|| {
        found = subscriber.receive().map(|sample| sample.map(|sample| *sample));
        !matches!(found, Ok(None))
    })?;
    found?.ok_or_else(|| "no sample after all".into())
}

/// Link on which both processes poll busily.
struct Busy {
    // Before the node, since fields are dropped in this order.
    out: LoaningPublisher,
    into: Subscriber<ipc::Service, u64, ()>,
    _node: Node<ipc::Service>,
}

impl Busy {
    fn open(base: &str, end: End, depth: usize) -> Result<Self> {
        let node = node()?;
        let [out, into] = end.services(base)?;
        let out = LoaningPublisher::new(&service(&node, &out, depth)?)?;
        let into = service(&node, &into, depth)?.subscriber_builder().create()?;
        Ok(Self { out, into, _node: node })
    }
}

/// Returns a link that receives its own messages.
#[cfg(feature = "grow")]
pub(crate) fn looped() -> Result<impl Link> {
    let node = node()?;
    let service = service(&node, &ServiceName::new(&unique())?, 1)?;
    Ok(Busy {
        into: service.subscriber_builder().create()?,
        out: LoaningPublisher::new(&service)?,
        _node: node,
    })
}

impl Link for Busy {
    #[inline]
    fn send(&mut self, message: u64) -> Result<()> {
        self.out.send(message)
    }

    #[inline]
    fn receive(&mut self) -> Result<u64> {
        poll(&self.into)
    }
}

/// Link with an event in each direction, which wakes the other process.
struct Sleepy {
    busy: Busy,
    notifier: Notifier<ipc::Service>,
    listener: Listener<ipc::Service>,
}

impl Sleepy {
    fn open(base: &str, end: End) -> Result<Self> {
        let busy = Busy::open(base, end, 1)?;
        let event = |name: &ServiceName| -> Result<event::PortFactory<ipc::Service>> {
            let builder = busy._node.service_builder(name).event().max_notifiers(1).max_listeners(1);
            Ok(builder.event_id_max_value(1).open_or_create()?)
        };
        let [out, into] = end.services(base)?;
        let notifier = event(&out)?.notifier_builder().create()?;
        let listener = event(&into)?.listener_builder().create()?;
        Ok(Self { notifier, listener, busy })
    }
}

impl Link for Sleepy {
    fn send(&mut self, message: u64) -> Result<()> {
        self.busy.send(message)?;
        self.notifier.notify()?;
        Ok(())
    }

    fn receive(&mut self) -> Result<u64> {
        loop {
            if let Some(sample) = self.busy.into.receive()? {
                return Ok(*sample);
            }
            self.listener.timed_wait(|_| {}, process::DEADLINE)?;
        }
    }
}

/// Maximum number of tensors in flight in a stream.
const STREAM: usize = 2 * tensor::BATCH as usize;

/// Sending end of tensors, which receives the answers.
struct Tensors {
    publisher: Publisher<ipc::Service, [u64], ()>,
    answers: Subscriber<ipc::Service, u64, ()>,
    _node: Node<ipc::Service>,
}

fn tensor_service(
    node: &Node<ipc::Service>,
    name: &ServiceName,
    depth: usize,
) -> Result<publish_subscribe::PortFactory<ipc::Service, [u64], ()>> {
    let builder = node.service_builder(name).publish_subscribe::<[u64]>();
    let builder =
        builder.max_publishers(1).max_subscribers(1).history_size(0).subscriber_max_borrowed_samples(1);
    Ok(builder.subscriber_max_buffer_size(depth).enable_safe_overflow(true).open_or_create()?)
}

impl tensor::Sender for Tensors {
    fn send_fresh(&mut self, source: &[u64]) -> Result<()> {
        let sample = self.publisher.loan_slice_uninit(source.len())?;
        sample.write_from_slice(source).send()?;
        Ok(())
    }

    fn send_again(&mut self) -> Result<()> {
        Err("sending takes the sample away".into())
    }

    fn keep(&mut self, _: &[u64]) -> Result<()> {
        Err("sending takes the sample away".into())
    }

    fn answer(&mut self) -> Result<u64> {
        poll(&self.answers)
    }
}

/// Receiving end of tensors, which sends the answers.
struct Takers {
    subscriber: Subscriber<ipc::Service, [u64], ()>,
    answers: LoaningPublisher,
    _node: Node<ipc::Service>,
}

impl tensor::Receiver for Takers {
    fn receive(&mut self, look: impl FnOnce(&[u64]) -> u64) -> Result<u64> {
        let mut found = Ok(None);
        process::spin_until(|| {
            found = self.subscriber.receive();
            !matches!(found, Ok(None))
        })?;
        let sample = found?.ok_or("no sample after all")?;
        Ok(look(sample.payload()))
    }

    fn answer(&mut self, message: u64) -> Result<()> {
        self.answers.send(message)
    }
}

/// Opens the parent's end by `open`, starts the child, and runs `measure`. The child starts later because
/// services have no history: a message to a side that has not subscribed is lost.
fn with<C, R>(
    work: &str,
    words: &[String],
    plan: &Plan,
    open: impl FnOnce(&str) -> Result<C>,
    measure: impl FnOnce(C) -> Result<R>,
) -> Result<Option<R>> {
    let base = unique();
    let end = open(&base)?;
    let mut all = vec![base];
    all.extend_from_slice(words);
    round(&format!("{NAME}/{work}"), &all, plan, || Ok(end), measure)
}

/// Runs a round of the row `rtt_awake`, polled busily.
pub(crate) fn rtt_awake(plan: &Plan) -> Outcome {
    let open = |base: &str| Busy::open(base, End::Parent, 1);
    with("awake", &[], plan, open, |mut link| small::round_trips(&mut link, plan, 100_000))
}

/// Runs a round of the row `rtt_asleep`, with wake-ups by events.
pub(crate) fn rtt_asleep(plan: &Plan) -> Outcome {
    let open = |base: &str| Sleepy::open(base, End::Parent);
    with("asleep", &[], plan, open, |mut link| small::sleepy_round_trips(&mut link, plan, 3_000))
}

/// Runs a round of the row `one_way_1p1c`, without loss.
pub(crate) fn one_way(plan: &Plan) -> Outcome {
    let open = |base: &str| Busy::open(base, End::Parent, DEEP);
    with("one-way", &[], plan, open, |mut link| small::consume(&mut link, plan, 1_000_000))
}

impl Tensors {
    /// Opens the parent's end for tensors of `elements` elements, of which up to `depth` are in flight at the
    /// same time.
    fn open(base: &str, elements: usize, depth: usize) -> Result<Self> {
        let node = node()?;
        let [tensors, answers] = End::Parent.services(base)?;
        let service_of_tensors = tensor_service(&node, &tensors, depth)?;
        let publisher = service_of_tensors.publisher_builder().initial_max_slice_len(elements).create()?;
        // One answer for each tensor, or two for all tensors in flight.
        let answers = service(&node, &answers, depth.min(2))?.subscriber_builder().create()?;
        Ok(Self { publisher, answers, _node: node })
    }
}

impl Takers {
    /// Opens the child's end.
    fn open(base: &str, depth: usize) -> Result<Self> {
        let node = node()?;
        let [answers, tensors] = End::Child.services(base)?;
        let subscriber = tensor_service(&node, &tensors, depth)?.subscriber_builder().create()?;
        let answers = LoaningPublisher::new(&service(&node, &answers, depth.min(2))?)?;
        Ok(Self { subscriber, answers, _node: node })
    }
}

/// Runs a round of a row `tensor_fresh_…`: each tensor is a slice loaned from the publisher's pool.
fn fresh(plan: &Plan, elements: usize) -> Outcome {
    tensor::median(fresh_times(plan, elements, Amount::fresh(plan, elements)))
}

/// Returns the latency of each tensor: the time from its creation to its answer, in ns.
pub(crate) fn fresh_times(plan: &Plan, elements: usize, amount: Amount) -> Times {
    let words = [amount.total().to_string()];
    let open = |base: &str| Tensors::open(base, elements, 1);
    with("fresh", &words, plan, open, |mut sender| tensor::fresh_times(&mut sender, elements, amount))
}

/// Runs a round of the row `tensor_stream_1k`. No more tensors are in flight than the subscriber buffers, so
/// none is lost.
pub(crate) fn tensor_stream_1k(plan: &Plan) -> Outcome {
    let amount = Amount::stream(plan);
    let words = [amount.total().to_string()];
    let open = |base: &str| Tensors::open(base, tensor::SMALL, STREAM);
    with("stream", &words, plan, open, |mut sender| tensor::stream(&mut sender, tensor::SMALL, amount))
}

/// Runs a round of the row `tensor_fresh_1k`.
pub(crate) fn tensor_fresh_1k(plan: &Plan) -> Outcome {
    fresh(plan, tensor::SMALL)
}

/// Runs a round of the row `tensor_fresh_1m`.
pub(crate) fn tensor_fresh_1m(plan: &Plan) -> Outcome {
    fresh(plan, tensor::MEDIUM)
}

/// Runs a round of the row `tensor_fresh_64m`.
pub(crate) fn tensor_fresh_64m(plan: &Plan) -> Outcome {
    fresh(plan, tensor::LARGE)
}

/// Runs the child that does `work`.
///
/// # Errors
/// Returns an error for unknown work, or the error of the work.
pub(super) fn be_child(work: &str, words: &[String]) -> Result<()> {
    let base = word(words, 0)?;
    match work {
        "awake" => {
            let mut link = Busy::open(base, End::Child, 1)?;
            small::answer_round_trips(&mut link)?;
            process::linger()
        }
        "asleep" => {
            let mut link = Sleepy::open(base, End::Child)?;
            small::answer_sleepy_round_trips(&mut link)?;
            process::linger()
        }
        "one-way" => {
            let mut link = Busy::open(base, End::Child, DEEP)?;
            small::produce(&mut link)?;
            process::linger()
        }
        "fresh" => {
            tensor::answer_fresh(&mut Takers::open(base, 1)?, word(words, 1)?.parse()?)?;
            process::linger()
        }
        "stream" => {
            tensor::answer_stream(&mut Takers::open(base, STREAM)?, word(words, 1)?.parse()?)?;
            process::linger()
        }
        _ => Err(format!("{NAME} does no work called {work:?}").into()),
    }
}
