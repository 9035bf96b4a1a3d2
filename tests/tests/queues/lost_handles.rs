//! Handles of queues in messages of a killed process, or in messages that are never taken. Waiters of those
//! queues get an error, even if the recovering process has no handle of the queues.

use mp::queue::{broadcast, watch};
use mp::{Arena, GetError, ProcessContext, Queue};
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, give, join, next, one_process, send, signal, take, threads_are,
};
use rustix::process::Signal;

type Post = Queue<Queue<u32>>;

/// Sends a queue to another process, and waits until no other process has it.
fn sends_and_waits(_: usize, (post, sent, ended): (Post, Queue<()>, Queue<bool>)) -> Outcome {
    let queue = Queue::bounded(1)?;
    send(&post, queue.clone())?;
    drop(post);
    send(&sent, ())?;
    let got = queue.get_timeout(DEADLINE);
    send(&ended, matches!(got, Err(GetError::Deserted { .. })))
}

/// Holds the queue `post`, and leaves the message in it.
fn leaves_it(_: usize, (post, go): (Post, Queue<()>)) -> Outcome {
    next(&go)?;
    drop(post);
    Ok(())
}

/// Takes the message out of the queue `post`, and does not read it.
fn takes_it(_: usize, (post, go): (Post, Queue<()>)) -> Outcome {
    let mut message = None;
    eventually("this process has the message", || {
        message = message.take().or_else(|| post.try_get_packed().unwrap_or(None));
        message.is_some()
    });
    send(&go, ())?;
    eventually("this process is killed", || false);
    drop(message);
    Ok(())
}

/// Kills the process that holds the handles, while the waiting process is stopped. So the test process
/// recovers the killed process. The test process has no handle of the two queues.
fn recovered_here(has: ProcessContext, waits: &ProcessContext, ended: &Queue<bool>) {
    let waiter = waits.pids()[0];
    signal(waiter, Signal::STOP);
    eventually("the waiter is stopped", || threads_are(waiter, 'T'));
    signal(has.pids()[0], Signal::KILL);
    assert!(join(&has).is_err());
    Arena::current().unwrap().reclaim().unwrap();
    signal(waiter, Signal::CONT);
    assert!(take(ended), "the get ended with another error");
    join(waits).unwrap();
}

#[test]
fn handle_queued_by_a_killed_process_is_recorded_lost() {
    let _alone = alone();
    let (post, sent) = (Post::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let (go, ended) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let has = one_process(leaves_it, (post.clone(), go.clone()));
    let waits = one_process(sends_and_waits, (post, sent.clone(), ended.clone()));
    take(&sent);
    recovered_here(has, &waits, &ended);
}

#[test]
fn handle_taken_by_a_killed_process_is_recorded_lost() {
    let _alone = alone();
    let (post, sent) = (Post::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let (go, ended) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let has = one_process(takes_it, (post.clone(), go.clone()));
    let waits = one_process(sends_and_waits, (post, sent.clone(), ended.clone()));
    take(&sent);
    take(&go);
    recovered_here(has, &waits, &ended);
}

#[track_caller]
fn is_deserted(queue: &Queue<u32>) {
    let got = queue.get_timeout(DEADLINE);
    assert!(matches!(got, Err(GetError::Deserted { last: None, pid: 0 })), "{got:?}");
}

#[test]
fn discarded_messages_with_handles_end_gets() {
    let _alone = alone();
    let queue = || Queue::<u32>::bounded(1).unwrap();

    let unread = queue();
    let post = Post::bounded(1).unwrap();
    give(&post, unread.clone());
    drop(post.try_get_packed().unwrap());
    is_deserted(&unread);

    let unsent = queue();
    drop(post.pack(unsent.clone()).unwrap());
    is_deserted(&unsent);

    let (replaced, kept) = (queue(), queue());
    let (shows, sees) = watch::channel(replaced.clone()).unwrap();
    shows.send(kept.clone()).unwrap();
    is_deserted(&replaced);
    drop((shows, sees));
    is_deserted(&kept);

    let (oldest, newest) = (queue(), queue());
    let (sends, receives) = broadcast::channel(1).unwrap();
    sends.send(oldest.clone()).unwrap();
    sends.send(newest.clone()).unwrap();
    is_deserted(&oldest);
    drop((sends, receives));
    is_deserted(&newest);
}
