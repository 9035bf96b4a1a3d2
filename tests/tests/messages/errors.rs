//! Errors of this library in messages: `Result<T, mp::Error>` and similar types arrive as the same variant,
//! with their texts and their sources.

use std::error::Error as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mp::connection::RecvIntoError;
use mp::list::ListError;
use mp::manager::{CallError, ManagerError};
use mp::message::{ErrorChain, Message, MessageError, Undecodable, pack, unpack};
use mp::process::{ExitDetail, ExitStatus, GaveUp, ProcessStatus, Signal};
use mp::queue::TypeRefusal;
use mp::queue::broadcast::RecvError;
use mp::sync::{AcquireError, BarrierError, Deadlock};
use mp::{
    DType, Error, GetError, Lock, LockError, Manager, Pool, PutError, Queue, SharedMemory, SpawnError,
    StartMethod, TaskError, Tensor, closure, wait,
};
use mp_tests::{DEADLINE, failure, one_process, travels};

/// Returns everything that a log shows of an error.
fn shown(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    let all = std::iter::successors(Some(error), |error| (**error).source());
    all.map(ToString::to_string).collect()
}

/// Checks that errors arrive unchanged through a queue of results, also from a second process.
#[track_caller]
fn arrive<E: Message + std::error::Error>(errors: impl Fn() -> Vec<E>)
where
    Result<u8, E>: Message,
{
    let before = errors();
    travels(
        || errors().into_iter().map(Err).collect(),
        |i, arrived: Result<u8, E>| {
            let arrived = arrived.unwrap_err();
            let sent = &before[i];
            assert_eq!(std::mem::discriminant(&arrived), std::mem::discriminant(sent), "{i}: {sent}");
            assert_eq!(shown(&arrived), shown(sent), "{i}");
            assert!(format!("{sent:?}").starts_with(&sent.to_string()), "{sent:?}");
            assert_eq!(
                (format!("{arrived:?}"), format!("{arrived:#?}")),
                (format!("{sent:?}"), format!("{sent:#?}"))
            );
        },
    );
}

fn io(number: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(number)
}

fn odd_path() -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(vec![b'/', 0xff, b'x']).into()
}

fn of_memory() -> Vec<Error> {
    let other = std::io::Error::other("ä".parse::<u8>().unwrap_err());
    let strategy = "ram".parse::<mp::memory::SharingStrategy>().unwrap_err();
    let member = mp::Arena::current().unwrap().me().unwrap();
    let text = || "why".to_string();
    vec![
        Error::Os { what: "opening it", source: io(2) },
        Error::Os { what: "opening it", source: other },
        Error::Directory { path: odd_path(), what: "it is no directory", source: io(20) },
        Error::OutOfMemory { asked: 1 << 40, left: 7, limit: "the limit".into() },
        Error::ArenaFull { what: "messages in flight", asked: 1, limit: 2 },
        Error::OutOfDescriptors(text()),
        Error::TooManyDescriptors(text()),
        Error::NotAnArena(text()),
        Error::ArenaExists("do it before"),
        Error::Version { what: "the layout", theirs: 1, ours: u64::MAX },
        Error::Local,
        Error::Forked,
        Error::Held { what: "the lock", holder: member, pid: 7 },
        Error::InvalidArgument(text()),
        Error::LimitExceeded(text()),
        Error::Unsupported(text()),
        Error::Shape(text()),
        Error::OutOfBounds(text()),
        Error::DType { expected: DType::BF16, found: DType::F32 },
        Error::NonLeaf,
        Error::OutsideMessage("a tensor"),
        Error::Unsendable(text()),
        Error::Malformed(text()),
        Error::Stale(text()),
        Error::NoInvitation(text()),
        Undecodable::of_message::<u8>(Error::Forked, &[1, 2, 3]),
        Undecodable::of_value::<String>("a[3].b".into(), text(), &[0xff; 100]),
        Error::NotPut(text()),
        Error::Interrupted,
        Error::NotShareable(text()),
        strategy,
    ]
}

#[test]
fn memory_errors_round_trip_in_messages() {
    arrive(of_memory);
    // Methods of the received error work, too.
    let full = Error::ArenaFull { what: "messages in flight", asked: 1, limit: 2 };
    assert!(unpack::<Error>(pack(full).unwrap()).unwrap().is_out_of_envelopes());
    let missing = SharedMemory::open("/no-such-memory-of-this-test").map(drop).unwrap_err();
    let arrived = unpack::<Error>(pack(missing).unwrap()).unwrap();
    let source = arrived.source().map(ToString::to_string).unwrap_or_default();
    assert!(source.contains("No such file"), "{arrived:?}: {source}");
}

/// Sources of other crates arrive as their texts.
#[test]
fn foreign_error_source_arrives_as_text() {
    let sent = Error::Os { what: "x", source: std::io::Error::other("ä".parse::<u8>().unwrap_err()) };
    let Error::Os { source, .. } = unpack::<Error>(pack(sent).unwrap()).unwrap() else {
        panic!("another error")
    };
    let chain = source.get_ref().and_then(|inner| inner.downcast_ref::<ErrorChain>()).unwrap();
    assert_eq!(chain.to_string(), "invalid digit found in string");
    assert!(chain.debug().contains("InvalidDigit"), "{}", chain.debug());
}

#[test]
fn message_and_queue_errors_round_trip_in_messages() {
    arrive(|| {
        let of_another = mp_reduce::from_bytes::<String>(vec![1, 2], 0).map(drop).unwrap_err();
        vec![MessageError::Memory(Error::NonLeaf), of_another]
    });
    let member = mp::Arena::current().unwrap().me().unwrap();
    let refusal = || Box::new(TypeRefusal { sent: "A".into(), expected: "B".into() });
    let failed = || MessageError::Memory(Error::Unsendable("why".into()));
    arrive(|| {
        vec![
            PutError::Full(7_u8),
            PutError::Closed(7),
            PutError::Deserted { value: 7, last: Some(member), pid: 3 },
            PutError::Disconnected(7),
            PutError::NoReceivers { value: 7, channel: "rate".into() },
            PutError::TypeRefused { value: 7, refusal: refusal() },
            PutError::Interrupted(7),
            PutError::TooLarge { value: 7, bytes: 100, limit: 10 },
            PutError::Failed { value: 7, error: failed() },
        ]
    });
    arrive(|| {
        let queue = Queue::<u8>::bounded(1).unwrap();
        let empty = queue.try_get().unwrap_err();
        vec![
            empty,
            GetError::Leased { holders: Vec::new() },
            GetError::Deserted { last: None, pid: 3 },
            GetError::Disconnected,
            GetError::TypeRefused(refusal()),
            GetError::Interrupted,
            GetError::Failed(failed()),
        ]
    });
    arrive(|| vec![RecvIntoError::TooShort(vec![1, 2]), RecvIntoError::Get(GetError::Disconnected)]);
    // The value in the error arrives, too.
    let refused = PutError::Closed(Tensor::from_slice(&[1_u8, 2], [2]).unwrap().freeze());
    let arrived = unpack::<PutError<mp::FrozenTensor<u8>>>(pack(refused).unwrap()).unwrap();
    assert_eq!(arrived.into_value().as_slice().unwrap(), [1, 2]);
}

#[test]
fn lock_errors_round_trip_in_messages() {
    arrive(|| {
        vec![AcquireError::TooMany { limit: 3 }, AcquireError::NotKept, AcquireError::Failed(Error::Forked)]
    });
    arrive(|| vec![BarrierError::Broken, BarrierError::TimedOut { arrived: 1, parties: 3, missing: vec![] }]);
    let (member, cycle) = (mp::Arena::current().unwrap().me().unwrap(), deadlock());
    assert_eq!(cycle.steps.len(), 2, "{cycle}");
    let of_lock = || {
        vec![
            LockError::OwnerDied { member, pid: 7 },
            LockError::Held { holder: member, pid: 0 },
            LockError::WouldDeadlock,
            LockError::Deadlock(cycle.clone()),
            LockError::Failed(Error::Os { what: "waiting for it", source: io(4) }),
        ]
    };
    arrive(of_lock);
    arrive(|| {
        let of_list = vec![
            ListError::NoSlot { slot: 3, len: 2 },
            ListError::NoRoom { slot: 1, asked: 9, room: 8 },
            ListError::Torn { slot: 1 },
            ListError::NotText { slot: 0 },
            ListError::Malformed("why".into()),
            ListError::Held,
            ListError::Failed(Error::Forked),
        ];
        of_list.into_iter().chain(of_lock().into_iter().map(ListError::Lock)).collect()
    });
}

/// Makes two threads wait for each other, and returns the error of one of them.
fn deadlock() -> Box<Deadlock> {
    let (a, b) = (Lock::new(0_u8).unwrap().named("a"), Lock::new(0_u8).unwrap());
    let both_have_one = std::sync::Barrier::new(2);
    let take = |first: &Lock<u8>, second: &Lock<u8>| {
        let _first = first.lock().unwrap();
        both_have_one.wait();
        second.lock().map(drop).err()
    };
    let mut ends = std::thread::scope(|scope| {
        let other = scope.spawn(|| take(&b, &a));
        [take(&a, &b), other.join().unwrap()]
    });
    match ends.iter_mut().find_map(Option::take) {
        Some(LockError::Deadlock(cycle)) => cycle,
        other => panic!("no deadlock: {other:?}"),
    }
}

#[test]
fn broadcast_errors_round_trip_in_messages() {
    arrive(|| {
        vec![
            RecvError::Lagged(u64::MAX),
            RecvError::Closed,
            RecvError::Empty,
            RecvError::Interrupted,
            RecvError::Failed(MessageError::Memory(Error::Os { what: "reading it", source: io(5) })),
        ]
    });
}

#[test]
fn manager_errors_round_trip_in_messages() {
    let manager = Manager::start().unwrap();
    let proxy = manager.create(|| 1_u8).unwrap();
    // Each call is on a separate line, because errors contain the line.
    let raise = || proxy.call(closure!([] |_n: &mut u8| Err::<(), _>("no such file"))).unwrap_err();
    let unreadable = || match Undecodable::of_value::<String>("a[3].b".into(), "why".into(), &[0xff; 100]) {
        Error::Undecodable(undecodable) => Some(Arc::new(*undecodable)),
        other => panic!("{other:?}"),
    };
    let gone = manager.create(|| 2_u8).unwrap();
    gone.free().unwrap();
    let CallError::Freed { call } = gone.call(closure!([] |n: &mut u8| *n)).unwrap_err() else {
        panic!("the call has succeeded, although the object was freed")
    };
    let timeout = Duration::from_millis(1500);
    arrive(|| {
        vec![
            raise(),
            CallError::TimedOut { call: call.clone(), timeout, server: 7, address: None, sent: true },
            CallError::Freed { call: call.clone() },
            CallError::ServerGone { server: 7 },
            CallError::OwnObject { call: call.clone() },
            CallError::Cycle { call: call.clone(), waiting: vec![call.clone(), call.clone()] },
            CallError::NoSuchType { name: "A".into(), known: vec!["B".into()] },
            CallError::NoSuchMethod { call: call.clone(), known: vec!["b".into(), "c".into()] },
            CallError::NoSuchObject { name: "a".into(), known: vec![] },
            CallError::WrongType { call: call.clone(), found: "u16".into() },
            CallError::Arguments { why: "why".into(), undecodable: None },
            CallError::Arguments { why: "why".into(), undecodable: unreadable() },
            CallError::Value { why: "why".into(), undecodable: unreadable() },
            CallError::NoThread { why: "why".into() },
            CallError::Interrupted,
            CallError::Failed(MessageError::Memory(Error::Forked)),
        ]
    });
    let arrived: CallError = unpack(pack(CallError::Freed { call: call.clone() }).unwrap()).unwrap();
    assert!(matches!(&arrived, CallError::Freed { call: there } if *there == call), "{arrived}");
    let processes = failure(&one_process(|_: usize, (): ()| Err::<(), _>("no such file"), ()));
    arrive(|| {
        vec![
            ManagerError::Start(SpawnError::NotInitialised),
            ManagerError::Server(processes.clone()),
            ManagerError::Killed { server: 7, grace: timeout },
            ManagerError::Connect(mp::connect("@mp-no-such-address").map(drop).unwrap_err()),
            ManagerError::Incompatible("why".into()),
            ManagerError::Failed(MessageError::Memory(Error::Forked)),
        ]
    });
    manager.shutdown(DEADLINE).unwrap();
}

/// A process sends the failure of another process, of any kind, to a third process.
#[test]
fn process_errors_round_trip_in_messages() {
    let errors = || {
        let raised = failure(&one_process(|_: usize, (): ()| Err::<(), _>("no such file"), ()));
        let exited =
            failure(&one_process(|_: usize, (): ()| -> Result<(), String> { std::process::exit(7) }, ()));
        let launch = mp::SpawnOptions::nprocs(1).executable(odd_path());
        let launch = mp::start_processes(|_: usize, (): ()| {}, (), launch).map(drop).unwrap_err();
        let context = one_process(|_: usize, (): ()| {}, ());
        let no_rank = context.status(9).map(drop).unwrap_err();
        _ = mp_tests::join(&context);
        let supervised = mp::Process::builder()
            .restart(mp::process::Restart::on_failure(1))
            .spawn(|(): ()| Err::<(), _>("again"), ())
            .unwrap();
        let gave_up = supervised.join().unwrap_err();
        assert!(matches!(&gave_up, SpawnError::GaveUp(_)), "{gave_up}");
        vec![raised, exited, launch, no_rank, gave_up, SpawnError::NotInitialised]
    };
    // Called once, because each start has other names and numbers.
    let once = errors();
    arrive(|| once.clone());
    let SpawnError::GaveUp(gave_up) = once[4].clone() else { panic!("another error") };
    let arrived: GaveUp = unpack(pack(*gave_up.clone()).unwrap()).unwrap();
    assert_eq!((arrived.attempts, arrived.earlier.len()), (gave_up.attempts, gave_up.earlier.len()));
    assert_eq!(arrived.who, gave_up.who);
    let status = ProcessStatus::Failed(once[0].clone());
    let arrived: ProcessStatus = unpack(pack(status).unwrap()).unwrap();
    assert!(matches!(arrived, ProcessStatus::Failed(error) if error.to_string() == once[0].to_string()));
    mp_tests::same(&[(StartMethod::Spawn, Signal::TERM, ExitStatus::Code(3), ExitDetail::NoValue)]);
}

#[test]
fn task_errors_round_trip_in_messages() {
    let pool = Pool::builder().processes(1).name("named").build().unwrap();
    let once = vec![
        pool.apply(|x: String| x.parse::<u8>(), "x".to_string()).map(drop).unwrap_err(),
        pool.apply(|(): ()| -> u8 { std::process::abort() }, ()).map(drop).unwrap_err(),
        pool.task(|(): ()| std::thread::sleep(DEADLINE)) // sleep: it is what the time-out ends
            .timeout(std::time::Duration::from_millis(20))
            .retry_if(1, |_| true)
            .apply(())
            .unwrap_err(),
        TaskError::Cancelled,
        TaskError::Interrupted,
        TaskError::Terminated,
        TaskError::Closed { pool: Some(Arc::from("named")) },
    ];
    assert_eq!(once[2].attempts().count(), 2);
    arrive(|| once.clone());
    let arrived: TaskError = unpack(pack(once[2].clone()).unwrap()).unwrap();
    assert_eq!(arrived.attempts(), once[2].attempts());
}

/// A worker sends a `Result` with an [`Error`] through a queue, and `wait` reports that the result is ready.
#[test]
fn result_with_a_library_error_is_a_message() {
    let (queue, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let worker = |_: usize, (queue, back): (Queue<u8>, Queue<Result<u8, Error>>)| -> mp_tests::Outcome {
        let got = queue.get_timeout(DEADLINE)?.ok_or("closed")?;
        mp_tests::send(
            &back,
            Tensor::<u8>::zeros([2, 2]).and_then(|t| t.freeze().select(got.into(), 0).map(|_| got)),
        )
    };
    let context = one_process(worker, (queue.clone(), back.clone()));
    mp_tests::give(&queue, 9);
    wait(&[&back as &dyn mp::Waitable], Some(DEADLINE)).unwrap();
    let error = mp_tests::take(&back).unwrap_err();
    assert!(matches!(error, Error::OutOfBounds(_)), "{error:?}");
    mp_tests::join(&context).unwrap();
}

/// Returns the source texts of all crates that users get.
fn sources() -> Vec<(PathBuf, String)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let crates = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let ours = |path: &PathBuf| path.to_string_lossy().contains("/mp-") && path.is_dir();
    let mut folders: Vec<PathBuf> = crates.filter(ours).collect();
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|end| end == "rs") => {
                    sources.push((path.clone(), std::fs::read_to_string(path).unwrap()));
                }
                false => {}
            }
        }
    }
    sources
}

/// `unwrap`, and a `main` that returns an error, print the `Debug` text. Errors for `serde` are exempt,
/// because no call returns them.
#[test]
fn no_error_type_derives_debug() {
    const INTERNAL: [&str; 3] = ["CodecError", "ProbedVisitor", "WireError"];
    let sources = sources();
    let name_of = |line: &str| {
        let (_, rest) = line.split_once("Error for ").filter(|_| line.trim_start().starts_with("impl"))?;
        Some(rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned())
    };
    let derived = |text: &str| -> Vec<String> {
        let mut lines = text.lines();
        let mut names = Vec::new();
        while lines.any(|line| line.starts_with("#[derive(") && line.contains("thiserror::Error")) {
            let declared = lines.find(|line| !line.starts_with("#["));
            let mut words = declared.unwrap_or_default().split(|c: char| !c.is_alphanumeric());
            words.find(|word| matches!(*word, "struct" | "enum"));
            names.extend(words.next().map(str::to_owned));
        }
        names
    };
    let mut checked = 0;
    for (path, text) in &sources {
        let names = text.lines().filter_map(name_of).chain(derived(text));
        for name in names.filter(|name| !INTERNAL.contains(&name.as_str())) {
            let declares = |line: &&str| {
                ["struct", "enum"].iter().any(|kind| {
                    let rest = line.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
                    let rest =
                        rest.strip_prefix(kind).and_then(|rest| rest.strip_prefix(&*format!(" {name}")));
                    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
                })
            };
            let lines: Vec<&str> = text.lines().collect();
            let Some(at) = lines.iter().position(declares) else { continue };
            let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
            let derives =
                attributes.filter(|line| line.starts_with("#[derive")).any(|line| line.contains("Debug"));
            assert!(!derives, "{}: {name} derives Debug: use readable_debug!", path.display());
            checked += 1;
        }
    }
    assert!(checked > 30, "only {checked} error types were found");
}

#[test]
fn debug_of_errors_matches_display() {
    use mp::data::plan::PlanError;
    let differs = |what| PlanError::StateDiffers { what, state: "3".into(), plan: "4".into() };
    let changed = format!("{:?}", differs("len"));
    assert!(
        changed.contains("len is 3 in the state, 4 in the plan; if the dataset was changed"),
        "{changed}"
    );
    assert!(changed.contains("allow_changed_dataset(true)") && changed == differs("len").to_string());
    assert!(!differs("world").to_string().contains("allow_changed_dataset"));
    let too_few = Pool::new(0).map(drop).unwrap_err();
    assert!(matches!(&too_few, mp::pool::PoolError::Settings(_)), "{too_few}");
    assert_eq!(format!("{too_few:?}"), too_few.to_string());
    let forked = format!("{:?}", Error::Forked);
    assert!(forked.contains("becomes a daemon") && forked.contains("before its first use of mp"), "{forked}");
}
