//! Fuzz target for the bytes of messages. A decoded value must be equal after it was encoded and decoded
//! again. Invalid bytes must cause a decoding error.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use mp_harness::hostile::Target;
use mp_reduce::{Bundle, Error, Message, TypeFingerprint, from_bytes, shared, to_bytes, unpack_plain};

/// Fuzz targets: name, function that decodes an input, and function that returns inputs. Some inputs are
/// outputs of the encoder, others are bytes that the encoder never writes. The first byte of an input selects
/// the type.
#[allow(unreachable_pub, reason = "`tools/fuzz` includes this file")]
pub const TARGETS: &[Target] = &[("values", values, seeds)];

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(untagged)]
enum Untagged {
    Number(u64),
    Row(Vec<f32>),
    Fields { x: Option<Box<Untagged>>, y: Vec<Untagged> },
    Text(String),
}

#[derive(Serialize, Deserialize, Clone, Debug)]
enum Tree {
    Leaf,
    Pair(Box<Tree>, u8),
    Fields { name: String, of: Vec<Tree> },
    Map(BTreeMap<String, Tree>),
    Maybe(Option<Option<Box<Tree>>>),
}

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(tag = "kind")]
enum Internally {
    Leaf,
    Inner { of: Box<Internally> },
}

#[derive(Serialize, Deserialize, Clone, Debug)]
struct Flat {
    id: i32,
    #[serde(flatten)]
    rest: BTreeMap<String, Vec<Option<bool>>>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
struct FuzzValues {
    id: u64,
    signed: (i8, i16, i64),
    floats: (f32, f64),
    wide: Option<u128>,
    rows: Vec<Vec<u32>>,
    letters: (char, String),
    unit: Option<Option<()>>,
    end: Option<[u8; 3]>,
}

/// Graph in which several nodes may refer to one node. The message contains each node once.
#[derive(Serialize, Deserialize)]
struct Graph {
    id: u8,
    #[serde(with = "shared")]
    to: Vec<Arc<Graph>>,
}

/// Prints only the identifier and the number of neighbors. The output of a derived implementation could
/// exceed the memory, because a node may occur in it many times.
impl Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({} to {})", self.id, self.to.len())
    }
}

/// List that allocates as many elements as the length hint announces, as a user's type may do.
#[derive(Serialize, Debug)]
#[serde(transparent)]
struct CountedSequence(Vec<u8>);

impl<'de> Deserialize<'de> for CountedSequence {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct ListVisitor;
        impl<'de> serde::de::Visitor<'de> for ListVisitor {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u8>, A::Error> {
                // More than the number of bytes of any input.
                let count = seq.size_hint().unwrap_or(0);
                assert!(count <= 1 << 17, "{count} elements are announced");
                let mut all = Vec::with_capacity(count);
                while let Some(element) = seq.next_element()? {
                    all.push(element);
                }
                Ok(all)
            }
        }
        d.deserialize_seq(ListVisitor).map(CountedSequence)
    }
}

/// Decodes a message, encodes the value, decodes the result, and compares both values.
fn read<T: Message + Debug>(bytes: &[u8]) {
    let type_of = TypeFingerprint::<T>::new().get();
    let again = |bytes: &[u8]| from_bytes::<T>(bytes.to_vec(), type_of);
    let mut value = match again(bytes) {
        Ok(value) => value,
        Err(error) => return is_of_bytes(&error, bytes),
    };
    // The encoded size of a length depends on the previously encoded value, so the second encoding is
    // compared.
    let mut written = || to_bytes(&mut value).and_then(|_| to_bytes(&mut value));
    let bytes = match written() {
        Ok(bytes) => bytes,
        // Encoding and decoding need different amounts of stack.
        Err(why) if why.to_string().contains("stack") => return,
        Err(why) => panic!("decoded, but can't be encoded: {why}"),
    };
    let mut second = match again(&bytes) {
        Ok(second) => second,
        Err(why) if why.to_string().contains("stack") => return,
        Err(why) => panic!("encoded, but can't be decoded: {why}"),
    };
    assert_eq!(format!("{second:?}"), format!("{value:?}"));
    assert!(to_bytes(&mut second).unwrap() == bytes, "the second encoding differs: {value:?}");
}

/// Decodes bytes without attachments, like a small message of a queue.
fn read_plain<T: Message + Debug>(bytes: &[u8]) {
    if let Err(error) = unpack_plain::<T>(bytes) {
        is_of_bytes(&error, bytes);
    }
}

/// Checks that the error is a decoding error and contains all bytes of the message.
fn is_of_bytes(error: &Error, bytes: &[u8]) {
    assert!(matches!(error, Error::Memory(mp_core::Error::Undecodable(_))), "{error:?}");
    assert_eq!(error.bytes(), Some(bytes), "{error:?}");
    _ = error.to_string();
}

fn values(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 11 {
        0 => read::<FuzzValues>(bytes),
        1 => read::<Untagged>(bytes),
        2 => read::<Tree>(bytes),
        3 => read::<Internally>(bytes),
        4 => read::<Flat>(bytes),
        5 => read::<Graph>(bytes),
        6 => read::<Bundle<(String, Vec<f64>)>>(bytes),
        7 => read::<Vec<Vec<Vec<()>>>>(bytes),
        8 => read_plain::<(u8, String)>(bytes),
        10 => read::<CountedSequence>(bytes),
        _ => read_plain::<u64>(bytes),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    fn of<T: Message>(which: u8, mut value: T) -> Vec<u8> {
        [vec![which], to_bytes(&mut value).unwrap_or_default()].concat()
    }
    let untagged = Untagged::Fields {
        x: Some(Box::new(Untagged::Number(7))),
        y: vec![Untagged::Row(vec![0.5; 70]), Untagged::Text("text".into())],
    };
    let leaf = || vec![Tree::Leaf, Tree::Pair(Box::new(Tree::Leaf), 3), Tree::Maybe(Some(None))];
    let map = Tree::Map(BTreeMap::from([("a".into(), Tree::Maybe(Some(Some(Box::new(Tree::Leaf)))))]));
    let tree =
        Tree::Pair(Box::new(Tree::Fields { name: "name".into(), of: [leaf(), vec![map]].concat() }), 1);
    let deep = (0..100).fold(Tree::Leaf, |of, _| Tree::Pair(Box::new(of), 1));
    let inner = Internally::Inner { of: Box::new(Internally::Inner { of: Box::new(Internally::Leaf) }) };
    let flat = Flat { id: -5, rest: BTreeMap::from([("k".into(), vec![Some(true), None])]) };
    let last = Arc::new(Graph { id: 1, to: vec![] });
    let middle = Arc::new(Graph { id: 2, to: vec![last.clone(), last.clone()] });
    let graph = Graph { id: 3, to: vec![middle.clone(), last, middle] };
    let values = FuzzValues {
        id: 1 << 40,
        signed: (-3, -300, i64::MIN),
        floats: (0.5, -1e300),
        wide: Some(1 << 100),
        rows: vec![vec![1; 70], vec![], vec![1, 70_000]],
        letters: ('ä', "t".repeat(300)),
        unit: Some(Some(())),
        end: Some([1, 2, 3]),
    };
    // Inputs that no encoder writes, nested as deeply as their size allows.
    let forged =
        |which: u8, value: Vec<u8>| [&[which, 255][..], &(value.len() as u32).to_le_bytes(), &value].concat();
    let pairs = |n: usize| [b"\x81\xa4Pair\x92".repeat(n), b"\xa4Leaf".to_vec(), vec![1; n]].concat();
    vec![
        forged(2, pairs(130)),
        forged(2, pairs(5000)),
        forged(1, vec![0x91; 30_000]),
        forged(0, [&b"\x81\xa1x"[..], &[0x91; 30_000]].concat()),
        // A list that claims four thousand million elements, and has one.
        forged(10, b"\xdd\xff\xff\xff\xff\x01".to_vec()),
        of(0, values),
        of(1, untagged),
        of(2, tree),
        of(2, deep),
        of(3, inner),
        of(4, flat),
        of(5, graph),
        of(6, Bundle(("text".to_owned(), vec![0.25; 40]))),
        of(7, vec![vec![vec![(); 3]; 2]; 2]),
        of(8, (7_u8, "text".to_owned())),
        of(9, 70_000_u64),
        of(10, CountedSequence(vec![1, 2, 3])),
        of(10, CountedSequence(vec![7; 70_000])),
    ]
}

#[test]
fn mutated_message_bytes_decode_or_fail() {
    mp_harness::hostile::short(TARGETS);
}
