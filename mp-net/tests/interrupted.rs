//! Connections that break at any byte and are opened again: nothing is lost, repeated or reordered.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mp_harness::eventually;
use mp_net::{
    Cluster, ClusterConfig, ClusterEvent, NetError, RemoteBarrier, RemoteBroadcast, RemoteEvent,
    RemoteGetError, RemoteQueue, RemoteRecvError, RemoteSemaphore,
};
use mp_queue::{Queue, broadcast};
use mp_reduce::Bundle;
use mp_sync::{Barrier, Event, Semaphore};
use mp_tensor::{FrozenTensor, Tensor};
use serde::{Deserialize, Serialize};

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Duration of each test in which connections break.
const TIME: Duration = Duration::from_secs(2);

/// Proxy whose connections break after some bytes.
struct Proxy {
    address: String,
    breaks: Arc<AtomicBool>,
    broken: Arc<AtomicU64>,
    /// `true` while the proxy relays no bytes.
    holds: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Blocks while `holds` is `true`, for up to 10 s. Returns `true` if it has blocked.
fn held(holds: &AtomicBool) -> bool {
    let since = Instant::now();
    while holds.load(Ordering::Relaxed) && since.elapsed() < Duration::from_secs(10) {
        // sleep: the interval at which the flag is read.
        std::thread::sleep(Duration::from_millis(1));
    }
    since.elapsed() > Duration::from_millis(1)
}

/// Returns the next number of a sequence (SplitMix64).
fn next(state: &AtomicU64) -> u64 {
    let mut x = state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Ends the proxy's threads.
impl Drop for Proxy {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        _ = TcpStream::connect(&self.address);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

impl Proxy {
    /// Starts a proxy to the port `to`, whose listener may start later.
    fn start(seed: u64, most: u64) -> (Self, std::sync::mpsc::Sender<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (to, from) = std::sync::mpsc::channel::<String>();
        let (breaks, broken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let holds = Arc::new(AtomicBool::new(false));
        let ends = Arc::new(AtomicBool::new(false));
        let mut proxy = Self {
            address,
            breaks: breaks.clone(),
            broken: broken.clone(),
            holds: holds.clone(),
            ends: ends.clone(),
            thread: None,
        };
        let random = Arc::new(AtomicU64::new(seed));
        proxy.thread = Some(std::thread::spawn(move || {
            let home = from.recv().unwrap();
            for client in listener.incoming().map_while(Result::ok) {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                if held(&holds) {
                    // sleep: a new connection must be relayed later than the bytes of earlier ones.
                    std::thread::sleep(Duration::from_millis(100));
                }
                let Ok(server) = TcpStream::connect(&home) else { continue };
                let pairs = [(&client, &server), (&server, &client)];
                for (from, to) in pairs.map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap())) {
                    let limit = 200 + next(&random) % most;
                    let (breaks, broken, holds) = (breaks.clone(), broken.clone(), holds.clone());
                    std::thread::spawn(move || relay(from, to, limit, &breaks, &broken, &holds));
                }
            }
        }));
        (proxy, to)
    }
}

/// Copies bytes, and breaks the connection after `limit` of them.
fn relay(
    mut from: TcpStream,
    mut to: TcpStream,
    limit: u64,
    breaks: &AtomicBool,
    broken: &AtomicU64,
    holds: &AtomicBool,
) {
    let mut buffer = vec![0; 1 << 16];
    let mut sum = 0;
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        held(holds);
        sum += bytes as u64;
        let ends = sum > limit && breaks.load(Ordering::Relaxed);
        let part = if ends { bytes / 2 } else { bytes };
        if to.write_all(&buffer[..part]).is_err() {
            break;
        }
        if ends {
            broken.fetch_add(1, Ordering::Relaxed);
            break;
        }
    }
    _ = from.shutdown(Shutdown::Both);
    _ = to.shutdown(Shutdown::Both);
}

/// Returns ranks 0 and 1. Connections to rank 0 go through the returned proxy.
fn two(seed: u64, most: u64) -> (Cluster, Cluster, Proxy) {
    two_with(seed, most, |config| config)
}

/// Returns ranks 0 and 1 and the proxy like `two`. `change` adapts the configuration of both ranks.
fn two_with(
    seed: u64,
    most: u64,
    change: impl Fn(ClusterConfig) -> ClusterConfig,
) -> (Cluster, Cluster, Proxy) {
    let (proxy, home) = Proxy::start(seed, most);
    let config = |rank, first: &str| {
        let config = ClusterConfig::new(rank, 2, first).grace(Duration::from_secs(20));
        change(config.timeout(Duration::from_secs(20)))
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    drop(listener);
    home.send(at.clone()).unwrap();
    let first = Cluster::join(&config(0, &proxy.address).listen(&at).advertise(&proxy.address)).unwrap();
    let second = Cluster::join(&config(1, &proxy.address)).unwrap();
    (first, second, proxy)
}

#[test]
fn puts_over_breaking_connections_are_done_once() -> Outcome {
    put_once(two(1, 300_000))
}

#[test]
fn remote_puts_over_breaking_tls_are_done_once() -> Outcome {
    let file = |name| format!("{}/tests/certificates/{name}", env!("CARGO_MANIFEST_DIR"));
    let files = ["ca.pem", "member.pem", "member.key"].map(file);
    let tls = mp_net::ClusterTls::from_pem_files(&files[0], &files[1], &files[2])?;
    put_once(two_with(5, 300_000, |config| config.tls(tls.clone())))
}

fn put_once((first, second, proxy): (Cluster, Cluster, Proxy)) -> Outcome {
    let queue = Queue::<Bundle<(u64, Tensor<u8>)>>::bounded(8)?;
    first.publish("tensors", &queue)?;
    let remote = RemoteQueue::<Bundle<(u64, Tensor<u8>)>>::connect(&second, "tensors")?;
    proxy.breaks.store(true, Ordering::Relaxed);
    let until = Instant::now() + TIME;
    let putting = std::thread::spawn(move || -> Result<u64, String> {
        let mut sent = 0;
        while Instant::now() < until {
            let bytes = 1 + sent as usize * 7919 % 50_000;
            let tensor = Tensor::full([bytes], sent as u8).map_err(|e| e.to_string())?;
            remote.put(Bundle((sent, tensor))).map_err(|e| e.to_string())?;
            sent += 1;
        }
        remote.close().map_err(|e| e.to_string())?;
        Ok(sent)
    });
    let mut expected = 0;
    while let Some(Bundle((number, tensor))) = queue.get()? {
        assert_eq!(number, expected);
        assert_eq!(tensor.len(), 1 + number as usize * 7919 % 50_000);
        assert!(tensor.iter().all(|byte| byte == number as u8));
        expected += 1;
    }
    assert_eq!(putting.join().unwrap()?, expected);
    let broken = proxy.broken.load(Ordering::Relaxed);
    assert!(broken >= 5, "{broken} breaks, {expected} messages");
    Ok(())
}

#[test]
fn gets_over_breaking_connections_are_done_once() -> Outcome {
    let (first, second, proxy) = two(2, 100_000);
    let queue = Queue::<Bundle<(u64, Tensor<u8>)>>::bounded(8)?;
    first.publish("tensors", &queue)?;
    let remote = RemoteQueue::<Bundle<(u64, Tensor<u8>)>>::connect(&second, "tensors")?;
    proxy.breaks.store(true, Ordering::Relaxed);
    let until = Instant::now() + TIME;
    let putting = std::thread::spawn(move || {
        let mut sent = 0;
        while Instant::now() < until {
            let bytes = if sent % 8 == 0 { 30_000 } else { 300 };
            queue.put(Bundle((sent, Tensor::full([bytes], sent as u8).unwrap()))).unwrap();
            sent += 1;
        }
        queue.close();
        sent
    });
    let mut expected = 0;
    let mut got = Vec::new();
    loop {
        match expected % 2 {
            0 => got.extend(remote.get()?),
            _ => _ = remote.get_many(&mut got, 5)?,
        }
        if got.is_empty() {
            break;
        }
        for Bundle((number, tensor)) in got.drain(..) {
            assert_eq!(number, expected);
            let bytes = if number % 8 == 0 { 30_000 } else { 300 };
            assert!(tensor.len() == bytes && tensor.iter().all(|byte| byte == number as u8));
            expected += 1;
        }
    }
    assert_eq!(putting.join().unwrap(), expected);
    let broken = proxy.broken.load(Ordering::Relaxed);
    assert!(broken >= 5, "{broken} breaks, {expected} messages");
    Ok(())
}

#[test]
fn many_calls_over_breaking_connections_are_done_once() -> Outcome {
    let (first, second, proxy) = two(3, 20_000);
    let queue = Queue::<u64>::bounded(100_000)?;
    first.publish("numbers", &queue)?;
    let remote = RemoteQueue::<u64>::connect(&second, "numbers")?;
    proxy.breaks.store(true, Ordering::Relaxed);
    let until = Instant::now() + TIME;
    let mut put = 0;
    while Instant::now() < until && put < 99_000 {
        put += remote.put_many(put..put + 500)? as u64;
        // Between the puts and gets, messages are leased, and acknowledged or given back.
        let lease = remote.get_lease()?.expect("it is open");
        let number = *lease;
        if number % 2 == 0 {
            assert_eq!(lease.ack()?, number);
        } else {
            drop(lease);
            let again = remote.get_lease()?.expect("it is open");
            assert_eq!((*again, again.deliveries()), (number, 2));
            again.ack()?;
        }
    }
    let taken = put / 500;
    for number in taken..put {
        assert_eq!(queue.get()?, Some(number));
    }
    assert!(queue.is_empty());
    let broken = proxy.broken.load(Ordering::Relaxed);
    assert!(broken >= 5, "{broken} breaks, {put} messages");
    Ok(())
}

#[test]
fn permits_over_breaking_connections_are_exact() -> Outcome {
    let (first, second, proxy) = two(5, 5_000);
    let semaphore = Semaphore::with_limit(0, 100_000)?;
    first.publish("permits", &semaphore)?;
    let remote = RemoteSemaphore::connect(&second, "permits")?;
    proxy.breaks.store(true, Ordering::Relaxed);
    let until = Instant::now() + TIME;
    let (mut permits, mut held) = (0, Vec::new());
    while Instant::now() < until {
        remote.add_permits(3)?;
        held.push(remote.acquire()?);
        drop(remote.try_acquire()?);
        remote.acquire()?.forget()?;
        permits += 2;
    }
    assert_eq!(remote.available()?, permits - held.len());
    drop(held);
    assert_eq!((remote.available()?, semaphore.available()), (permits, permits));
    let broken = proxy.broken.load(Ordering::Relaxed);
    assert!(broken >= 5, "{broken} breaks, {permits} permits");
    Ok(())
}

/// Message whose variant `Undecodable` can't be decoded.
#[derive(Serialize, Deserialize)]
enum Picky {
    Number(u32),
    #[serde(skip_deserializing)]
    Undecodable,
}

#[test]
fn flush_over_breaking_connections_follows_give_back() -> Outcome {
    let (first, second, proxy) = two(11, 2_000);
    let queue = Queue::<Picky>::bounded(4)?;
    first.publish("numbers", &queue)?;
    let remote = RemoteQueue::<Picky>::connect(&second, "numbers")?;
    proxy.breaks.store(true, Ordering::Relaxed);
    let until = Instant::now() + TIME;
    let mut rounds = 0;
    while Instant::now() < until {
        let messages = [Picky::Number(0), Picky::Undecodable, Picky::Number(2)];
        queue.put_many(messages).map_err(|e| e.error.forget())?;
        let mut got = Vec::new();
        assert!(matches!(remote.get_many(&mut got, 4), Err(RemoteGetError::Failed(_))));
        assert!(matches!(got[..], [Picky::Number(0)]));
        remote.flush()?;
        assert_eq!(queue.len(), 1, "round {rounds}");
        assert!(matches!(queue.get()?, Some(Picky::Number(2))));
        rounds += 1;
    }
    let broken = proxy.broken.load(Ordering::Relaxed);
    assert!(broken >= 5, "{broken} breaks, {rounds} rounds");
    Ok(())
}

fn is_waiting(call: &mut (impl Future + Unpin)) -> bool {
    Pin::new(call).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Each connection breaks before it can transfer all unanswered calls.
#[test]
fn resent_calls_advance_with_each_broken_connection() -> Outcome {
    let (first, second, proxy) = two(10, 3_000);
    let (given, awaited) = (Semaphore::with_limit(400, 400)?, Semaphore::with_limit(0, 200)?);
    first.publish("given", &given)?;
    first.publish("awaited", &awaited)?;
    let [permits, waits] = ["given", "awaited"].map(|name| RemoteSemaphore::connect(&second, name).unwrap());
    let held: Vec<_> = (0..400).map(|_| permits.acquire()).collect::<Result<_, _>>()?;
    // The home does not answer these calls until the end.
    let mut waiting: Vec<_> = (0..200).map(|_| Box::pin(waits.acquire_async())).collect();
    assert!(waiting.iter_mut().all(is_waiting));
    assert_eq!(waits.available()?, 0);
    proxy.breaks.store(true, Ordering::Relaxed);
    drop(held);
    let returned = std::thread::spawn(move || permits.available());
    eventually("all permits are returned", || returned.is_finished());
    assert_eq!((returned.join().unwrap()?, given.available()), (400, 400));
    awaited.add_permits(200)?;
    eventually("all calls are answered", || {
        waiting.retain_mut(is_waiting);
        waiting.is_empty()
    });
    let broken = proxy.broken.load(Ordering::Relaxed);
    assert!(broken >= 5, "{broken} breaks");
    Ok(())
}

#[test]
fn parties_over_breaking_connections_pass_each_phase() -> Outcome {
    let (first, second, proxy) = two(6, 5_000);
    let (step, stop) = (Barrier::new(2)?, Event::new()?);
    first.publish("step", &step)?;
    first.publish("stop", &stop)?;
    let (remote, stopped) =
        (RemoteBarrier::connect(&second, "step")?, RemoteEvent::connect(&second, "stop")?);
    proxy.breaks.store(true, Ordering::Relaxed);
    let party = std::thread::spawn(move || -> Result<u64, String> {
        let mut phases = 0;
        while !stopped.is_set().map_err(|e| e.to_string())? {
            remote.wait().map_err(|e| e.to_string())?;
            phases += 1;
            // Waits until this process has decided if another phase follows.
            remote.wait().map_err(|e| e.to_string())?;
        }
        Ok(phases)
    });
    let until = Instant::now() + TIME;
    let mut phases = 0;
    while !stop.is_set() {
        step.wait()?;
        phases += 1;
        if Instant::now() >= until {
            stop.set()?;
        }
        step.wait()?;
    }
    assert_eq!(party.join().map_err(|_| "a thread panicked")??, phases);
    let broken = proxy.broken.load(Ordering::Relaxed);
    assert!(broken >= 5, "{broken} breaks, {phases} phases");
    Ok(())
}

#[test]
fn broadcasts_over_breaking_connections_are_counted() -> Outcome {
    let (first, second, proxy) = two(7, 100_000);
    let (sender, receiver) = broadcast::channel::<(u64, FrozenTensor<u8>)>(16)?;
    first.publish("tensors", &receiver)?;
    let remote = RemoteBroadcast::<(u64, FrozenTensor<u8>)>::connect(&second, "tensors")?;
    proxy.breaks.store(true, Ordering::Relaxed);
    let until = Instant::now() + TIME;
    let sending = std::thread::spawn(move || {
        let mut sent = 0;
        while Instant::now() < until {
            let tensor = Tensor::full([10_000], sent as u8).unwrap().freeze();
            sender.send((sent, tensor)).map_err(|e| e.forget()).unwrap();
            sent += 1;
            // sleep: a sender without pauses is too fast for any link.
            std::thread::sleep(Duration::from_micros(500));
        }
        sent
    });
    let (mut expected, mut received) = (0, 0);
    loop {
        match remote.recv() {
            Ok((number, tensor)) => {
                assert_eq!(number, expected);
                assert!(tensor.len() == 10_000 && tensor.iter().all(|byte| byte == number as u8));
                (expected, received) = (expected + 1, received + 1);
            }
            Err(RemoteRecvError::Lagged(missed)) => expected += missed,
            Err(RemoteRecvError::Closed) => break,
            Err(error) => return Err(error.into()),
        }
    }
    assert_eq!(sending.join().unwrap(), expected);
    let broken = proxy.broken.load(Ordering::Relaxed);
    assert!(broken >= 5 && received >= 100, "{broken} breaks, {received} of {expected} messages");
    Ok(())
}

#[test]
fn silence_shorter_than_the_grace_ends_no_call() -> Outcome {
    let (proxy, home) = Proxy::start(4, u64::MAX / 2);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?.to_string();
    drop(listener);
    home.send(at.clone())?;
    let (lease, grace) = (Duration::from_millis(100), Duration::from_secs(20));
    let config = |rank| ClusterConfig::new(rank, 2, &proxy.address).lease(lease).grace(grace);
    let first = Cluster::join(&config(0).listen(&at).advertise(&proxy.address))?;
    let second = Cluster::join(&config(1))?;
    let queue = Queue::<u64>::bounded(4)?;
    first.publish("numbers", &queue)?;
    let remote = RemoteQueue::<u64>::connect(&second, "numbers")?;
    let taking = std::thread::spawn(move || remote.get().map_err(|e| e.to_string()));
    // sleep: the call is sent.
    std::thread::sleep(Duration::from_millis(50));
    proxy.holds.store(true, Ordering::Relaxed);
    // sleep: longer than the lease.
    std::thread::sleep(Duration::from_millis(500));
    proxy.holds.store(false, Ordering::Relaxed);
    queue.put(7)?;
    assert_eq!(taking.join().map_err(|_| "a thread panicked")??, Some(7));
    Ok(())
}

/// The home gives back a message that its caller has received. The link of the caller detects the loss while
/// no call waits, and the next call of the caller begins another session.
#[test]
fn flush_after_an_undetected_link_loss_fails() -> Outcome {
    let short = |config: ClusterConfig| config.lease(Duration::from_millis(200)).grace(Duration::ZERO);
    let (first, second, proxy) = two_with(7, 300_000, short);
    let (queue, semaphore) = (Queue::<u32>::bounded(4)?, Semaphore::new(1)?);
    first.publish("numbers", &queue)?;
    first.publish("permits", &semaphore)?;
    let numbers = RemoteQueue::<u32>::connect(&second, "numbers")?;
    let permit = RemoteSemaphore::connect(&second, "permits")?.acquire()?;
    let mut get = pin!(numbers.get_async());
    assert!(get.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    queue.put(7)?;
    eventually("the message is taken", || queue.is_empty());
    // The reply to this call arrives after the message.
    numbers.len()?;
    proxy.holds.store(true, Ordering::Relaxed);
    assert_eq!(queue.get_timeout(Duration::from_secs(10))?, Some(7), "the message has returned to the queue");
    eventually("the caller knows of the loss", || !permit.is_held());
    proxy.holds.store(false, Ordering::Relaxed);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    assert_eq!(runtime.block_on(get)?, Some(7));
    let error = numbers.flush().unwrap_err();
    assert!(matches!(&error, NetError::PeerLost(lost) if lost.rank == 0), "{error}");
    numbers.flush()?;
    Ok(())
}

/// Rank 0 is its own caller. A process that is stopped for longer than the lease loses its own session, too.
#[test]
fn first_rank_outlives_its_connection_to_itself() -> Outcome {
    let short = |config: ClusterConfig| config.lease(Duration::from_millis(200)).grace(Duration::ZERO);
    let (first, second, proxy) = two_with(8, 300_000, short);
    let queue = Queue::<u32>::bounded(4)?;
    first.publish("numbers", &queue)?;
    let events = first.events();
    let (to, names) = std::sync::mpsc::channel();
    let _followed = first.follow_names("num", move |seen| _ = to.send(seen.len()))?;
    proxy.holds.store(true, Ordering::Relaxed);
    // sleep: longer than the lease.
    std::thread::sleep(Duration::from_millis(600));
    proxy.holds.store(false, Ordering::Relaxed);
    let event = events.recv_timeout(Duration::from_secs(10))?;
    assert!(matches!(&event, ClusterEvent::Lost(member) if member.rank == 1), "{event:?}");
    drop(second);
    let again = Cluster::join(&short(ClusterConfig::new(1, 2, &proxy.address)))?;
    RemoteQueue::<u32>::connect(&again, "numbers")?.put(7)?;
    assert_eq!(queue.get()?, Some(7));
    eventually("rank 1 is a member again", || first.members().len() == 2);
    first.publish("numbers, too", &queue)?;
    // A loss of rank 0 would be reported as an empty list.
    assert!(names.iter().find(|count| *count != 1) == Some(2));
    Ok(())
}
