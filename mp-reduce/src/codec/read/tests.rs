//! Comparison with `rmp_serde`. The output of `rmp_serde` can be read, and changed bytes are decoded to the
//! same value by both readers. The output of `write` is the same, except for the differences that are listed
//! in `write`.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::CodecError;
use crate::codec::write::append;

const DEEPEST: u16 = mp_core::message::MAX_NESTING;
const SHALLOW: u16 = mp_core::message::nesting_depth::SHALLOW;

fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let left = Cell::new(DEEPEST);
    let value = super::from_slice(bytes, &left);
    if value.is_ok() {
        assert_eq!(left.get(), DEEPEST);
    }
    value
}

fn written<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let (mut bytes, left) = (Vec::new(), Cell::new(DEEPEST));
    append(&mut bytes, (&left, 0), value).unwrap();
    assert_eq!(left.get(), DEEPEST);
    bytes
}

fn theirs<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut serializer = rmp_serde::Serializer::new(&mut bytes).with_struct_map().with_human_readable();
    value.serialize(&mut serializer).unwrap();
    bytes
}

fn read_by_theirs<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, rmp_serde::decode::Error> {
    T::deserialize(&mut rmp_serde::Deserializer::from_read_ref(bytes).with_human_readable())
}

/// Checks that the value round-trips, and that its bytes are an error if truncated at any position. Also
/// changes each byte, and checks that this reader and `rmp_serde` decode the same value, unless one of them
/// returns an error.
fn arrives<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T) {
    let (bytes, others) = (written(&value), theirs(&value));
    assert_eq!(from_slice::<T>(&bytes).unwrap(), value, "{bytes:02x?}");
    assert_eq!(from_slice::<T>(&others).unwrap(), value, "{others:02x?}");
    // `rmp_serde` writes a unit struct as an empty array, and `Some` of one in the same way.
    let nothings =
        |bytes: &[u8]| bytes.iter().map(|b| if *b == 0x90 { 0xc0 } else { *b }).collect::<Vec<_>>();
    if !bytes.contains(&0xc1) {
        assert_eq!(nothings(&bytes), nothings(&others), "{value:?}");
    }
    for cut in 0..bytes.len() {
        assert!(from_slice::<T>(&bytes[..cut]).is_err(), "{value:?} cut at {cut}");
    }
    let firsts = (0xc0..0xe0).chain([0, 1, 0x7f, 0x80, 0x81, 0x90, 0x91, 0xa0, 0xa2, 0xbf, 0xe0, 0xff]);
    for i in (0..bytes.len()).take(100) {
        for other in firsts.clone() {
            let mut bytes = bytes.clone();
            bytes[i] = other;
            let (ours, theirs) = (from_slice::<T>(&bytes), read_by_theirs::<T>(&bytes));
            // Compared as text, since NaN does not equal itself.
            if let (Ok(ours), Ok(theirs)) = (&ours, &theirs) {
                assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{bytes:02x?}");
            }
        }
    }
}

#[test]
fn numbers_near_powers_of_two_round_trip() {
    for at in 0..64 {
        let edge = 1_u64 << at;
        for n in [edge - 1, edge, edge + 1, !edge] {
            arrives(n);
            arrives(n as i64);
            arrives((n as u8, n as u16, n as u32));
            arrives((n as i8, n as i16, n as i32));
        }
    }
    for n in [0.0, -1.5, f64::MAX, f64::INFINITY] {
        arrives((n, n as f32));
    }
    let wide = (i128::MIN, u128::MAX, 0_i128);
    assert_eq!(from_slice::<(i128, u128, i128)>(&written(&wide)).unwrap(), wide);
    arrives((true, false, 'a', '\u{1f980}', ()));
    assert!(from_slice::<f64>(&written(&f64::NAN)).unwrap().is_nan());
}

#[test]
fn texts_and_collections_of_any_length_round_trip() {
    for len in [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536] {
        let text = "a".repeat(len);
        assert_eq!(from_slice::<String>(&written(&text)).unwrap(), text);
        let many: Vec<u16> = (0..len as u32).map(|n| n as u16).collect();
        assert_eq!(from_slice::<Vec<u16>>(&written(&many)).unwrap(), many);
        let map: BTreeMap<u32, ()> = (0..len as u32).map(|n| (n, ())).collect();
        assert_eq!(from_slice::<BTreeMap<u32, ()>>(&written(&map)).unwrap(), map);
    }
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
struct Plain {
    id: u64,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    maybe: Option<i32>,
    #[serde(rename = "a name of more than thirty-one bytes, which is no short text", default)]
    long: Vec<f32>,
    #[serde(alias = "last", default)]
    end: (u8, Unit),
    inner: Option<Box<Plain>>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
struct Unit;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Wrapped(Vec<Plain>);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Flat {
    first: u8,
    #[serde(flatten)]
    plain: Plain,
    #[serde(flatten)]
    rest: HashMap<String, i64>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Variants {
    Unit,
    Newtype(u16),
    Option(Option<u8>),
    Empty(()),
    Tuple(i8, String),
    Struct { x: f64, y: Option<Box<Variants>> },
    Deep(Box<Variants>),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u32),
    Negative(i64),
    Text(String),
    Fields { x: u8 },
    Others(Vec<Untagged>),
    Nothing,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Unit,
    Point { x: i32 },
    Plain(Plain),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", content = "content")]
enum Adjacent {
    Unit,
    Tuple(i32, String),
    Point { x: i32 },
}

fn plain() -> Plain {
    let inner = Plain { name: "inner — ünïcode".into(), maybe: Some(-7), ..Plain::default() };
    let (long, end) = (vec![0.5, -1.0], (9, Unit));
    Plain { id: 1 << 40, name: "outer".into(), maybe: None, long, end, inner: Some(Box::new(inner)) }
}

#[test]
fn nested_and_flattened_structs_round_trip() {
    arrives(plain());
    arrives(Wrapped(vec![plain(), Plain::default()]));
    arrives((Unit, Some(Unit), vec![Unit; 3]));
    let rest = HashMap::from([("z".into(), -1)]);
    let flat = Flat { first: 1, plain: plain(), rest };
    assert_eq!(from_slice::<Flat>(&written(&flat)).unwrap(), flat);
    arrives((Duration::from_nanos(1_234_567_890), Some("text".to_string()), Ok::<u8, String>(3)));
    arrives(std::net::IpAddr::from([127, 0, 0, 1]));
}

/// The fields are in another order, some are unknown, and one has its alias as its name.
#[test]
fn struct_fields_decode_in_any_order() {
    #[derive(Serialize)]
    struct Other {
        inner: Option<()>,
        unknown: (u8, &'static str),
        last: (u8, Unit),
        name: &'static str,
        id: u8,
    }
    let other = Other { inner: None, unknown: (1, "?"), last: (2, Unit), name: "a name", id: 3 };
    let got: Plain = from_slice(&written(&other)).unwrap();
    assert_eq!(got, Plain { id: 3, name: "a name".into(), end: (2, Unit), ..Plain::default() });
    assert!(from_slice::<Plain>(&written(&BTreeMap::from([("id", 1)]))).is_err(), "no name");
    let twice = [written(&"id"), written(&1), written(&"id"), written(&2)].concat();
    assert!(from_slice::<Plain>(&[vec![0x82], twice].concat()).is_err(), "a field twice");
}

#[test]
fn enums_of_each_serde_representation_round_trip() {
    use Variants::*;
    let deep = Struct { x: 1.5, y: Some(Box::new(Deep(Box::new(Newtype(700))))) };
    for v in [Unit, Newtype(300), Option(None), Option(Some(1)), Empty(()), Tuple(-1, "t".into()), deep] {
        arrives(v);
    }
    use Untagged::*;
    let others = Others(vec![Number(1), Negative(-1), Text("t".into()), Fields { x: 3 }, Nothing]);
    arrives(others);
    for t in [Tagged::Unit, Tagged::Point { x: -1 }, Tagged::Plain(plain())] {
        assert_eq!(from_slice::<Tagged>(&written(&t)).unwrap(), t);
    }
    for a in [Adjacent::Unit, Adjacent::Tuple(1, "x".into()), Adjacent::Point { x: 4 }] {
        assert_eq!(from_slice::<Adjacent>(&written(&a)).unwrap(), a);
    }
}

/// The values are byte strings, and extension values with a type number.
#[test]
fn byte_strings_and_extensions_round_trip() {
    struct Bytes(Vec<u8>);
    impl Serialize for Bytes {
        fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
            s.serialize_bytes(&self.0)
        }
    }
    for len in [0, 1, 255, 256, 70_000] {
        let bytes: Vec<u8> = (0..len).map(|n: u32| n as u8).collect();
        let binary = written(&Bytes(bytes.clone()));
        assert_eq!(from_slice::<Vec<u8>>(&binary).unwrap(), bytes);
        assert_eq!(from_slice::<std::ffi::CString>(&written(&c"abc")).unwrap().as_c_str(), c"abc");
    }
    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    #[serde(rename = "_ExtStruct")]
    struct Extension((i8, Data));
    #[derive(PartialEq, Debug)]
    struct Data(Vec<u8>);
    impl Serialize for Data {
        fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
            s.serialize_bytes(&self.0)
        }
    }
    impl<'de> Deserialize<'de> for Data {
        fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl serde::de::Visitor<'_> for Visitor {
                type Value = Data;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("bytes")
                }
                fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Data, E> {
                    Ok(Data(bytes.to_vec()))
                }
            }
            d.deserialize_bytes(Visitor)
        }
    }
    for len in [1, 2, 4, 8, 16, 17, 300, 70_000] {
        let two = || (Extension((-5, Data(vec![7; len]))), 3_u8);
        let bytes = written(&two());
        assert_eq!(from_slice::<(Extension, u8)>(&bytes).unwrap(), two());
        assert!(from_slice::<(Extension, u8)>(&bytes[..bytes.len() - 2]).is_err());
    }
}

/// Garbage in lengths causes no allocation, and garbage in nesting causes no deep recursion.
#[test]
fn hostile_messagepack_bytes_decode_to_errors() {
    for first in [0xdb, 0xc6, 0xdd, 0xdf] {
        let bytes = [first, 255, 255, 255, 255, 1, 2, 3];
        assert!(from_slice::<Vec<u64>>(&bytes).is_err());
        assert!(from_slice::<String>(&bytes).is_err());
        assert!(from_slice::<HashMap<u8, ()>>(&bytes).is_err());
        assert!(from_slice::<Plain>(&bytes).is_err());
    }
    assert!(from_slice::<String>(&[0xa2, 0xc3, 0x28]).is_err(), "no UTF-8");
    assert!(from_slice::<u8>(&[0xc1]).is_err() && from_slice::<Option<u8>>(&[0xc1]).is_err());
    assert!(from_slice::<Option<Option<u8>>>(&[0xc1; 5000]).is_err());
    assert!(from_slice::<serde::de::IgnoredAny>(&[0xc1; 5000]).is_err());
    assert!(from_slice::<(u8, u8)>(&[0x93, 1, 2, 3]).is_err(), "one too many");

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Nested(Vec<Nested>);
    let nested = |n: u16| (0..n).fold(vec![0x90], |inner, _| [vec![0x91], inner].concat());
    assert!(from_slice::<Nested>(&nested(SHALLOW / 2 - 1)).is_ok());
    assert!(from_slice::<Nested>(&nested(DEEPEST)).is_err());
    let deep = [written(&"Deep"), vec![]].concat();
    let chain = |n: u16| {
        let inner = written(&Variants::Unit);
        (0..n).fold(inner, |inner, _| [vec![0x81], deep.clone(), inner].concat())
    };
    assert!(from_slice::<Variants>(&chain(SHALLOW)).is_ok());
    assert!(from_slice::<Variants>(&chain(DEEPEST + 1)).is_err());
    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Endless(Option<Box<Endless>>);
    assert!(from_slice::<Endless>(&[1]).is_err());
}
