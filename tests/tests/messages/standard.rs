//! Types of the standard library that serde does not support, or only for some values, and this library's own
//! values. They arrive unchanged from a second process.

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mp::memory::{SharingStrategy, get_all_sharing_strategies};
use mp::message::{ErrorChain, Reduced};
use mp::process::{ExitDetail, ProcessName, Signal, get_all_start_methods};
use mp::{DType, Queue, SpawnError, StartMethod};
use mp_tests::{Outcome, failure, give, join, next, one_process, same, send, take, travels};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Fields {
    #[serde(with = "mp::message::reduced")]
    path: PathBuf,
    #[serde(with = "mp::message::reduced")]
    more: Vec<PathBuf>,
    #[serde(with = "mp::message::reduced")]
    name: Option<OsString>,
    #[serde(with = "mp::message::reduced")]
    when: SystemTime,
    #[serde(with = "mp::message::reduced")]
    then: Instant,
    #[serde(with = "mp::message::reduced")]
    end: ExitStatus,
    pause: Duration,
    wide: (u128, i128),
}

fn any_fields() -> impl Strategy<Value = Fields> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..300);
    let path = move || bytes().prop_map(|bytes| PathBuf::from(OsString::from_vec(bytes)));
    let times = (any::<bool>(), 0..1_u64 << 40, 0..1_000_000_000_u32, 0..1_u64 << 40);
    let paths = (path(), prop::collection::vec(path(), 0..4), prop::option::of(path()));
    (paths, times, any::<(i32, u128, i128)>()).prop_map(|((path, more, name), times, (raw, u, i))| {
        let (before, seconds, nanos, ahead) = times;
        let by = Duration::new(seconds, nanos);
        Fields {
            path,
            more,
            name: name.map(PathBuf::into_os_string),
            when: if before { UNIX_EPOCH - by } else { UNIX_EPOCH + by },
            then: Instant::now() + Duration::new(ahead, nanos),
            end: ExitStatus::from_raw(raw),
            pause: by,
            wide: (u, i),
        }
    })
}

/// Sends values to another process, which sends them back, through permanent queues.
fn echo<T: Serialize + serde::de::DeserializeOwned + 'static>(
    _: usize,
    (there, back): (Queue<T>, Queue<T>),
) -> Outcome {
    while let Some(value) = next(&there)? {
        send(&back, value)?;
    }
    Ok(())
}

#[test]
fn standard_types_round_trip_in_messages() {
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(echo::<Fields>, (there.clone(), back.clone()));
    proptest!(|(fields in any_fields())| {
        give(&there, fields.clone());
        prop_assert_eq!(take(&back), fields);
    });
    there.close();
    join(&context).unwrap();
}

#[test]
fn reduced_values_round_trip_as_messages() {
    let path = PathBuf::from(OsString::from_vec(vec![b'/', 0xff, b'a', 0xfe]));
    assert!(path.to_str().is_none());
    let error = Queue::bounded(1).unwrap().put(path.clone()).unwrap_err();
    assert_eq!(error.into_value(), path, "serde's own implementation refuses it");
    same(&[Reduced(path), Reduced(PathBuf::new())]);
    same(&[Reduced(Some(UNIX_EPOCH - Duration::from_nanos(1))), Reduced(None)]);
    same(&[Reduced(Instant::now()), Reduced(Instant::now() + Duration::from_secs(3600))]);
}

/// All processes of a machine have the same clock, so times can be measured between processes.
#[test]
fn instant_in_a_message_is_equal_in_another_process() {
    let worker = |_: usize, Reduced(begun): Reduced<Instant>| {
        Ok::<_, String>((begun.elapsed(), Reduced(Instant::now())))
    };
    let begun = Instant::now();
    let context = one_process(worker, Reduced(begun));
    let (there, Reduced(read)) = context.join().unwrap().remove(0);
    assert!(begun < read && read < Instant::now() && there <= begun.elapsed(), "{there:?}");
}

#[test]
fn io_errors_round_trip_in_messages() {
    let make = || {
        let missing = std::fs::File::open("/no/such/file").unwrap_err();
        let utf8 = String::from_utf8(vec![0xff]).unwrap_err();
        vec![
            Reduced(missing),
            Reduced(io::ErrorKind::BrokenPipe.into()),
            Reduced(io::Error::new(io::ErrorKind::InvalidData, utf8)),
            Reduced(io::Error::other("a text")),
            Reduced(std::io::Read::read_exact(&mut &[][..], &mut [0]).unwrap_err()),
        ]
    };
    travels(make, |i, Reduced(arrived)| {
        let Reduced(sent) = &make()[i];
        assert_eq!((arrived.kind(), arrived.raw_os_error()), (sent.kind(), sent.raw_os_error()), "{i}");
        assert_eq!(arrived.to_string(), sent.to_string(), "{i}");
    });
    let kinds = || {
        let outcomes: [Result<u8, io::Error>; 2] = [Ok(3), Err(io::Error::from_raw_os_error(32))];
        outcomes.map(Reduced).into()
    };
    travels(kinds, |i, Reduced(arrived): Reduced<Result<u8, io::Error>>| match (i, arrived) {
        (0, Ok(3)) => {}
        (1, Err(e)) => assert_eq!(e.raw_os_error(), Some(32)),
        (i, other) => panic!("{i}: {other:?}"),
    });
}

#[derive(Debug)]
struct Outer(Option<Box<dyn Error + Send + Sync>>);

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("outer")
    }
}

impl Error for Outer {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.as_deref().map(|source| source as _)
    }
}

#[test]
fn boxed_errors_keep_their_sources() {
    let chain = || {
        let inner = Outer(Some(io::Error::from_raw_os_error(2).into()));
        let error: Box<dyn Error + Send + Sync> = Box::new(Outer(Some(inner.into())));
        vec![Reduced(error)]
    };
    travels(chain, |_, Reduced(arrived)| {
        let texts = std::iter::successors(Some(&*arrived as &dyn Error), |e| (**e).source());
        let texts: Vec<_> = texts.map(ToString::to_string).collect();
        assert_eq!(texts[..2], ["outer", "outer"]);
        assert!(texts.len() == 3 && texts[2].contains("No such file"), "{texts:?}");
        let chain = arrived.downcast_ref::<ErrorChain>().unwrap();
        assert!(chain.debug().starts_with("Outer(Some("), "{}", chain.debug());
    });
    // A chain of sources that is longer than values may be nested, and an endless chain.
    let long =
        (0..1000).fold(None, |source, _| Some(Box::new(Outer(source)) as Box<dyn Error + Send + Sync>));
    let queue = Queue::bounded(1).unwrap();
    give(&queue, ErrorChain::new(&*long.unwrap()));
    let arrived = take(&queue);
    assert_eq!(std::iter::successors(Some(&arrived as &dyn Error), |e| (**e).source()).count(), 100);
}

#[test]
fn values_of_this_library_round_trip_in_messages() {
    same(get_all_start_methods());
    same(get_all_sharing_strategies());
    same(DType::ALL);
    same(&[Signal::KILL, Signal::from_number(64)]);
    let core_dumped = mp::process::ExitStatus::Signal { signal: Signal::TERM, core_dumped: true };
    same(&[mp::process::ExitStatus::Code(3), core_dumped, mp::process::ExitStatus::Unknown]);
    same(&[ExitDetail::OutOfMemory, ExitDetail::Panics(vec!["a".into()])]);
    // These values can also be given by name, as in files of settings.
    let named =
        rmp_serde::to_vec(&(StartMethod::ForkServer, SharingStrategy::FileSystem, DType::BF16)).unwrap();
    let names: (String, String, String) = rmp_serde::from_slice(&named).unwrap();
    assert_eq!(names, ("forkserver".into(), "file_system".into(), "bfloat16".into()));
    let unknown = rmp_serde::from_slice::<StartMethod>(&rmp_serde::to_vec("thread").unwrap()).unwrap_err();
    assert!(unknown.to_string().contains("expected one of `spawn`, `forkserver`, `fork`"), "{unknown}");
}

/// A process sends the failure of another process to a third process.
#[test]
fn process_failures_round_trip_in_messages() {
    let failing = |_: usize, (): ()| Err::<(), _>("no such file");
    let SpawnError::ProcessRaised(raised) = failure(&one_process(failing, ())) else {
        panic!("another error")
    };
    travels(
        || vec![(*raised).clone()],
        |_, arrived| {
            assert_eq!(
                (arrived.to_string(), format!("{arrived:#?}")),
                (raised.to_string(), format!("{raised:#?}"))
            )
        },
    );
    let exiting = |_: usize, (): ()| -> Result<(), String> { std::process::exit(7) };
    let SpawnError::ProcessExited(exited) = failure(&one_process(exiting, ())) else {
        panic!("another error")
    };
    travels(
        || vec![(*exited).clone()],
        |_, arrived| assert_eq!(format!("{arrived:#?}"), format!("{exited:#?}")),
    );
    same::<ProcessName>(std::slice::from_ref(&raised.who));
}
