//! Tests of the nesting limit, which is the same for writing and reading. Every value that is sent can be
//! read, even by a thread with a stack of the default size. A value with deeper nesting is returned to its
//! sender.

use std::collections::BTreeMap;
use std::fmt::Debug;

use mp_reduce::{Bundle, Message, pack, unpack};
use serde::{Deserialize, Serialize};

/// Runs `f` in a thread with a stack of the default size.
fn in_a_thread<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    in_a_thread_of(2 << 20, f)
}

fn in_a_thread_of<R: Send + 'static>(stack: usize, f: impl FnOnce() -> R + Send + 'static) -> R {
    std::thread::Builder::new().stack_size(stack).spawn(f).unwrap().join().unwrap()
}

/// Sizes of the stacks on which very deep values are refused: the default size, and a small size.
const STACKS: [usize; 2] = [2 << 20, 256 << 10];

/// Checks that a value of each depth up to `most` either round-trips or is returned with the error for deep
/// nesting. All values of up to `at_least` levels must round-trip. If a value is returned, all deeper values
/// must be returned, too.
#[track_caller]
fn arrives_or_comes_back<T: Message + Send>(
    at_least: usize,
    most: usize,
    deep: fn(usize) -> T,
    depth: fn(&T) -> usize,
) {
    in_a_thread(move || {
        let mut refused = None;
        for levels in (0..300).chain([400, DEEP, 512, 600, 1024, 2000, most]).filter(|n| *n <= most) {
            match pack(deep(levels)) {
                Ok(envelope) => {
                    let arrived = unpack::<T>(envelope).unwrap_or_else(|e| panic!("{levels} were put: {e}"));
                    assert_eq!(depth(&arrived), levels);
                    assert_eq!(refused, None, "{levels}");
                }
                Err(error) => {
                    assert!(levels > at_least, "{levels}: {error}");
                    assert!(error.to_string().contains("nested"), "{error}");
                    assert_eq!(depth(&error.value), levels);
                    refused = refused.or(Some(levels));
                }
            }
        }
        assert!(refused.is_some());
    });
}

#[derive(Serialize, Deserialize, Debug)]
struct InList {
    id: u64,
    inner: Vec<InList>,
}

#[derive(Serialize, Deserialize, Debug)]
struct Chain {
    next: Option<Box<Chain>>,
}

#[derive(Serialize, Deserialize, Debug)]
struct Newtype(Option<Box<Newtype>>);

#[derive(Serialize, Deserialize, Debug)]
enum Tree {
    Leaf,
    Newtype(Box<Tree>),
    Tuple(u8, Box<Tree>),
    Fields { name: String, of: Box<Tree> },
    Map(BTreeMap<String, Tree>),
    Maybe(Option<Box<Tree>>),
}

#[derive(Serialize, Deserialize, Debug)]
#[serde(tag = "kind")]
enum Internally {
    Leaf,
    Inner { of: Box<Internally> },
}

#[derive(Serialize, Deserialize, Debug)]
#[serde(untagged)]
enum Untagged {
    Leaf(u8),
    Inner(Vec<Untagged>),
}

#[derive(Serialize, Deserialize, Debug)]
#[serde(tag = "kind", content = "of")]
enum Adjacently {
    Leaf,
    Inner(Box<Adjacently>),
}

#[derive(Serialize, Deserialize, Debug)]
struct Flat {
    #[serde(flatten)]
    rest: BTreeMap<String, Flat>,
}

#[derive(Message)]
#[message(crate = mp_reduce)]
struct Derived {
    children: Bundle<Vec<Derived>>,
    name: String,
}

/// Number of levels up to which every value must round-trip.
const LEAST: usize = 20;
/// Number of nested structs that must round-trip, each in an `Option` or a `Vec` of the outer struct.
const DEEP: usize = 500;

#[test]
fn deep_structs_in_lists_arrive_or_are_returned() {
    fn depth(v: &InList) -> usize {
        v.inner.first().map_or(0, |v| 1 + depth(v))
    }
    fn deep(n: usize) -> InList {
        (0..n).fold(InList { id: 0, inner: vec![] }, |v, id| InList { id: id as u64, inner: vec![v] })
    }
    arrives_or_comes_back(DEEP, 2_000, deep, depth);
}

#[test]
fn deep_box_chains_arrive_or_are_returned() {
    fn depth(v: &Chain) -> usize {
        v.next.as_ref().map_or(0, |v| 1 + depth(v))
    }
    fn deep(n: usize) -> Chain {
        (0..n).fold(Chain { next: None }, |v, _| Chain { next: Some(Box::new(v)) })
    }
    arrives_or_comes_back(DEEP, 3_000, deep, depth);
    fn newtypes(v: &Newtype) -> usize {
        v.0.as_ref().map_or(0, |v| 1 + newtypes(v))
    }
    arrives_or_comes_back(
        DEEP,
        3_000,
        |n| (0..n).fold(Newtype(None), |v, _| Newtype(Some(Box::new(v)))),
        newtypes,
    );
}

fn depth(tree: &Tree) -> usize {
    match tree {
        Tree::Leaf | Tree::Maybe(None) => 0,
        Tree::Newtype(of) | Tree::Tuple(_, of) | Tree::Fields { of, .. } | Tree::Maybe(Some(of)) => {
            1 + depth(of)
        }
        Tree::Map(map) => map.values().next().map_or(0, |of| 1 + depth(of)),
    }
}

#[test]
fn deep_enum_variants_arrive_or_are_returned() {
    let steps: [fn(Tree) -> Tree; 5] = [
        |of| Tree::Newtype(Box::new(of)),
        |of| Tree::Tuple(1, Box::new(of)),
        |of| Tree::Fields { name: "a name".into(), of: Box::new(of) },
        |of| Tree::Map(BTreeMap::from([("key".to_string(), of)])),
        |of| Tree::Maybe(Some(Box::new(of))),
    ];
    static STEP: std::sync::Mutex<fn(Tree) -> Tree> = std::sync::Mutex::new(|tree| tree);
    for step in steps {
        *STEP.lock().unwrap() = step;
        arrives_or_comes_back(
            LEAST,
            1_000,
            |n| (0..n).fold(Tree::Leaf, |v, _| (*STEP.lock().unwrap())(v)),
            depth,
        );
    }
}

#[test]
fn deep_tagged_enums_arrive_or_are_returned() {
    fn internally(v: &Internally) -> usize {
        if let Internally::Inner { of } = v { 1 + internally(of) } else { 0 }
    }
    arrives_or_comes_back(
        LEAST,
        400,
        |n| (0..n).fold(Internally::Leaf, |v, _| Internally::Inner { of: Box::new(v) }),
        internally,
    );
    fn adjacently(v: &Adjacently) -> usize {
        if let Adjacently::Inner(of) = v { 1 + adjacently(of) } else { 0 }
    }
    arrives_or_comes_back(
        LEAST,
        1_000,
        |n| (0..n).fold(Adjacently::Leaf, |v, _| Adjacently::Inner(Box::new(v))),
        adjacently,
    );
    fn untagged(v: &Untagged) -> usize {
        if let Untagged::Inner(of) = v { 1 + untagged(&of[0]) } else { 0 }
    }
    arrives_or_comes_back(
        LEAST,
        400,
        |n| (0..n).fold(Untagged::Leaf(7), |v, _| Untagged::Inner(vec![v])),
        untagged,
    );
    fn flat(v: &Flat) -> usize {
        v.rest.values().next().map_or(0, |v| 1 + flat(v))
    }
    arrives_or_comes_back(
        LEAST,
        400,
        |n| {
            (0..n)
                .fold(Flat { rest: BTreeMap::new() }, |v, _| Flat { rest: BTreeMap::from([("a".into(), v)]) })
        },
        flat,
    );
}

#[test]
fn deep_nested_messages_arrive_or_are_returned() {
    fn depth(v: &Derived) -> usize {
        assert_eq!(v.name, "name");
        v.children.0.first().map_or(0, |v| 1 + depth(v))
    }
    fn deep(n: usize) -> Derived {
        (0..n).fold(node(vec![]), |v, _| node(vec![v]))
    }
    arrives_or_comes_back(LEAST, 3_000, deep, depth);
}

/// Number of levels for which no stack would be large enough.
const VERY_DEEP: usize = 100_000;

/// Checks that the value is returned to its sender unchanged. `inner` takes a level off the value, since no
/// stack is large enough for a recursive drop.
#[track_caller]
fn is_refused<T: Message + Send>(deep: fn() -> T, inner: fn(T) -> Option<T>) {
    for stack in STACKS {
        in_a_thread_of(stack, move || {
            let Err(error) = pack(deep()) else { panic!("it was put") };
            assert!(error.to_string().contains("nested"), "{error}");
            let (mut rest, mut levels) = (inner(error.value), 0);
            while let Some(value) = rest {
                (rest, levels) = (inner(value), levels + 1);
            }
            assert_eq!(levels, VERY_DEEP);
        });
    }
}

#[test]
fn refused_deep_value_returns_to_its_sender() {
    is_refused(
        || (0..VERY_DEEP).fold(Newtype(None), |v, _| Newtype(Some(Box::new(v)))),
        |v: Newtype| v.0.map(|inner| *inner),
    );
    is_refused(
        || (0..VERY_DEEP).fold(InList { id: 0, inner: vec![] }, |v, _| InList { id: 1, inner: vec![v] }),
        |mut v: InList| v.inner.pop(),
    );
    is_refused(
        || (0..VERY_DEEP).fold(Tree::Leaf, |v, _| Tree::Tuple(1, Box::new(v))),
        |v: Tree| if let Tree::Tuple(_, inner) = v { Some(*inner) } else { None },
    );
    is_refused(
        || {
            (0..VERY_DEEP)
                .fold(Flat { rest: BTreeMap::new() }, |v, _| Flat { rest: BTreeMap::from([("a".into(), v)]) })
        },
        |mut v: Flat| v.rest.pop_first().map(|(_, inner)| inner),
    );
    is_refused(
        || (0..VERY_DEEP).fold(node(vec![]), |v, _| node(vec![v])),
        |mut v: Derived| v.children.0.pop(),
    );
}

fn node(children: Vec<Derived>) -> Derived {
    Derived { children: Bundle(children), name: "name".into() }
}

/// Checks that decoding these bytes as a `T` returns the error for deep nesting, on each of the [`STACKS`].
#[track_caller]
fn is_not_read<T: Message + Send>(bytes: Vec<u8>) {
    for stack in STACKS {
        let bytes = bytes.clone();
        in_a_thread_of(stack, move || {
            let Err(error) = mp_reduce::from_bytes::<T>(bytes, mp_reduce::TypeFingerprint::<T>::new().get())
            else {
                panic!("it was read as {}", std::any::type_name::<T>())
            };
            assert!(error.to_string().contains("nested"), "{}: {error}", std::any::type_name::<T>());
        });
    }
}

/// Returns a message with one MessagePack value, after the length of the value.
fn of_message(value: Vec<u8>) -> Vec<u8> {
    let len = u32::try_from(value.len()).unwrap();
    [&[255], &len.to_le_bytes()[..], &value].concat()
}

/// The bytes are those of a sender that does not use this library.
#[test]
fn message_of_100_000_nesting_levels_is_refused() {
    #[derive(Serialize, Deserialize, Debug)]
    struct Known {
        #[serde(default)]
        known: u8,
    }
    let text = |text: &str| [&[0xa0 | text.len() as u8], text.as_bytes()].concat();
    let deep = |level: &[&[u8]]| of_message([level.concat().repeat(VERY_DEEP), vec![0xc0]].concat());
    let (kind, of, inner) = (text("kind"), text("of"), text("Inner"));
    is_not_read::<Newtype>(deep(&[&[0xc1]]));
    is_not_read::<Chain>(deep(&[&[0x81], &text("next")]));
    is_not_read::<InList>(deep(&[&[0x82], &text("id"), &[0], &text("inner"), &[0x91]]));
    is_not_read::<Tree>(deep(&[&[0x81], &text("Newtype")]));
    is_not_read::<Tree>(deep(&[&[0x81], &text("Map"), &[0x81], &text("key")]));
    is_not_read::<Internally>(deep(&[&[0x82], &kind, &inner, &of]));
    is_not_read::<Adjacently>(deep(&[&[0x82], &kind, &inner, &of]));
    is_not_read::<Flat>(deep(&[&[0x81], &text("a")]));
    // Buffered or skipped contents: sequences, maps, `Some`, and rows in sequences.
    for level in [&[0x91][..], &[0x81, 0x01], &[0xc1], &[0xdd, 0, 0, 0, 1], &[0xdf, 0, 0, 0, 1, 0x01]] {
        is_not_read::<Untagged>(deep(&[level]));
        let unknown = [&[0x81][..], &text("unknown"), &level.repeat(VERY_DEEP), &[0xc0]].concat();
        is_not_read::<Known>(of_message(unknown));
    }
    // Messages in messages: the bytes that each adds before and after the inner one.
    let [mut none, mut one] = [node(vec![]), node(vec![node(vec![])])];
    let (none, one) = (mp_reduce::to_bytes(&mut none).unwrap(), mp_reduce::to_bytes(&mut one).unwrap());
    let name = mp_reduce::to_bytes(&mut "name".to_string()).unwrap();
    let before = one.strip_suffix(&name[..]).and_then(|rest| rest.strip_suffix(&none[..])).unwrap();
    is_not_read::<Derived>([before.repeat(VERY_DEEP), none, name.repeat(VERY_DEEP)].concat());
}

/// Each level needs much stack, so the reader's stack limits the depth before the number of levels does. The
/// error contains the bytes of the message, so the value is not lost.
#[test]
fn small_stack_limits_the_nesting_of_messages() {
    #[derive(Serialize, Deserialize, Debug)]
    struct Wide {
        #[serde(with = "wide")]
        room: [u64; 1000],
        next: Option<Box<Wide>>,
    }
    mod wide {
        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        pub(crate) fn serialize<S: Serializer>(room: &[u64; 1000], s: S) -> Result<S::Ok, S::Error> {
            room[0].serialize(s)
        }
        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<[u64; 1000], D::Error> {
            u64::deserialize(d).map(|n| [n; 1000])
        }
    }
    fn deep(n: u64) -> Wide {
        (0..n).fold(Wide { room: [n; 1000], next: None }, |v, i| Wide {
            room: [i; 1000],
            next: Some(Box::new(v)),
        })
    }
    let with_stack = |size: usize, f: fn()| {
        std::thread::Builder::new().stack_size(size).spawn(f).unwrap().join().unwrap();
    };
    // 60 levels of at least 8 KB, several times: too much for a thread's stack in a debug build.
    with_stack(64 << 20, || {
        let envelope = pack(deep(60)).unwrap();
        let read = move || unpack::<Wide>(envelope);
        let small = std::thread::Builder::new().stack_size(1 << 20).spawn(read).unwrap().join().unwrap();
        let error = small.unwrap_err();
        assert!(error.to_string().contains("stack"), "{error}");
        let bytes = error.bytes().unwrap().to_vec();
        let fingerprint = mp_reduce::TypeFingerprint::<Wide>::new().get();
        let mut again = mp_reduce::from_bytes::<Wide>(bytes, fingerprint).unwrap();
        for i in (0..60).rev() {
            assert_eq!(again.room[999], i);
            again = *again.next.unwrap();
        }
    });
}

/// Each level is encoded by a separate serializer, like the captures of a closure. `to_part` and `from_part`
/// must add its levels to the depth of the message.
#[test]
fn deep_separately_encoded_values_arrive_or_return() {
    #[derive(Debug)]
    struct Part(Option<Box<Part>>);
    impl Serialize for Part {
        fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
            s.serialize_bytes(&mp_reduce::to_part(&self.0).map_err(serde::ser::Error::custom)?)
        }
    }
    impl<'de> Deserialize<'de> for Part {
        fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
            struct Bytes;
            impl serde::de::Visitor<'_> for Bytes {
                type Value = Vec<u8>;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("bytes")
                }
                fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                    Ok(bytes.to_vec())
                }
            }
            mp_reduce::from_part(&d.deserialize_bytes(Bytes)?).map(Part).map_err(serde::de::Error::custom)
        }
    }
    fn depth(part: &Part) -> usize {
        part.0.as_ref().map_or(0, |part| 1 + depth(part))
    }
    arrives_or_comes_back(LEAST, 400, |n| (0..n).fold(Part(None), |v, _| Part(Some(Box::new(v)))), depth);
}
