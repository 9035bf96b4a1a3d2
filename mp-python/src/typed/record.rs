//! Messages whose type is a schema. They have the same bytes as a Rust type that derives `Message`.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use mp::message::{Codec, Incoming, Level, Message, Outgoing, UnsentValues};
use mp_core::Error;
use mp_tensor::{AnyTensor, DType, Frozen, Shared};
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Error as _, SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::schema::{Schema, Type};

/// Value of a field.
#[derive(Debug)]
#[allow(missing_docs, reason = "named as the types of schemas")]
pub enum Item {
    None,
    Bool(bool),
    /// Negative integer.
    Int(i64),
    /// Integer that is not negative.
    Uint(u64),
    F32(f32),
    F64(f64),
    Str(String),
    Bytes(Vec<u8>),
    List(Vec<Item>),
    Map(Vec<(String, Item)>),
    Tensor(AnyTensor),
    Frozen(AnyTensor<Frozen>),
    Shared(AnyTensor<Shared>),
    Queue(mp::Queue<Record>),
    Record(Record),
}

/// Message with a schema.
#[derive(Debug)]
pub struct Record {
    /// The schema.
    pub schema: Arc<Schema>,
    /// Values of the message's fields.
    pub items: Vec<Item>,
}

thread_local! {
    /// Schemas of the messages that this thread reads or writes, the innermost call last. `None` stands for a
    /// schema that can't be parsed. The stack avoids parsing a schema for each message.
    static SCHEMA: RefCell<Vec<Option<Arc<Schema>>>> = const { RefCell::new(Vec::new()) };
    /// Schema of the next [`FieldValue`] to read, and index of its field in the schema.
    static FIELD: RefCell<Option<(Arc<Schema>, usize)>> = const { RefCell::new(None) };
}

/// Calls `f`. Messages that `f` reads or writes have this schema.
pub(crate) fn with_schema<R>(schema: &Arc<Schema>, f: impl FnOnce() -> R) -> R {
    with(Some(schema.clone()), f)
}

fn with<R>(schema: Option<Arc<Schema>>, f: impl FnOnce() -> R) -> R {
    /// Guard that removes the schema from the stack, also after a panic.
    struct Remove;
    impl Drop for Remove {
        fn drop(&mut self) {
            SCHEMA.with_borrow_mut(Vec::pop);
        }
    }
    SCHEMA.with_borrow_mut(|all| all.push(schema));
    let _remove = Remove;
    f()
}

/// Returns the schema of the messages that this thread reads or writes now.
fn current() -> Option<Arc<Schema>> {
    SCHEMA.with_borrow(|all| all.last().cloned().flatten())
}

impl Record {
    fn read<C: Codec>(schema: &Arc<Schema>, inc: &mut Incoming) -> mp_core::Result<Self> {
        let _level = Level::enter()?;
        let mut items = Vec::with_capacity(schema.fields.len());
        for (index, (name, of)) in schema.fields.iter().enumerate() {
            let item = match of {
                Type::Tensor(dtype) => AnyTensor::decode::<C>(inc)
                    .and_then(|tensor| check(tensor.dtype(), *dtype).map(|()| Item::Tensor(tensor))),
                Type::Record(schema) => Self::read::<C>(schema, inc).map(Item::Record),
                _ => {
                    FIELD.set(Some((schema.clone(), index)));
                    C::read::<FieldValue>(inc).map(|typed| typed.0)
                }
            };
            items.push(item.map_err(|error| mp::message::in_field::<Self>(error, name))?);
        }
        Ok(Self { schema: schema.clone(), items })
    }
}

fn check(found: DType, expected: DType) -> mp_core::Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("a tensor of {found} arrived where one of {expected} is expected")))
}

impl Message for Record {
    const DYNAMIC: bool = true;

    fn schema() -> Option<String> {
        current().map(|schema| schema.text.clone())
    }

    fn with_schema<R>(schema: &str, read: impl FnOnce() -> R) -> R {
        with(Schema::parse(schema).ok(), read)
    }

    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        let _level = Level::enter()?;
        self.items.iter_mut().try_for_each(|item| match item {
            Item::Tensor(tensor) => tensor.encode::<C>(out),
            Item::Record(record) => record.encode::<C>(out),
            item => C::write(out, item),
        })
    }

    fn take_back(&mut self, back: &mut UnsentValues) {
        let Ok(_level) = Level::enter() else { return };
        for item in &mut self.items {
            match item {
                Item::Tensor(tensor) => tensor.take_back(back),
                Item::Record(record) => record.take_back(back),
                _ => {}
            }
        }
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let schema = current().ok_or_else(|| Error::InvalidArgument("no schema is known".into()))?;
        Self::read::<C>(&schema, inc)
    }
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Item::None => s.serialize_none(),
            Item::Bool(value) => s.serialize_bool(*value),
            Item::Int(value) => s.serialize_i64(*value),
            Item::Uint(value) => s.serialize_u64(*value),
            Item::F32(value) => s.serialize_f32(*value),
            Item::F64(value) => s.serialize_f64(*value),
            Item::Str(value) => s.serialize_str(value),
            // The receiver reads these bytes as `Vec<u8>`.
            Item::Bytes(value) => value.serialize(s),
            Item::List(items) => {
                let mut seq = s.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| seq.serialize_element(item))?;
                seq.end()
            }
            Item::Map(entries) => {
                let mut map = s.serialize_map(Some(entries.len()))?;
                entries.iter().try_for_each(|(key, item)| map.serialize_entry(key, item))?;
                map.end()
            }
            Item::Frozen(tensor) => tensor.serialize(s),
            Item::Shared(tensor) => tensor.serialize(s),
            Item::Queue(queue) => queue.serialize(s),
            Item::Tensor(_) | Item::Record(_) => {
                Err(S::Error::custom("an exclusive tensor or a message is a field, not a part of one"))
            }
        }
    }
}

/// Value of the field that [`FIELD`] names.
struct FieldValue(Item);

impl<'de> Deserialize<'de> for FieldValue {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (schema, index) = FIELD.take().ok_or_else(|| D::Error::custom("no type is known"))?;
        Seed(&schema.fields[index].1).deserialize(d).map(FieldValue)
    }
}

struct Seed<'a>(&'a Type);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Item;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Item, D::Error> {
        Ok(match self.0 {
            Type::Bool => Item::Bool(bool::deserialize(d)?),
            Type::Int(low, high) => {
                let value = if *low == 0 {
                    i128::from(u64::deserialize(d)?)
                } else {
                    i128::from(i64::deserialize(d)?)
                };
                if !(*low..=*high).contains(&value) {
                    return Err(D::Error::custom(format!("{value} is not a number of type {}", self.0)));
                }
                u64::try_from(value).map_or(Item::Int(value as i64), Item::Uint)
            }
            Type::F32 => Item::F32(f32::deserialize(d)?),
            Type::F64 => Item::F64(f64::deserialize(d)?),
            Type::Str => Item::Str(String::deserialize(d)?),
            Type::List(inner) if **inner == Type::U8 => Item::Bytes(Vec::deserialize(d)?),
            Type::List(inner) => d.deserialize_seq(Parts(inner))?,
            Type::Option(inner) => d.deserialize_option(Parts(inner))?,
            Type::Map(inner) => d.deserialize_map(Parts(inner))?,
            Type::Frozen(dtype) => {
                let tensor = AnyTensor::<Frozen>::deserialize(d)?;
                check(tensor.dtype(), *dtype).map_err(D::Error::custom)?;
                Item::Frozen(tensor)
            }
            Type::Shared(dtype) => {
                let tensor = AnyTensor::<Shared>::deserialize(d)?;
                check(tensor.dtype(), *dtype).map_err(D::Error::custom)?;
                Item::Shared(tensor)
            }
            Type::Queue(schema) => {
                let queue = mp::Queue::<Record>::deserialize(d)?;
                if queue.type_fingerprint() != mp_core::fnv1a(schema.text.as_bytes()) {
                    return Err(D::Error::custom(format!(
                        "a queue of {} arrived where one of {} is expected",
                        queue.type_name(),
                        schema.text
                    )));
                }
                Item::Queue(queue)
            }
            Type::Tensor(_) | Type::Record(_) => {
                return Err(D::Error::custom(
                    "an exclusive tensor or a message is a field, not a part of one",
                ));
            }
        })
    }
}

/// Reader of a list, an option or a map, whose elements have this type.
struct Parts<'a>(&'a Type);

impl<'de> Visitor<'de> for Parts<'_> {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parts of type {}", self.0)
    }

    fn visit_none<E>(self) -> Result<Item, E> {
        Ok(Item::None)
    }

    fn visit_unit<E>(self) -> Result<Item, E> {
        Ok(Item::None)
    }

    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Item, D::Error> {
        Seed(self.0).deserialize(d)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Item, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Seed(self.0))? {
            items.push(item);
        }
        Ok(Item::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Item, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            entries.push((key, map.next_value_seed(Seed(self.0))?));
        }
        Ok(Item::Map(entries))
    }
}
