//! Items of a list.

use std::fmt;

/// Content of one slot of a [`ShareableList`](crate::ShareableList).
///
/// ```
/// use mp_sync::ListItem;
///
/// assert_eq!(ListItem::from("a"), ListItem::Str("a".into()));
/// assert_eq!(ListItem::from(3), ListItem::Int(3));
/// assert_eq!(ListItem::from(None::<i64>), ListItem::None);
/// ```
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ListItem {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Bytes(Vec<u8>),
}

macro_rules! from {
    ($($t:ty => |$v:ident| $e:expr;)*) => {$(
        impl From<$t> for ListItem {
            fn from($v: $t) -> Self {
                $e
            }
        }
    )*};
}

from! {
    () => |_v| Self::None;
    bool => |v| Self::Bool(v);
    i32 => |v| Self::Int(v.into());
    u32 => |v| Self::Int(v.into());
    i64 => |v| Self::Int(v);
    f32 => |v| Self::Float(v.into());
    f64 => |v| Self::Float(v);
    &str => |v| Self::Str(v.into());
    String => |v| Self::Str(v);
    &[u8] => |v| Self::Bytes(v.into());
    Vec<u8> => |v| Self::Bytes(v);
}

impl<T: Into<ListItem>> From<Option<T>> for ListItem {
    fn from(v: Option<T>) -> Self {
        v.map_or(Self::None, Into::into)
    }
}

impl ListItem {
    /// Returns the bytes of a text or of a byte string.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Str(s) => Some(s.as_bytes()),
            Self::Bytes(b) => Some(b),
            _ => None,
        }
    }
}

impl fmt::Display for ListItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bool(v) => fmt::Display::fmt(v, f),
            Self::Int(v) => fmt::Display::fmt(v, f),
            Self::Float(v) => fmt::Display::fmt(v, f),
            Self::Str(v) => fmt::Debug::fmt(v, f),
            Self::Bytes(v) => write!(f, "{}", v.escape_ascii()),
        }
    }
}
