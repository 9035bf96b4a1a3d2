//! Callers of a manager's objects, and its server, killed at every access to shared memory.

use mp::manager::CallError;
use mp::{AnyResult, FrozenTensor, Manager, Proxy, Queue, Tensor, closure};
use mp_core::inject;
use mp_tests::kill::{KILL, for_every_access, killed};
use mp_tests::{DEADLINE, eventually, one_process};

/// Numbers of an object's calls, each once and in order.
type Log = Vec<u64>;

/// Records a number. Arguments and results must be whole.
fn note(log: &mut Log, (number, tensor): (u64, FrozenTensor<u64>)) -> Result<FrozenTensor<u64>, String> {
    if tensor.iter().any(|value| value != number) {
        return Err(format!("torn: {number}, {tensor}"));
    }
    log.push(number);
    Ok(tensor)
}

fn call(log: &Proxy<Log>, number: u64) -> Result<(), CallError> {
    let tensor = Tensor::full([300], number)?.freeze();
    let same = log.call_with(
        closure!([] |log: &mut Log, args: (u64, FrozenTensor<u64>)| note(log, args)),
        (number, tensor),
    )?;
    assert!(same.iter().all(|value| value == number), "torn: the result of {number}: {same}");
    Ok(())
}

const CALLS: u64 = 4;

fn caller(_: usize, (at, log): (u64, Proxy<Log>)) -> AnyResult<()> {
    // One call is made before, so that the proxy is warm when the script begins. The script's closure is new
    // to the object.
    call(&log, 0)?;
    inject::arm(at, KILL);
    for number in 1..CALLS {
        call(&log, number)?;
    }
    log.call(closure!([] |log: &mut Log| log.len()))?;
    Ok(())
}

#[test]
fn calls_of_a_killed_caller_run_at_most_once() {
    for_every_access(|at| {
        let manager = Manager::start().unwrap();
        let log = manager.create(Log::new).unwrap().with_timeout(DEADLINE);
        let reached = killed(&one_process(caller, (at, log.clone())));
        // Other callers continue, and their calls run after the calls of the dead caller.
        call(&log, 100).unwrap();
        let all = log.call(closure!([] |log: &mut Log| log.clone())).unwrap();
        let (last, own) = all.split_last().unwrap();
        assert_eq!(*last, 100);
        assert_eq!(own, (0..own.len() as u64).collect::<Vec<_>>(), "{at}: {all:?}");
        assert!(!own.is_empty() && (reached || own.len() as u64 == CALLS), "{at}: {all:?}");
        reached
    });
}

#[test]
fn each_call_ends_when_its_server_is_killed() {
    for_every_access(|at| {
        // A caller detects the server's death after some 100 ms.
        let at = 5 * at;
        let manager = Manager::start().unwrap();
        let log = manager.create(Log::new).unwrap().with_timeout(DEADLINE);
        let other = manager.create(|| 7_u64).unwrap().with_timeout(DEADLINE);
        call(&log, 0).unwrap();
        // The kill is armed at the end of this call. So its answer may be the server's last action, or is not
        // sent.
        let armed = log.call(closure!([at] |_log: &mut Log| inject::arm(*at, KILL)));
        let mut ended = armed.is_err();
        for number in 1..CALLS {
            match call(&log, number) {
                Ok(()) => assert!(!ended, "{at}: a call of an object of a dead server"),
                Err(error) => {
                    assert!(error.is_server_gone(), "{at}: {error}");
                    ended = true;
                }
            }
        }
        // Creates and frees objects.
        let own = manager.create(Log::new).map(drop);
        let end = other.call(closure!([] |n: &mut u64| *n));
        drop((log, other));
        if own.is_ok() && end.is_ok() {
            assert!(!ended, "{at}");
        }
        let reached = manager.shutdown(DEADLINE).is_err();
        assert!(reached || !ended, "{at}: the server was not killed, and a call failed");
        reached
    });
}

/// A caller dies with the only proxy. The server drops the object, at whatever access the caller was killed.
#[test]
fn object_is_dropped_after_its_owner_is_killed() {
    for_every_access(|at| {
        let manager = Manager::start().unwrap();
        let dropped: Queue<u64> = Queue::unbounded().unwrap();
        let owner = |_: usize,
                     (at, handle, dropped): (u64, mp::manager::ManagerHandle, Queue<u64>)|
         -> AnyResult<()> {
            inject::arm(at, KILL);
            let object = handle.create_closure(closure!([dropped] || ReportsDrop(dropped.clone())))?;
            object.call(closure!([] |reported: &mut ReportsDrop| reported.0.len()))?;
            Ok(())
        };
        let reached = killed(&one_process(owner, (at, manager.handle(), dropped.clone())));
        // Either no object was made, or it was dropped.
        let idle = |server: u32| {
            std::fs::read_dir(format!("/proc/{server}/task")).is_ok_and(|tasks| {
                tasks.flatten().all(|task| {
                    std::fs::read_to_string(task.path().join("comm"))
                        .is_ok_and(|name| !name.starts_with("object-"))
                })
            })
        };
        eventually("no object is left", || idle(manager.server_pid()));
        if !reached {
            assert_eq!(dropped.get_timeout(DEADLINE).unwrap(), Some(1));
        }
        reached
    });
}

/// Object that reports its drop.
struct ReportsDrop(Queue<u64>);

impl Drop for ReportsDrop {
    fn drop(&mut self) {
        _ = self.0.put(1);
    }
}
