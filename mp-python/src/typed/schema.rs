//! Schemas of messages, from their texts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mp_core::DType;
use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

/// Deepest nesting of types in a schema.
const DEEPEST: usize = 32;

/// Registered schemas, by their fingerprints.
static KNOWN: PerProcess<Mutex<BTreeMap<u64, Arc<Schema>>>> =
    mp_core::per_process!(Mutex::new(BTreeMap::new()));

/// Name and fields of a message.
#[derive(Debug, PartialEq)]
pub struct Schema {
    /// Text of the schema, `name(field:type,…)`.
    pub text: String,
    /// Names and types of the fields.
    pub fields: Vec<(String, Type)>,
}

/// Type of a field.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "named as in the text")]
pub enum Type {
    Bool,
    /// Integer, with its lowest and highest value.
    Int(i128, i128),
    F32,
    F64,
    Str,
    List(Box<Type>),
    Option(Box<Type>),
    Map(Box<Type>),
    Tensor(DType),
    Frozen(DType),
    Shared(DType),
    Queue(Arc<Schema>),
    Record(Arc<Schema>),
}

impl Type {
    /// `u8`.
    pub const U8: Self = Self::Int(0, u8::MAX as i128);
}

/// Names of integers.
const INTEGERS: &[(&str, i128, i128)] = &[
    ("u8", 0, u8::MAX as i128),
    ("u16", 0, u16::MAX as i128),
    ("u32", 0, u32::MAX as i128),
    ("u64", 0, u64::MAX as i128),
    ("i8", i8::MIN as i128, i8::MAX as i128),
    ("i16", i16::MIN as i128, i16::MAX as i128),
    ("i32", i32::MIN as i128, i32::MAX as i128),
    ("i64", i64::MIN as i128, i64::MAX as i128),
];

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Bool => f.write_str("bool"),
            Type::Int(low, high) => {
                let name = INTEGERS.iter().find(|(_, l, h)| (l, h) == (low, high));
                f.write_str(name.map_or("int", |(name, ..)| name))
            }
            Type::F32 => f.write_str("f32"),
            Type::F64 => f.write_str("f64"),
            Type::Str => f.write_str("str"),
            Type::List(inner) => write!(f, "list<{inner}>"),
            Type::Option(inner) => write!(f, "option<{inner}>"),
            Type::Map(inner) => write!(f, "map<{inner}>"),
            Type::Tensor(dtype) => write!(f, "tensor<{dtype}>"),
            Type::Frozen(dtype) => write!(f, "frozen<{dtype}>"),
            Type::Shared(dtype) => write!(f, "shared<{dtype}>"),
            Type::Queue(schema) => write!(f, "queue<{}>", schema.text),
            Type::Record(schema) => f.write_str(&schema.text),
        }
    }
}

impl Schema {
    /// Parses a text, and registers the schema in this process.
    ///
    /// # Errors
    /// A text with the reason.
    pub fn parse(text: &str) -> Result<Arc<Self>, String> {
        let mut parser = Parser { rest: text, depth: 0 };
        let name = parser.name();
        let schema = parser.record(name).map_err(|why| format!("{text:?} is not a schema: {why}"))?;
        if !parser.rest.is_empty() {
            return Err(format!("{text:?} is not a schema: {:?} follows it", parser.rest));
        }
        Ok(schema)
    }

    /// Returns the schema with this fingerprint, if it is registered in this process.
    pub(super) fn known(fingerprint: u64) -> Option<Arc<Self>> {
        KNOWN.lock().get(&fingerprint).cloned()
    }
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn name(&mut self) -> &'a str {
        let is_name = |c: char| c.is_alphanumeric() || "/_.-".contains(c);
        let len = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(len);
        self.rest = rest;
        name
    }

    fn skip(&mut self, mark: char) -> Result<(), String> {
        self.rest = self.rest.strip_prefix(mark).ok_or_else(|| match self.rest {
            "" => format!("{mark:?} expected at the end"),
            rest => format!("{mark:?} expected before {rest:?}"),
        })?;
        Ok(())
    }

    fn record(&mut self, name: &str) -> Result<Arc<Schema>, String> {
        if name.is_empty() {
            return Err("it has no name".into());
        }
        self.skip('(')?;
        let mut fields: Vec<(String, Type)> = Vec::new();
        while !self.rest.starts_with(')') {
            if !fields.is_empty() {
                self.skip(',')?;
            }
            let field = self.name();
            if field.is_empty() || fields.iter().any(|(known, _)| known == field) {
                return Err(format!("{field:?} is not the name of another field"));
            }
            self.skip(':')?;
            fields.push((field.to_owned(), self.of()?));
        }
        self.skip(')')?;
        let all: Vec<String> = fields.iter().map(|(name, of)| format!("{name}:{of}")).collect();
        let schema = Arc::new(Schema { text: format!("{name}({})", all.join(",")), fields });
        let fingerprint = mp_core::fnv1a(schema.text.as_bytes());
        Ok(KNOWN.lock().entry(fingerprint).or_insert(schema).clone())
    }

    /// Parses a type.
    fn of(&mut self) -> Result<Type, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("types are nested more than {DEEPEST} deep"));
        }
        let name = self.name();
        let of = match name {
            "bool" => Type::Bool,
            "f32" => Type::F32,
            "f64" => Type::F64,
            "str" => Type::Str,
            "list" => Type::List(Box::new(self.inner()?)),
            "option" => Type::Option(Box::new(self.inner()?)),
            "map" => Type::Map(Box::new(self.inner()?)),
            "tensor" => Type::Tensor(self.dtype()?),
            "frozen" => Type::Frozen(self.dtype()?),
            "shared" => Type::Shared(self.dtype()?),
            "queue" => match self.inner()? {
                Type::Record(schema) => Type::Queue(schema),
                other => return Err(format!("a queue of {other}, which is not a named message")),
            },
            name => match INTEGERS.iter().find(|(known, ..)| *known == name) {
                Some(&(_, low, high)) => Type::Int(low, high),
                None if self.rest.starts_with('(') => Type::Record(self.record(name)?),
                None => return Err(format!("{name:?} is not a type")),
            },
        };
        self.depth -= 1;
        Ok(of)
    }

    fn inner(&mut self) -> Result<Type, String> {
        self.skip('<')?;
        let inner = self.of()?;
        self.skip('>')?;
        Ok(inner)
    }

    fn dtype(&mut self) -> Result<DType, String> {
        self.skip('<')?;
        let dtype = self.name().parse().map_err(|error: mp_core::Error| error.to_string())?;
        self.skip('>')?;
        Ok(dtype)
    }
}
