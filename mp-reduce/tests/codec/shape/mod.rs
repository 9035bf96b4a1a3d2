//! Random types of serde's data model. A type is a value (`Shape`), and its values are written and read by
//! hand, as `derive` would do it.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use proptest::prelude::*;
use serde::de::{DeserializeSeed, EnumAccess, Error as _, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde::ser::{
    SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const FIELDS: &[&str] = &["f0", "f1", "f2", "f3"];
const VARIANTS: &[&str] = &["V0", "V1", "V2", "V3"];

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Shape {
    Unit,
    UnitStruct,
    Bool,
    U8,
    U64,
    I64,
    U128,
    I128,
    F32,
    F64,
    Char,
    Text,
    Bytes,
    Option(Box<Shape>),
    Newtype(Box<Shape>),
    Seq(Box<Shape>),
    Map(Box<(Shape, Shape)>),
    Tuple(Vec<Shape>),
    TupleStruct(Vec<Shape>),
    Struct(Vec<Shape>),
    Enum(Vec<Variant>),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Variant {
    Unit,
    Newtype(Shape),
    Tuple(Vec<Shape>),
    Struct(Vec<Shape>),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Nothing,
    Bool(bool),
    Unsigned(u128),
    Signed(i128),
    F32(f32),
    F64(f64),
    Char(char),
    Text(String),
    Bytes(Vec<u8>),
    Some(Box<Value>),
    All(Vec<Value>),
    Variant(usize, Vec<Value>),
}

/// Value with its type.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Typed {
    shape: Rc<Shape>,
    value: Value,
}

thread_local! {
    /// Type that the next `Deserialize` of a [`Typed`] reads, since `Deserialize` has no argument for it.
    static EXPECTED: RefCell<Option<Rc<Shape>>> = const { RefCell::new(None) };
}

pub(crate) fn shapes() -> impl Strategy<Value = Shape> {
    use Shape::*;
    let leaves = prop_oneof![
        4 => Just(Unit), 4 => Just(UnitStruct), 1 => Just(Bool), 1 => Just(U8), 1 => Just(U64),
        1 => Just(I64), 1 => Just(U128), 1 => Just(I128),
        1 => Just(F32), 1 => Just(F64), 1 => Just(Char), 1 => Just(Text), 1 => Just(Bytes),
    ];
    leaves.prop_recursive(5, 24, 4, |inner| {
        let some = |most: usize| prop::collection::vec(inner.clone(), 0..most);
        let variant = prop_oneof![
            Just(Variant::Unit),
            inner.clone().prop_map(Variant::Newtype),
            prop::collection::vec(inner.clone(), 2..4).prop_map(Variant::Tuple),
            some(4).prop_map(Variant::Struct),
        ];
        prop_oneof![
            4 => inner.clone().prop_map(|s| Option(Box::new(s))),
            2 => inner.clone().prop_map(|s| Newtype(Box::new(s))),
            1 => inner.clone().prop_map(|s| Seq(Box::new(s))),
            1 => (inner.clone(), inner.clone()).prop_map(|s| Map(Box::new(s))),
            1 => prop::collection::vec(inner.clone(), 1..4).prop_map(Tuple),
            1 => some(4).prop_map(TupleStruct),
            4 => some(5).prop_map(Struct),
            2 => prop::collection::vec(variant, 1..5).prop_map(Enum),
        ]
    })
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 32
    }

    fn below(&mut self, n: u64) -> usize {
        (self.next() % n) as usize
    }

    /// Returns a random number, often at a limit where the size of its encoding changes.
    fn number(&mut self) -> u128 {
        let bits = [0, 1, 5, 7, 8, 15, 16, 31, 32, 63, 64, 127][self.below(12)];
        (1_u128 << bits).wrapping_add(self.below(3) as u128).wrapping_sub(1)
    }
}

impl Shape {
    pub(crate) fn typed(&self, seed: u64) -> Typed {
        let shape = Rc::new(self.clone());
        EXPECTED.set(Some(shape.clone()));
        Typed { shape, value: self.value(&mut Random(seed)) }
    }

    /// Returns `true` if the shape contains numbers of 128 bits.
    pub(crate) fn is_wide(&self) -> bool {
        let any = |shapes: &Vec<Shape>| shapes.iter().any(Shape::is_wide);
        match self {
            Shape::U128 | Shape::I128 => true,
            Shape::Option(s) | Shape::Newtype(s) | Shape::Seq(s) => s.is_wide(),
            Shape::Map(s) => s.0.is_wide() || s.1.is_wide(),
            Shape::Tuple(s) | Shape::TupleStruct(s) | Shape::Struct(s) => any(s),
            Shape::Enum(variants) => variants.iter().any(|v| match v {
                Variant::Unit => false,
                Variant::Newtype(s) => s.is_wide(),
                Variant::Tuple(s) | Variant::Struct(s) => any(s),
            }),
            _ => false,
        }
    }

    fn value(&self, random: &mut Random) -> Value {
        match self {
            Shape::Unit | Shape::UnitStruct => Value::Nothing,
            Shape::Bool => Value::Bool(random.below(2) == 0),
            Shape::U8 => Value::Unsigned(random.number() as u8 as u128),
            Shape::U64 => Value::Unsigned(random.number() as u64 as u128),
            Shape::U128 => Value::Unsigned(random.number()),
            Shape::I64 => Value::Signed((random.number() as i64).wrapping_mul(-1) as i128),
            Shape::I128 => Value::Signed((random.number() as i128).wrapping_neg()),
            Shape::F32 => Value::F32(random.next() as f32 / 7.0),
            Shape::F64 => Value::F64(random.next() as f64 / -7.0),
            Shape::Char => Value::Char(['a', '\0', 'ß', '🦀'][random.below(4)]),
            Shape::Text => Value::Text("ä".repeat([0, 1, 15, 16, 127, 128][random.below(6)])),
            Shape::Bytes => Value::Bytes(vec![0xc0; [0, 1, 16, 255, 256][random.below(5)]]),
            Shape::Option(_) if random.below(3) == 0 => Value::Nothing,
            Shape::Option(s) | Shape::Newtype(s) => Value::Some(Box::new(s.value(random))),
            Shape::Seq(s) => {
                let n = [0, 1, 2, 3, 16][random.below(5)];
                Value::All((0..n).map(|_| s.value(random)).collect())
            }
            Shape::Map(s) => {
                let n = random.below(4);
                let entry = |_| Value::All(vec![s.0.value(random), s.1.value(random)]);
                Value::All((0..n).map(entry).collect())
            }
            Shape::Tuple(s) | Shape::TupleStruct(s) | Shape::Struct(s) => {
                Value::All(s.iter().map(|s| s.value(random)).collect())
            }
            Shape::Enum(variants) => {
                let i = random.below(variants.len() as u64);
                Value::Variant(
                    i,
                    match &variants[i] {
                        Variant::Unit => vec![],
                        Variant::Newtype(s) => vec![s.value(random)],
                        Variant::Tuple(s) | Variant::Struct(s) => s.iter().map(|s| s.value(random)).collect(),
                    },
                )
            }
        }
    }
}

struct Of<'a>(&'a Shape, &'a Value);

impl Serialize for Typed {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Of(&self.shape, &self.value).serialize(s)
    }
}

impl Serialize for Of<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match (self.0, self.1) {
            (Shape::Unit, _) => s.serialize_unit(),
            (Shape::UnitStruct, _) => s.serialize_unit_struct("U"),
            (Shape::U8, Value::Unsigned(n)) => s.serialize_u8(*n as u8),
            (Shape::U64, Value::Unsigned(n)) => s.serialize_u64(*n as u64),
            (Shape::I64, Value::Signed(n)) => s.serialize_i64(*n as i64),
            (_, Value::Bool(v)) => s.serialize_bool(*v),
            (_, Value::Unsigned(n)) => s.serialize_u128(*n),
            (_, Value::Signed(n)) => s.serialize_i128(*n),
            (_, Value::F32(n)) => s.serialize_f32(*n),
            (_, Value::F64(n)) => s.serialize_f64(*n),
            (_, Value::Char(c)) => s.serialize_char(*c),
            (_, Value::Text(text)) => s.serialize_str(text),
            (_, Value::Bytes(bytes)) => s.serialize_bytes(bytes),
            (Shape::Option(of), Value::Some(v)) => s.serialize_some(&Of(of, v)),
            (Shape::Newtype(of), Value::Some(v)) => s.serialize_newtype_struct("N", &Of(of, v)),
            (Shape::Seq(of), Value::All(all)) => {
                let mut seq = s.serialize_seq(Some(all.len()))?;
                all.iter().try_for_each(|v| seq.serialize_element(&Of(of, v)))?;
                seq.end()
            }
            (Shape::Map(of), Value::All(all)) => {
                let mut map = s.serialize_map(Some(all.len()))?;
                for entry in all {
                    let Value::All(entry) = entry else { unreachable!() };
                    map.serialize_entry(&Of(&of.0, &entry[0]), &Of(&of.1, &entry[1]))?;
                }
                map.end()
            }
            (Shape::Tuple(of), Value::All(all)) => {
                let mut tuple = s.serialize_tuple(of.len())?;
                of.iter().zip(all).try_for_each(|(of, v)| tuple.serialize_element(&Of(of, v)))?;
                tuple.end()
            }
            (Shape::TupleStruct(of), Value::All(all)) => {
                let mut tuple = s.serialize_tuple_struct("T", of.len())?;
                of.iter().zip(all).try_for_each(|(of, v)| tuple.serialize_field(&Of(of, v)))?;
                tuple.end()
            }
            (Shape::Struct(of), Value::All(all)) => {
                let mut fields = s.serialize_struct("S", of.len())?;
                for (i, (of, v)) in of.iter().zip(all).enumerate() {
                    fields.serialize_field(FIELDS[i], &Of(of, v))?;
                }
                fields.end()
            }
            (Shape::Enum(variants), Value::Variant(i, all)) => {
                let (index, name) = (*i as u32, VARIANTS[*i]);
                match &variants[*i] {
                    Variant::Unit => s.serialize_unit_variant("E", index, name),
                    Variant::Newtype(of) => s.serialize_newtype_variant("E", index, name, &Of(of, &all[0])),
                    Variant::Tuple(of) => {
                        let mut tuple = s.serialize_tuple_variant("E", index, name, of.len())?;
                        of.iter().zip(all).try_for_each(|(of, v)| tuple.serialize_field(&Of(of, v)))?;
                        tuple.end()
                    }
                    Variant::Struct(of) => {
                        let mut fields = s.serialize_struct_variant("E", index, name, of.len())?;
                        for (i, (of, v)) in of.iter().zip(all).enumerate() {
                            fields.serialize_field(FIELDS[i], &Of(of, v))?;
                        }
                        fields.end()
                    }
                }
            }
            (Shape::Option(_), Value::Nothing) => s.serialize_none(),
            (shape, value) => unreachable!("{value:?} of {shape:?}"),
        }
    }
}

impl<'de> Deserialize<'de> for Typed {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let shape = EXPECTED.with_borrow(Clone::clone).unwrap();
        let value = Read(&shape).deserialize(d)?;
        Ok(Typed { shape, value })
    }
}

/// Deserializer seed that reads a value of a type.
struct Read<'a>(&'a Shape);

impl<'de> DeserializeSeed<'de> for Read<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        match self.0 {
            Shape::Bool => bool::deserialize(d).map(Value::Bool),
            Shape::U8 => u8::deserialize(d).map(|n| Value::Unsigned(n.into())),
            Shape::U64 => u64::deserialize(d).map(|n| Value::Unsigned(n.into())),
            Shape::U128 => u128::deserialize(d).map(Value::Unsigned),
            Shape::I64 => i64::deserialize(d).map(|n| Value::Signed(n.into())),
            Shape::I128 => i128::deserialize(d).map(Value::Signed),
            Shape::F32 => f32::deserialize(d).map(Value::F32),
            Shape::F64 => f64::deserialize(d).map(Value::F64),
            Shape::Char => char::deserialize(d).map(Value::Char),
            Shape::Text => String::deserialize(d).map(Value::Text),
            Shape::Unit => <()>::deserialize(d).map(|()| Value::Nothing),
            Shape::UnitStruct => d.deserialize_unit_struct("U", self),
            Shape::Bytes => d.deserialize_byte_buf(self),
            Shape::Option(_) => d.deserialize_option(self),
            Shape::Newtype(_) => d.deserialize_newtype_struct("N", self),
            Shape::Seq(_) => d.deserialize_seq(self),
            Shape::Map(_) => d.deserialize_map(self),
            Shape::Tuple(of) => d.deserialize_tuple(of.len(), self),
            Shape::TupleStruct(of) => d.deserialize_tuple_struct("T", of.len(), self),
            Shape::Struct(of) => d.deserialize_struct("S", &FIELDS[..of.len()], self),
            Shape::Enum(of) => d.deserialize_enum("E", &VARIANTS[..of.len()], self),
        }
    }
}

impl<'de> Visitor<'de> for Read<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Value, E> {
        match self.0 {
            Shape::UnitStruct | Shape::Option(_) => Ok(Value::Nothing),
            _ => Err(E::invalid_type(serde::de::Unexpected::Unit, &self)),
        }
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        match self.0 {
            Shape::Option(of) => Read(of).deserialize(d).map(|v| Value::Some(Box::new(v))),
            _ => Err(D::Error::invalid_type(serde::de::Unexpected::Option, &self)),
        }
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        match self.0 {
            Shape::Newtype(of) => Read(of).deserialize(d).map(|v| Value::Some(Box::new(v))),
            _ => Err(D::Error::invalid_type(serde::de::Unexpected::NewtypeStruct, &self)),
        }
    }

    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Value, E> {
        match self.0 {
            Shape::Bytes => Ok(Value::Bytes(bytes.to_vec())),
            _ => Err(E::invalid_type(serde::de::Unexpected::Bytes(bytes), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        match self.0 {
            Shape::Seq(of) => {
                while let Some(value) = seq.next_element_seed(Read(of))? {
                    all.push(value);
                }
            }
            // A derived newtype reads its only element in this way.
            Shape::Newtype(of) => {
                let value = seq.next_element_seed(Read(of))?.ok_or_else(|| A::Error::custom("too short"))?;
                return Ok(Value::Some(Box::new(value)));
            }
            Shape::Tuple(of) | Shape::TupleStruct(of) | Shape::Struct(of) => {
                for of in of {
                    let value = seq.next_element_seed(Read(of))?;
                    all.push(value.ok_or_else(|| A::Error::custom("too short"))?);
                }
            }
            _ => return Err(A::Error::invalid_type(serde::de::Unexpected::Seq, &self)),
        }
        Ok(Value::All(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        match self.0 {
            Shape::Map(of) => {
                while let Some(key) = map.next_key_seed(Read(&of.0))? {
                    all.push(Value::All(vec![key, map.next_value_seed(Read(&of.1))?]));
                }
            }
            Shape::Struct(of) => {
                while let Some(Name(i)) = map.next_key_seed(Names(FIELDS))? {
                    if i != all.len() || i >= of.len() {
                        return Err(A::Error::custom(format!("field {i} in place {}", all.len())));
                    }
                    all.push(map.next_value_seed(Read(&of[i]))?);
                }
                if all.len() < of.len() {
                    return Err(A::Error::missing_field(FIELDS[all.len()]));
                }
            }
            _ => return Err(A::Error::invalid_type(serde::de::Unexpected::Map, &self)),
        }
        Ok(Value::All(all))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Value, A::Error> {
        let Shape::Enum(variants) = self.0 else {
            return Err(A::Error::invalid_type(serde::de::Unexpected::Enum, &self));
        };
        let (Name(i), content) = data.variant_seed(Names(VARIANTS))?;
        let all = |shapes: &Vec<Shape>| Shape::Struct(shapes.clone());
        let value = match variants.get(i).ok_or_else(|| A::Error::custom("no such variant"))? {
            Variant::Unit => {
                content.unit_variant()?;
                return Ok(Value::Variant(i, vec![]));
            }
            Variant::Newtype(of) => {
                return Ok(Value::Variant(i, vec![content.newtype_variant_seed(Read(of))?]));
            }
            Variant::Tuple(of) => content.tuple_variant(of.len(), Read(&all(of)))?,
            Variant::Struct(of) => content.struct_variant(&FIELDS[..of.len()], Read(&all(of)))?,
        };
        let Value::All(all) = value else { unreachable!() };
        Ok(Value::Variant(i, all))
    }
}

/// Deserializer seed that reads a name, which must be one of these names.
struct Names(&'static [&'static str]);

struct Name(usize);

impl<'de> DeserializeSeed<'de> for Names {
    type Value = Name;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Name, D::Error> {
        d.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Names {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one of {:?}", self.0)
    }

    fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<Name, E> {
        Ok(Name(n as usize))
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Name, E> {
        let at = self.0.iter().position(|known| *known == name);
        at.map(Name).ok_or_else(|| E::unknown_variant(name, self.0))
    }
}
