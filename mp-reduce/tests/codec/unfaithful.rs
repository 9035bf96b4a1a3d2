//! Types whose `Serialize` violates the contract of serde: wrong lengths, endless values, and messages that
//! are sent while a value is written. Each type affects only its own message.

use mp_reduce::{pack, to_bytes, unpack};
use serde::ser::{SerializeMap, SerializeSeq, SerializeTuple};
use serde::{Deserialize, Serialize, Serializer};

/// Sequence, map or tuple that announces `says` elements and writes `has` elements.
#[derive(Clone, Copy, Debug)]
struct Liar {
    kind: u8,
    says: usize,
    has: u8,
}

impl Serialize for Liar {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.kind {
            0 => {
                let mut seq = s.serialize_seq(Some(self.says))?;
                (0..self.has).try_for_each(|n| seq.serialize_element(&n))?;
                seq.end()
            }
            1 => {
                let mut map = s.serialize_map(Some(self.says))?;
                (0..self.has).try_for_each(|n| map.serialize_entry(&n, &n))?;
                map.end()
            }
            _ => {
                let mut tuple = s.serialize_tuple(self.says)?;
                (0..self.has).try_for_each(|n| tuple.serialize_element(&n))?;
                tuple.end()
            }
        }
    }
}

/// Reads a sequence or map of any length.
impl<'de> Deserialize<'de> for Liar {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> serde::de::Visitor<'de> for Any {
            type Value = (u8, u8);
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a sequence or a map")
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<(u8, u8), A::Error> {
                let mut has = 0;
                while let Some(n) = seq.next_element::<u8>()? {
                    assert_eq!(n, has);
                    has += 1;
                }
                Ok((0, has))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<(u8, u8), A::Error> {
                let mut has = 0;
                while let Some(entry) = map.next_entry::<u8, u8>()? {
                    assert_eq!(entry, (has, has));
                    has += 1;
                }
                Ok((1, has))
            }
        }
        d.deserialize_any(Any).map(|(kind, has)| Liar { kind, says: has.into(), has })
    }
}

/// Either the value is read with the elements that were written, or its sender or receiver gets an error. The
/// other values in the message are unchanged.
#[test]
fn wrong_lengths_never_corrupt_other_values() {
    let (mut arrived, mut refused) = (0, 0);
    for kind in 0..3 {
        for (says, has) in [(3, 3), (0, 3), (2, 3), (4, 3), (5, 0), (70_000, 3), (usize::MAX, 3), (15, 17)] {
            let liar = Liar { kind, says, has };
            let Ok(envelope) = pack(("before".to_owned(), liar, "after".to_owned())) else {
                refused += 1;
                continue;
            };
            match unpack::<(String, Liar, String)>(envelope) {
                Ok((before, found, after)) => {
                    assert_eq!((&before[..], found.has, &after[..]), ("before", has, "after"), "{liar:?}");
                    arrived += 1;
                }
                Err(error) => {
                    assert!(error.bytes().is_some(), "{liar:?}: {error}");
                    refused += 1;
                }
            }
            // The next message is complete.
            assert_eq!(unpack::<u64>(pack(7_u64).unwrap()).unwrap(), 7);
        }
    }
    assert!(arrived >= 3 && refused > 0, "{arrived} arrived, {refused} were refused");
}

/// Value that contains a `Some` of itself, without end.
#[derive(Debug)]
struct Endless;

impl Serialize for Endless {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_some(self)
    }
}

/// Value that encodes itself as a separate message while it is written.
#[derive(Debug)]
struct Itself;

impl Serialize for Itself {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        to_bytes(&mut Itself).map_err(serde::ser::Error::custom)?;
        s.serialize_unit()
    }
}

macro_rules! read_as_unit {
    ($($t:ident)*) => {$(
        impl<'de> Deserialize<'de> for $t {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                <()>::deserialize(d).map(|()| $t)
            }
        }
    )*};
}
read_as_unit!(Endless Itself);

#[test]
fn endless_value_is_refused() {
    for stack in [2 << 20, 256 << 10] {
        let tried = std::thread::Builder::new().stack_size(stack).spawn(|| {
            let endless = pack(Endless).unwrap_err().to_string();
            assert!(endless.contains("nested"), "{endless}");
            let itself = pack(Itself).unwrap_err().to_string();
            assert!(itself.contains("nested"), "{itself}");
            assert_eq!(unpack::<u64>(pack(7_u64).unwrap()).unwrap(), 7);
        });
        tried.unwrap().join().unwrap();
    }
}
