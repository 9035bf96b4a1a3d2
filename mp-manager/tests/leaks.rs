//! Leaks of objects and callers. A separate program, because all tests of one program share memory.

mod common;

use common::{eventually, in_use, made, manager, take, threads};
use mp_queue::Queue;
use mp_spawn::closure;

#[test]
fn freed_objects_and_callers_leave_no_resources() {
    nothing_of_an_object_is_left();
    callers_that_come_and_go_leave_nothing();
}

fn nothing_of_an_object_is_left() {
    let manager = manager();
    let first = made(&manager, closure!([] || 0_u64));
    let threads_before = threads(manager.server_pid());
    let mut before = None;
    for round in 0..4 {
        let objects: Vec<_> = (0..20).map(|_| made(&manager, closure!([] || vec![0_u8; 1000]))).collect();
        for object in &objects {
            let bytes = vec![round; 100];
            object.call(closure!([bytes] |all: &mut Vec<u8>| all.extend(bytes))).unwrap();
        }
        drop(objects);
        eventually("their threads end", || threads(manager.server_pid()) <= threads_before);
        // Processes keep buffers for their next messages, which exist after the first round.
        let (blocks, queued, _) = in_use();
        match before {
            None => before = Some(blocks),
            Some(before) => eventually("their memory is free", || in_use().0 <= before + 8),
        }
        assert_eq!(queued, 0);
    }
    assert_eq!(first.call(closure!([] |first: &mut u64| *first)).unwrap(), 0);
}

fn callers_that_come_and_go_leave_nothing() {
    let manager = manager();
    let object = made(&manager, closure!([] || 0_u64));
    let through = Queue::bounded(1).unwrap();
    let mut before = None;
    for _ in 0..3 {
        // Each received proxy has its own channel for answers. A later caller detects that the channels of
        // the others have ended.
        let received: Vec<_> = (0..50)
            .map(|_| {
                through.put(object.clone()).unwrap();
                let received = take(&through);
                received.call(closure!([] |n: &mut u64| *n += 1)).unwrap();
                received
            })
            .collect();
        drop(received);
        through.put(object.clone()).unwrap();
        take(&through).call(closure!([] |n: &mut u64| *n += 1)).unwrap();
        let before = *before.get_or_insert_with(|| {
            eventually("two proxies use few blocks", || in_use().0 < 100);
            in_use().0
        });
        eventually("ended callers have left nothing", || in_use().0 <= before + 8);
    }
}
