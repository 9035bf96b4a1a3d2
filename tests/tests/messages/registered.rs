//! Registered types of other crates, and queues for values of many types. A process can read a value only if
//! the process has registered the value's type. Otherwise the error names the type and the process.

use std::cell::Cell;
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mp::message::{AnyValue, Registered, register, register_as, register_serde, registered};
use mp::{FrozenTensor, GetError, Queue, Tensor};
use mp_tests::{DEADLINE, Outcome, give, join, next, one_process, same, send, take, travels};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Stands for another crate, whose type implements none of our traits.
mod foreign {
    #[derive(Clone, PartialEq, Debug)]
    pub(crate) struct Pattern {
        source: String,
        compiled: usize,
    }

    impl Pattern {
        pub(crate) fn new(source: &str) -> Result<Self, std::fmt::Error> {
            if source.contains('(') {
                return Err(std::fmt::Error);
            }
            Ok(Self { source: source.into(), compiled: source.len() })
        }

        pub(crate) fn source(&self) -> &str {
            &self.source
        }
    }
}

use foreign::Pattern;

mp::message::register!(Pattern, |p| Ok(p.source().to_string()), |s: String| Ok(Pattern::new(&s)?));
mp::message::register!(Point);
mp::message::register!(
    Faulty,
    |Faulty(how)| match how {
        0 => Err("it refuses to be reduced".into()),
        1 => panic!("while it is reduced"),
        how => Ok(*how),
    },
    |how: u8| match how {
        2 => Err("it refuses to be rebuilt".into()),
        3 => panic!("while it is rebuilt"),
        how => Ok(Faulty(how)),
    },
);

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Point {
    x: f64,
    y: f64,
}

#[derive(Clone, PartialEq, Debug)]
struct Faulty(u8);

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Job {
    #[serde(with = "registered")]
    pattern: Pattern,
    more: Vec<Registered<Pattern>>,
}

fn pattern(source: &str) -> Pattern {
    Pattern::new(source).unwrap()
}

/// The type is in fields, in lists, a message by itself, an argument (which is read before any function of
/// the worker runs) and a result.
#[test]
fn registered_type_of_another_crate_round_trips() {
    same(&[Job {
        pattern: pattern("a+b"),
        more: vec![Registered(pattern("")), Registered(pattern(&"x".repeat(20_000)))],
    }]);
    same(&[Registered(pattern("a+b"))]);
    let worker = |_: usize, job: Job| {
        if job.pattern == pattern("a") { Ok(Registered(job.pattern)) } else { Err("another one") }
    };
    let results = mp::spawn(worker, Job { pattern: pattern("a"), more: vec![] }, 2).unwrap();
    assert_eq!(results, [Registered(pattern("a")), Registered(pattern("a"))]);
}

fn all_kinds() -> Vec<AnyValue> {
    vec![
        AnyValue::new(pattern("a*")),
        AnyValue::new(Point { x: 1.5, y: -2.0 }),
        AnyValue::new(7_u64),
        AnyValue::new("a text".to_string()),
        AnyValue::new(PathBuf::from("/a")),
        AnyValue::new(Duration::from_secs(3)),
        AnyValue::new(std::io::Error::from_raw_os_error(2)),
        AnyValue::new(vec![3_u8; 100_000]),
        AnyValue::new(i128::MIN),
        AnyValue::new(()),
    ]
}

fn check<T: PartialEq + Debug + 'static>(value: AnyValue, expected: &T) {
    assert_eq!(value.downcast::<T>().as_ref().ok(), Some(expected));
}

#[test]
fn registered_types_share_one_queue() {
    travels(all_kinds, |i, value| match i {
        0 => check(value, &pattern("a*")),
        1 => check(value, &Point { x: 1.5, y: -2.0 }),
        2 => check(value, &7_u64),
        3 => check(value, &"a text".to_string()),
        4 => check(value, &PathBuf::from("/a")),
        5 => check(value, &Duration::from_secs(3)),
        6 => assert_eq!(value.downcast_ref::<std::io::Error>().unwrap().raw_os_error(), Some(2)),
        7 => check(value, &vec![3_u8; 100_000]),
        8 => check(value, &i128::MIN),
        _ => check(value, &()),
    });
}

#[test]
fn registered_value_of_another_type_is_returned() {
    let value = AnyValue::new(pattern("a"));
    assert!(value.is::<Pattern>() && !value.is::<String>());
    assert!(
        format!("{value:?}").contains("foreign::Pattern") && value.type_name().ends_with("foreign::Pattern")
    );
    let mut value = value.downcast::<String>().unwrap_err();
    *value.downcast_mut::<Pattern>().unwrap() = pattern("b");
    assert_eq!(value.downcast::<Pattern>().unwrap(), pattern("b"));
}

/// Type with an `Rc`: its values stay in one thread of each process.
#[derive(Clone, PartialEq, Debug)]
struct Counted(std::rc::Rc<Cell<u32>>);

mp::message::register!(
    local Counted,
    |c| Ok(c.0.get()),
    |n: u32| Ok(Counted(std::rc::Rc::new(Cell::new(n))))
);

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Counts {
    #[serde(with = "registered")]
    first: Counted,
    more: Vec<Registered<Counted>>,
}

#[test]
fn thread_bound_type_round_trips() {
    let counted = |n| Counted(std::rc::Rc::new(Cell::new(n)));
    same(&[Counts { first: counted(7), more: vec![Registered(counted(8)), Registered(counted(9))] }]);
    // Bytes that claim to be such a type never become a value that can move between threads.
    let bytes = rmp_serde::to_vec(&(std::any::type_name::<Counted>(), ByteBuf(vec![1, 2]))).unwrap();
    let error = rmp_serde::from_slice::<AnyValue>(&bytes).unwrap_err().to_string();
    assert!(error.contains("register_local") && error.contains("Counted"), "{error}");
}

/// Value that is encoded as bytes.
struct ByteBuf(Vec<u8>);

impl Serialize for ByteBuf {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(&self.0)
    }
}

/// Attachments of a registered type's value arrive with the value.
#[test]
fn tensors_in_registered_values_round_trip() {
    type Batch = (u8, FrozenTensor<f32>);
    fn worker(_: usize, (there, back): (Queue<AnyValue>, Queue<AnyValue>)) -> Outcome {
        register_serde::<Batch>()?;
        while let Some(value) = next(&there)? {
            send(&back, value)?;
        }
        Ok(())
    }
    register_serde::<Batch>().unwrap();
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(worker, (there.clone(), back.clone()));
    let tensor = Tensor::<f32>::full([10], 2.5).unwrap().freeze();
    give(&there, AnyValue::new((3_u8, tensor.clone())));
    let (number, arrived) = take(&back).downcast::<Batch>().unwrap();
    assert_eq!((number, arrived.storage()), (3, tensor.storage()));
    there.close();
    join(&context).unwrap();
}

/// Type that the sender has registered, and the reader has not.
#[derive(Clone, PartialEq, Debug)]
struct Here(u8);

/// Type that no process has registered.
#[derive(Clone, PartialEq, Debug)]
struct Nowhere(u8);

fn know_here() -> mp::message::Result<()> {
    register(|Here(n): &Here| Ok(*n), |n: u8| Ok(Here(n)))
}

/// Returns the error of a process that gets a value of an unknown type.
fn error_of_a_stranger<T: mp::Message>(value: T) -> (u32, String) {
    fn worker<T: mp::Message>(_: usize, (there, errors): (Queue<T>, Queue<(u32, String, usize)>)) -> Outcome {
        let Err(GetError::Failed(error)) = there.get_timeout(DEADLINE) else {
            return Err("it was read".into());
        };
        let bytes = error.bytes().map_or(0, <[u8]>::len);
        send(&errors, (std::process::id(), error.to_string(), bytes))
    }
    let (there, errors) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(worker::<T>, (there.clone(), errors.clone()));
    give(&there, value);
    let (pid, error, bytes) = take(&errors);
    join(&context).unwrap();
    assert!(bytes > 0, "the error contains the message");
    (pid, error)
}

#[test]
fn unregistered_type_at_the_receiver_is_named() {
    know_here().unwrap();
    for (pid, error) in
        [error_of_a_stranger(AnyValue::new(Here(3))), error_of_a_stranger(vec![Registered(Here(3))])]
    {
        for part in ["registered::Here is not registered in rank-0", &format!("(pid {pid})"), "register!"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

#[test]
fn unregistered_value_is_refused_and_returned() {
    let queue = Queue::bounded(1).unwrap();
    let error = queue.put(vec![AnyValue::new(Nowhere(3))]).unwrap_err();
    let text = error.to_string();
    let this = format!("Nowhere is not registered in process {}", std::process::id());
    assert!(text.contains("at [0]") && text.contains(&this), "{text}");
    assert_eq!(error.into_value().remove(0).downcast::<Nowhere>().unwrap(), Nowhere(3));
    let queue = Queue::bounded(1).unwrap();
    let error = queue.put(Registered(Nowhere(4))).unwrap_err();
    assert!(error.to_string().contains("Nowhere is not registered"), "{error}");
    assert_eq!(error.into_value().0, Nowhere(4));
}

/// If one consumer can't read a leased message, another consumer gets it.
#[test]
fn unreadable_leased_message_goes_to_another() {
    fn stranger(_: usize, (there, errors): (Queue<AnyValue>, Queue<String>)) -> Outcome {
        match there.get_lease_timeout(DEADLINE) {
            Err(error) => send(&errors, error.to_string()),
            Ok(_) => Err("it was read".into()),
        }
    }
    know_here().unwrap();
    let (there, errors) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(stranger, (there.clone(), errors.clone()));
    give(&there, AnyValue::new(Here(5)));
    let error = take(&errors);
    assert!(error.contains("Here is not registered in rank-0"), "{error}");
    join(&context).unwrap();
    let lease = there.get_lease_timeout(DEADLINE).unwrap().unwrap();
    assert_eq!(lease.downcast_ref::<Here>(), Some(&Here(5)));
    lease.ack();
}

#[test]
fn second_registration_with_other_functions_fails() {
    know_here().unwrap();
    know_here().expect("the same functions");
    let error = register(|Here(n): &Here| Ok(*n), |n: u8| Ok(Here(n + 1))).unwrap_err().to_string();
    assert!(
        error.contains("Here is registered already") && error.contains("with other functions"),
        "{error}"
    );
    let added = 1;
    // A closure with captures may be a different function each time.
    struct Captured(u8);
    let captured = || register(move |Captured(n): &Captured| Ok(n + added), |n: u8| Ok(Captured(n)));
    captured().unwrap();
    assert!(captured().unwrap_err().to_string().contains("registered already"));
    struct Named;
    // `PathBuf` is registered in every process.
    let error = register_as("PathBuf", |_: &Named| Ok(()), |()| Ok(Named)).unwrap_err().to_string();
    same(&[Registered(PathBuf::from("/"))]);
    assert!(error.contains("PathBuf"), "{error}");
}

#[test]
fn failing_registered_function_error_names_the_type() {
    let queue = Queue::bounded(1).unwrap();
    for (how, says) in [(0, "it refuses to be reduced"), (1, "a panic: while it is reduced")] {
        let error = queue.put((1_u8, AnyValue::new(Faulty(how)))).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("Faulty can't be reduced") && text.contains(says), "{text}");
        assert_eq!(error.into_value().1.downcast::<Faulty>().unwrap(), Faulty(how));
    }
    for (how, says) in [(2, "it refuses to be rebuilt"), (3, "a panic: while it is rebuilt")] {
        give(&queue, (1, AnyValue::new(Faulty(how))));
        let error = queue.get().map(drop).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("Faulty can't be rebuilt") && text.contains(says) && text.contains("at [1]"),
            "{text}"
        );
        let GetError::Failed(error) = error else { panic!("another error: {error}") };
        assert!(error.bytes().is_some());
    }
    give(&queue, (1, AnyValue::new(Faulty(4))));
    assert_eq!(take(&queue).1.downcast::<Faulty>().unwrap(), Faulty(4));
}

/// The first conversion returns a value of its own type, and the second one sends its own value. Both would
/// never end.
#[test]
fn endless_reduction_of_a_value_is_an_error() {
    #[derive(Clone)]
    struct Endless;
    register(|_: &Endless| Ok(AnyValue::new(Endless)), |_: AnyValue| Ok(Endless)).unwrap();
    let queue = Queue::bounded(1).unwrap();
    let error = queue.put(AnyValue::new(Endless)).unwrap_err().to_string();
    assert!(error.contains("nested") && error.len() < 40_000, "{}", error.len());
    struct Sends;
    let reduce = |_: &Sends| match Queue::bounded(1)?.put(Registered(Sends)) {
        Ok(()) => Ok(()),
        Err(error) => Err(error.to_string().into()),
    };
    register(reduce, |()| Ok(Sends)).unwrap();
    let error = Queue::bounded(1).unwrap().put(Registered(Sends)).unwrap_err().to_string();
    assert!(error.contains("nested"), "{}", error.len());
    // The thread can send other values as before.
    give(&queue, AnyValue::new(1_u8));
}

thread_local! {
    static QUEUE: Cell<Option<Queue<AnyValue>>> = const { Cell::new(None) };
}

/// The registered conversions of a type put messages into the queue through which a value of the type is
/// sent.
#[test]
fn registered_functions_may_use_the_values_queue() {
    struct Chatty(u8);
    let reduce = |Chatty(n): &Chatty| {
        let queue = QUEUE.take().ok_or("no queue")?;
        queue.put(AnyValue::new(*n - 1))?;
        QUEUE.set(Some(queue));
        Ok(*n)
    };
    let rebuild = |n: u8| {
        let queue = QUEUE.take().ok_or("no queue")?;
        queue.put(AnyValue::new(n + 1))?;
        Ok(Chatty(n))
    };
    register(reduce, rebuild).unwrap();
    let queue = Queue::bounded(4).unwrap();
    QUEUE.set(Some(queue.clone()));
    give(&queue, AnyValue::new(Chatty(5)));
    check(take(&queue), &4_u8);
    assert_eq!(take(&queue).downcast::<Chatty>().unwrap().0, 5);
    check(take(&queue), &6_u8);
}

/// Value that announces three elements, and has two.
#[derive(PartialEq, Debug)]
struct Liar;

impl Serialize for Liar {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        use serde::ser::{SerializeMap, SerializeSeq};
        struct Map;
        impl Serialize for Map {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                let mut map = s.serialize_map(Some(0))?;
                map.serialize_entry("only", &1)?;
                map.end()
            }
        }
        let mut seq = s.serialize_seq(Some(300))?;
        seq.serialize_element("first")?;
        seq.serialize_element(&Map)?;
        seq.end()
    }
}

impl<'de> Deserialize<'de> for Liar {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (first, map) = <(String, std::collections::BTreeMap<String, u8>)>::deserialize(d)?;
        if (first.as_str(), map.get("only")) == ("first", Some(&1)) {
            Ok(Liar)
        } else {
            Err(serde::de::Error::custom("torn"))
        }
    }
}

/// The length of a sequence is the number of received elements, whatever was announced. So the values after
/// it are read correctly.
#[test]
fn registered_value_of_wrong_length_keeps_later_ones() {
    register_serde::<Liar>().unwrap();
    let queue = Queue::bounded(1).unwrap();
    give(&queue, (AnyValue::new(Liar), 77_u8));
    let (value, behind) = take(&queue);
    check(value, &Liar);
    assert_eq!(behind, 77);
}

/// A received name must be the name of a registered type.
#[test]
fn forged_type_name_or_bytes_are_errors() {
    #[derive(Serialize)]
    struct Forged(String, Vec<u8>);
    for (name, bytes, says) in [
        ("no::such::Type", vec![1], "no::such::Type is not registered"),
        ("u64", vec![0xa1, b'x'], "u64"),
        ("PathBuf", vec![], "PathBuf"),
        ("String", vec![0xdb, 0xff, 0xff, 0xff, 0xff], "String"),
    ] {
        let bytes = rmp_serde::to_vec(&Forged(name.into(), bytes)).unwrap();
        let error = rmp_serde::from_slice::<AnyValue>(&bytes).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// Other formats encode the registered value as bytes.
#[test]
fn registered_values_round_trip_in_other_formats() {
    let then = Registered(Instant::now());
    let bytes = rmp_serde::to_vec(&(&then, AnyValue::new(3_u8))).unwrap();
    let (arrived, any): (Registered<Instant>, AnyValue) = rmp_serde::from_slice(&bytes).unwrap();
    assert_eq!((arrived, any.downcast_ref()), (then, Some(&3_u8)));
}
