//! Connections over a socket whose other end is stopped. A sender waits no longer than its time-out, and no
//! message is torn.

use std::pin::pin;
use std::time::{Duration, Instant};

use mp::connection::SocketOptions;
use mp::{GetError, Listener, PutError, pipe};
use mp_tests::block_on::{block_on, poll_once};
use mp_tests::{DEADLINE, Outcome, alone, eventually, join, one_process, signal, threads_are};
use rustix::process::Signal;

const MOMENT: Duration = Duration::from_millis(20);

fn name(what: &str) -> String {
    format!("@mp-test-{what}-{}", std::process::id())
}

/// Returns a message whose contents depend only on its number and length.
fn message(number: u64, len: usize) -> Vec<u64> {
    (0..len as u64).map(|i| i * 31 + number).collect()
}

/// Receives until the other end closes. Checks that each message is complete and in order, and that the
/// number of messages equals the number in the last message.
fn receives(_: usize, name: String) -> Outcome {
    let there = SocketOptions::new().connect(name)?;
    let mut n = 0;
    loop {
        match there.recv_timeout::<Vec<u64>>(DEADLINE) {
            Ok(got) if got.is_empty() => break,
            Ok(got) if got == message(n, got.len()) => n += 1,
            Ok(got) => return Err(format!("message {n} is torn: {:?}", &got[..3]).into()),
            Err(error) => return Err(error.into()),
        }
    }
    there.send(n)?;
    let bytes = there.recv_bytes_timeout(DEADLINE)?;
    there.send_bytes_timeout(&bytes, DEADLINE)?;
    Ok(())
}

#[test]
fn send_to_a_stopped_process_keeps_its_time_limit() {
    let _alone = alone();
    let name = name("stopped");
    let listener = Listener::bind(name.clone()).unwrap();
    let child = one_process(receives, name);
    let here = listener.accept_timeout(DEADLINE).unwrap().expect("a client connects");
    let pid = child.pids()[0];
    assert_eq!(here.peer_pid(), Some(pid));
    signal(pid, Signal::STOP);
    eventually("the process is stopped", || threads_are(pid, 'T'));
    // All forms of sending and several sizes alternate, so that some messages are begun and not sent
    // completely.
    let mut sent = 0;
    let mut refused = 0;
    for round in 0..200_usize {
        let value = message(sent, 500 + round % 7 * 1000);
        let begin = Instant::now();
        let end = match round % 4 {
            0 => here.try_send(value),
            1 => here.send_timeout(value, Duration::from_millis(1)),
            2 => here.send_deadline(value, begin + Duration::from_millis(1)),
            _ => {
                let mut future = pin!(here.send_async(value.clone()));
                match poll_once(&mut future) {
                    std::task::Poll::Ready(end) => end,
                    // Since the first refusal an earlier message is incomplete, so the future has not begun
                    // its message.
                    std::task::Poll::Pending if refused > 0 => Err(PutError::Full(value)),
                    std::task::Poll::Pending => Ok(()),
                }
            }
        };
        match end {
            Ok(()) => sent += 1,
            Err(PutError::Full(back)) => {
                assert_eq!(back[0], sent, "the value is returned");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(begin.elapsed() < DEADLINE);
    }
    assert!(sent > 5 && refused > 50, "{sent} sent, {refused} refused");
    assert!(matches!(here.try_recv::<u64>(), Err(GetError::Empty)));
    assert!(matches!(here.try_recv_bytes(), Err(GetError::Empty)));
    assert!(here.try_send_bytes(b"x").unwrap_err().is_full());
    assert!(here.send_bytes_timeout(b"x", MOMENT).unwrap_err().is_full());
    signal(pid, Signal::CONT);
    // An incomplete message is completed before another message is sent.
    here.send_timeout(Vec::<u64>::new(), DEADLINE).unwrap();
    assert_eq!(here.recv_timeout::<u64>(DEADLINE).unwrap(), sent);
    block_on(here.send_bytes_async(b"raw")).unwrap();
    assert_eq!(here.recv_bytes_deadline(Instant::now() + DEADLINE).unwrap(), b"raw");
    join(&child).unwrap();
}

#[test]
fn pipe_sends_with_a_timeout_until_disconnected() {
    let _alone = alone();
    let (here, there) = pipe().unwrap();
    here.try_send(1).unwrap();
    here.send_timeout(2, MOMENT).unwrap();
    here.send_bytes_timeout(b"3", MOMENT).unwrap();
    assert_eq!((there.recv::<i32>().unwrap(), there.recv::<i32>().unwrap()), (1, 2));
    assert_eq!(there.try_recv_bytes().unwrap(), b"3");
    assert!(there.recv_bytes_timeout(MOMENT).unwrap_err().is_empty());
    drop(there);
    assert!(matches!(here.send_timeout(5, MOMENT), Err(PutError::Disconnected(5))));
}
