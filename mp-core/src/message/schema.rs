//! Names of types, for programs in other languages.

use std::collections::{BTreeMap, HashMap};

/// Type of a field of a named message: see `name` in `#[derive(Message)]`.
///
/// The schema contains a text for each type, which is the same in every program, for any compiler and in any
/// language.
///
/// | Rust type | text |
/// |---|---|
/// | `u8` to `u64`, `i8` to `i64`, `f32`, `f64`, `bool` | the name of the Rust type |
/// | `String` | `str` |
/// | `Vec<T>` | `list<T>` |
/// | `Option<T>` | `option<T>` |
/// | `HashMap<String, T>`, `BTreeMap<String, T>` | `map<T>` |
/// | `Tensor<T>`, `FrozenTensor<T>`, `SharedTensor<T>` | `tensor<T>`, `frozen<T>`, `shared<T>` |
/// | `Queue<T>` of named messages | `queue<T>` |
/// | a named message | its schema |
///
/// ```
/// use mp_core::message::Schema;
///
/// assert_eq!(Option::<Vec<String>>::schema_text(), "option<list<str>>");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be a field of a named message",
    label = "has no name that other languages know",
    note = "possible are numbers, `bool`, `String`, tensors, named messages and their queues, and `Vec`, \
            `Option` and maps by `String` of these"
)]
pub trait Schema {
    /// Returns the text for the type in schemas.
    fn schema_text() -> String;
}

macro_rules! names {
    ($($type:ty = $name:literal,)*) => {$(
        impl Schema for $type {
            fn schema_text() -> String {
                $name.into()
            }
        }
    )*};
}

names! {
    u8 = "u8", u16 = "u16", u32 = "u32", u64 = "u64", i8 = "i8", i16 = "i16", i32 = "i32", i64 = "i64",
    f32 = "f32", f64 = "f64", bool = "bool", String = "str",
}

macro_rules! containers {
    ($($type:ty = $name:literal,)*) => {$(
        impl<T: Schema> Schema for $type {
            fn schema_text() -> String {
                format!("{}<{}>", $name, T::schema_text())
            }
        }
    )*};
}

containers! {
    Vec<T> = "list",
    Option<T> = "option",
    HashMap<String, T> = "map",
    BTreeMap<String, T> = "map",
}

/// Returns the schema of a message with this name and these fields.
#[doc(hidden)]
pub fn of_fields(name: &str, fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, of)| format!("{name}:{of}")).collect();
    format!("{name}({})", fields.join(","))
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;

    #[test]
    fn schema_text_includes_nested_types() {
        assert_eq!(Vec::<Option<f32>>::schema_text(), "list<option<f32>>");
        assert_eq!(HashMap::<String, Vec<u8>>::schema_text(), "map<list<u8>>");
        let fields = [("a", u64::schema_text()), ("b", String::schema_text())];
        assert_eq!(of_fields("x/1", &fields), "x/1(a:u64,b:str)");
    }
}
