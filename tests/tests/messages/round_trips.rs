//! Every sendable type of the standard library arrives unchanged from a second process, whatever its value.
//! Some types are encoded by serde itself, and some by this library.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::error::Error;
use std::ffi::{CString, OsString};
use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::{NonZero, Saturating, Wrapping};
use std::ops::{Bound, Range, RangeFrom, RangeInclusive, RangeTo};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mp::Queue;
use mp::message::{ErrorChain, Reduced};
use mp_tests::{Outcome, give, join, next, one_process, send, take};
use proptest::collection::{btree_map, btree_set, hash_map, hash_set, vec};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Number of values of each type.
const CASES: u32 = 48;

fn echo<T: Serialize + DeserializeOwned + 'static>(_: usize, (there, back): (Queue<T>, Queue<T>)) -> Outcome {
    while let Some(value) = next(&there)? {
        send(&back, value)?;
    }
    Ok(())
}

/// Sends values to another process, which sends them back. `seen` returns the part to compare.
fn returns_as<T, S>(values: impl Strategy<Value = S>, make: impl Fn(S) -> T, seen: impl Fn(&T) -> S)
where
    T: Serialize + DeserializeOwned + 'static,
    S: PartialEq + Debug + Clone,
{
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(echo::<T>, (there.clone(), back.clone()));
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(value in values)| {
        let sent = make(value.clone());
        prop_assert_eq!(&seen(&sent), &value, "before it is sent");
        give(&there, sent);
        prop_assert_eq!(seen(&take(&back)), value, "of {}", std::any::type_name::<T>());
    });
    there.close();
    join(&context).unwrap();
}

fn returns<T>(values: impl Strategy<Value = T>)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug + Clone + 'static,
{
    returns_as(values, |value| value, T::clone);
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..300)
}

fn duration() -> impl Strategy<Value = Duration> {
    (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos))
}

#[test]
fn numbers_round_trip_in_messages() {
    returns(any::<(bool, char, u8, u16, u32, u64, usize)>());
    returns(any::<(i8, i16, i32, i64, isize)>());
    returns(any::<(u128, i128, Option<u128>)>());
    returns(prop_oneof![Just(u128::MAX), Just(0), any::<u128>()]);
    returns(prop_oneof![Just(i128::MIN), Just(-1), any::<i128>()]);
    returns(vec(any::<i128>(), 0..9));
    returns(any::<char>());
    returns(any::<bool>());
    returns(any::<Option<Option<bool>>>().prop_map(|option| option.map(Option::unwrap_or_default)));
    returns(
        (1..=u64::MAX, 1..=u8::MAX).prop_map(|(a, b)| (NonZero::new(a).unwrap(), NonZero::new(b).unwrap())),
    );
    returns(any::<i128>().prop_filter_map("zero", NonZero::new));
    returns(any::<(u32, i64)>().prop_map(|(a, b)| (Wrapping(a), Saturating(b), Reverse(a))));
}

/// All bits arrive, also of NaN, and also in tuples, options and long vectors.
#[test]
fn floats_round_trip_in_messages() {
    let odd = || prop_oneof![Just(f32::NAN.to_bits()), Just(0x7f80_0001), Just(0xffc0_1234), any::<u32>()];
    returns_as(odd(), f32::from_bits, |x| x.to_bits());
    returns_as(odd(), |bits| Some(f32::from_bits(bits)), |x| x.unwrap().to_bits());
    returns_as(
        vec(odd(), 0..6000),
        |all| all.into_iter().map(f32::from_bits).collect::<Vec<_>>(),
        |all| all.iter().map(|x| x.to_bits()).collect(),
    );
    let odd = || prop_oneof![Just(f64::NAN.to_bits()), Just(0x7ff0_0000_0000_0001), any::<u64>()];
    returns_as(odd(), f64::from_bits, |x| x.to_bits());
    returns_as((odd(), any::<u8>()), |(x, y)| (f64::from_bits(x), y), |(x, y)| (x.to_bits(), *y));
    returns_as(
        vec(odd(), 0..3000),
        |all| all.into_iter().map(f64::from_bits).collect::<VecDeque<_>>(),
        |all| all.iter().map(|x| x.to_bits()).collect(),
    );
}

#[test]
fn texts_and_names_round_trip_in_messages() {
    returns(".{0,300}");
    returns(".{0,40}".prop_map(String::into_boxed_str));
    returns_as(".{0,40}", Cow::<'static, str>::Owned, |text| text.clone().into_owned());
    returns(
        bytes().prop_map(|bytes| {
            CString::new(bytes.into_iter().filter(|b| *b != 0).collect::<Vec<_>>()).unwrap()
        }),
    );
    // serde supports these types as well, but only for paths that are valid UTF-8.
    returns(bytes().prop_map(OsString::from_vec));
    returns(bytes().prop_map(|bytes| Reduced(OsString::from_vec(bytes))));
    returns(bytes().prop_map(|bytes| Reduced(PathBuf::from(OsString::from_vec(bytes)))));
    returns(".{0,40}".prop_map(PathBuf::from));
    returns(
        vec(bytes(), 0..5)
            .prop_map(|all| Reduced(all.into_iter().map(OsString::from_vec).collect::<Vec<_>>())),
    );
}

#[test]
fn times_round_trip_in_messages() {
    returns(duration());
    let by =
        || (0..1_u64 << 40, 0..1_000_000_000_u32).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos));
    returns(by().prop_map(|by| UNIX_EPOCH + by));
    returns(
        (any::<bool>(), by())
            .prop_map(|(before, by)| Reduced(if before { UNIX_EPOCH - by } else { UNIX_EPOCH + by })),
    );
    returns(by().prop_map(|by| Reduced(Instant::now() + by)));
    returns((by(), any::<bool>()).prop_map(|(by, is)| Reduced(is.then(|| SystemTime::UNIX_EPOCH + by))));
}

#[test]
fn collections_round_trip_in_messages() {
    returns(vec(any::<(u8, String)>(), 0..20));
    returns(vec(any::<Option<u16>>(), 0..20).prop_map(VecDeque::from));
    returns(vec(any::<i32>(), 0..5000).prop_map(VecDeque::from));
    returns(vec(any::<String>(), 0..20).prop_map(LinkedList::from_iter));
    returns(btree_map(any::<i64>(), ".{0,9}", 0..20));
    returns(hash_map(".{0,9}", vec(any::<u8>(), 0..9), 0..20));
    returns(hash_map(any::<(u8, char)>(), any::<u128>(), 0..20));
    returns(btree_set(any::<Option<i8>>(), 0..20));
    returns(hash_set(any::<u128>(), 0..20));
    returns(btree_map(any::<u8>(), btree_map(any::<bool>(), hash_set(any::<char>(), 0..4), 0..3), 0..6));
    returns_as(
        vec(any::<u32>(), 0..20).prop_map(|mut all| {
            all.sort_unstable();
            all
        }),
        BinaryHeap::from,
        |heap| heap.clone().into_sorted_vec(),
    );
    returns(any::<[i16; 7]>());
    returns(any::<[[u8; 3]; 4]>());
    returns(vec(any::<u64>(), 0..5000).prop_map(Vec::into_boxed_slice));
    returns(vec(".{0,9}", 0..9).prop_map(Vec::into_boxed_slice));
    returns_as(vec(any::<u16>(), 0..20_000), Cow::<'static, [u16]>::Owned, |all| all.clone().into_owned());
    returns(any::<((), (u8,), (u8, (i8, ((), [bool; 2]))))>());
    returns(Just(PhantomData::<String>));
    returns_as(
        (btree_map(any::<u8>(), any::<u8>(), 0..9), btree_set(any::<u8>(), 0..9)),
        |(map, set)| (BTreeMap::from_iter(map), BTreeSet::from_iter(set)),
        Clone::clone,
    );
    returns_as(
        (hash_map(any::<u8>(), any::<u8>(), 0..9), hash_set(any::<u8>(), 0..9)),
        |(map, set)| (HashMap::<_, _>::from_iter(map), HashSet::<_>::from_iter(set)),
        Clone::clone,
    );
}

#[test]
fn ranges_and_addresses_round_trip_in_messages() {
    returns(any::<(u32, u32)>().prop_map(|(a, b)| Range { start: a, end: b }));
    returns(any::<(i8, i8)>().prop_map(|(a, b)| RangeInclusive::new(a, b)));
    returns(any::<(u128, char)>().prop_map(|(a, b)| (RangeFrom { start: a }, RangeTo { end: b })));
    returns((0..3_u8, any::<u64>()).prop_map(|(which, at)| match which {
        0 => Bound::Unbounded,
        1 => Bound::Included(at),
        _ => Bound::Excluded(at),
    }));
    returns(any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))));
    returns(any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))));
    returns(
        any::<(u32, u16)>().prop_map(|(bits, port)| SocketAddr::new(Ipv4Addr::from_bits(bits).into(), port)),
    );
    // serde encodes such an address as text, which lacks its flow and scope.
    returns(
        any::<(u128, u16)>()
            .prop_map(|(bits, port)| SocketAddrV6::new(Ipv6Addr::from_bits(bits), port, 0, 0)),
    );
}

#[test]
fn cells_locks_and_boxes_round_trip_in_messages() {
    returns(any::<i64>().prop_map(Cell::new));
    returns(".{0,20}".prop_map(RefCell::new));
    returns_as(".{0,20}", Mutex::new, |lock| lock.lock().unwrap().clone());
    returns_as(any::<u128>(), RwLock::new, |lock| *lock.read().unwrap());
    returns_as(
        any::<(bool, i64, u8)>(),
        |(a, b, c)| (AtomicBool::new(a), AtomicI64::new(b), AtomicU8::new(c)),
        |(a, b, c)| (a.load(Ordering::SeqCst), b.load(Ordering::SeqCst), c.load(Ordering::SeqCst)),
    );
    returns(any::<Option<Box<(u8, Option<Box<String>>)>>>());
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Pointers {
    #[serde(with = "mp::message::shared")]
    one: Arc<String>,
    #[serde(with = "mp::message::shared")]
    same: Vec<Arc<String>>,
    #[serde(with = "mp::message::shared")]
    other: Rc<Vec<u128>>,
}

#[test]
fn shared_pointers_round_trip_in_messages() {
    let values =
        (".{0,40}", vec(any::<bool>(), 0..6), vec(any::<u128>(), 0..6)).prop_map(|(text, same, wide)| {
            let one = Arc::new(text);
            let same = same.into_iter().map(|same| if same { one.clone() } else { Arc::new((*one).clone()) });
            Pointers { same: same.collect(), one, other: Rc::new(wide) }
        });
    let pattern = |p: &Pointers| p.same.iter().map(|s| Arc::ptr_eq(s, &p.one)).collect::<Vec<_>>();
    let seen = move |p: &Pointers| (p.one.to_string(), pattern(p), p.other.to_vec());
    let make = |(text, same, wide): (String, Vec<bool>, Vec<u128>)| {
        let one = Arc::new(text);
        let same = same.into_iter().map(|same| if same { one.clone() } else { Arc::new((*one).clone()) });
        Pointers { same: same.collect(), one, other: Rc::new(wide) }
    };
    returns(values);
    returns_as((".{0,40}", vec(any::<bool>(), 0..6), vec(any::<u128>(), 0..6)), make, seen);
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
enum Tree {
    Leaf,
    Number(i128),
    Pair(f64, Option<char>),
    Named { name: String, more: BTreeMap<String, Tree> },
    Many(Vec<Tree>),
    Boxed(Box<Tree>),
    Failed(Result<Box<Tree>, String>),
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        Just(Tree::Leaf),
        any::<i128>().prop_map(Tree::Number),
        (-1e300..1e300, any::<Option<char>>()).prop_map(|(x, c)| Tree::Pair(x, c)),
        ".{0,9}".prop_map(|why| Tree::Failed(Err(why))),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Tree::Many),
            inner.clone().prop_map(|tree| Tree::Boxed(tree.into())),
            inner.clone().prop_map(|tree| Tree::Failed(Ok(tree.into()))),
            (".{0,9}", btree_map(".{0,3}", inner, 0..4)).prop_map(|(name, more)| Tree::Named { name, more }),
        ]
    })
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(tag = "kind", content = "what")]
enum Tagged {
    Unit,
    Text(String),
    Both { a: u8, b: Vec<i64> },
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(untagged)]
enum Untagged {
    Number(i64),
    Text(String),
    Fields { a: Vec<u8>, tagged: Tagged },
    Pair(bool, Option<u16>),
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Flat {
    first: u8,
    #[serde(flatten)]
    rest: BTreeMap<String, i64>,
}

#[test]
fn nested_enums_round_trip_in_messages() {
    returns(tree());
    let tagged = || {
        prop_oneof![
            Just(Tagged::Unit),
            ".{0,9}".prop_map(Tagged::Text),
            any::<(u8, Vec<i64>)>().prop_map(|(a, b)| Tagged::Both { a, b }),
        ]
    };
    returns(tagged());
    returns(prop_oneof![
        any::<i64>().prop_map(Untagged::Number),
        ".{0,9}".prop_map(Untagged::Text),
        (vec(any::<u8>(), 0..9), tagged()).prop_map(|(a, tagged)| Untagged::Fields { a, tagged }),
        any::<(bool, Option<u16>)>().prop_map(|(a, b)| Untagged::Pair(a, b)),
    ]);
    returns(
        (any::<u8>(), btree_map("[g-z]{1,5}", any::<i64>(), 0..5))
            .prop_map(|(first, rest)| Flat { first, rest }),
    );
    returns(any::<Result<u8, String>>());
    returns(any::<Result<Option<()>, Vec<Option<()>>>>());
}

fn shown(error: &(dyn Error + 'static)) -> Vec<String> {
    std::iter::successors(Some(error), |error| (**error).source()).map(ToString::to_string).collect()
}

#[test]
fn errors_and_bounds_round_trip_in_messages() {
    returns(any::<i32>().prop_map(|raw| Reduced(ExitStatus::from_raw(raw))));
    returns_as(
        0..134_i32,
        |number| Reduced(io::Error::from_raw_os_error(number)),
        |error| error.0.raw_os_error().unwrap(),
    );
    let kinds = [
        io::ErrorKind::NotFound,
        io::ErrorKind::WouldBlock,
        io::ErrorKind::InvalidData,
        io::ErrorKind::UnexpectedEof,
        io::ErrorKind::StorageFull,
        io::ErrorKind::Other,
    ];
    returns_as(
        (prop::sample::select(kinds.to_vec()), vec(".{1,20}", 0..5)),
        |(kind, texts)| {
            let inner =
                |source: Option<Nested>, text: &String| Some(Nested(text.clone(), source.map(Box::new)));
            Reduced(match texts.iter().rev().fold(None, inner) {
                None => io::Error::from(kind),
                Some(error) => io::Error::new(kind, error),
            })
        },
        |error| {
            let chain = error.0.get_ref().map(|inner| shown(inner)).unwrap_or_default();
            (error.0.kind(), chain)
        },
    );
    returns_as(
        vec(".{1,20}", 1..9),
        |texts| {
            let inner =
                |source: Option<Nested>, text: &String| Some(Nested(text.clone(), source.map(Box::new)));
            ErrorChain::new(&texts.iter().rev().fold(None, inner).unwrap())
        },
        |chain| shown(chain),
    );
}

#[derive(Debug)]
struct Nested(String, Option<Box<Nested>>);

impl std::fmt::Display for Nested {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Nested {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.1.as_deref().map(|source| source as _)
    }
}
