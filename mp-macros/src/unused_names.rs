//! Hygiene of names in generated code.
//!
//! Fields, parameters and items of the deriving crate may have any name. So generated code refers to items by
//! absolute paths, and its own names begin with `__mp`. If the type itself uses such a name, the generated
//! name is lengthened.

use proc_macro2::{Ident, Span, TokenStream as Tokens};
use quote::{ToTokens, format_ident, quote};
use syn::spanned::Spanned;
use syn::{DeriveInput, Field, Lifetime};

/// Names for generated code that the deriving type does not use.
pub(crate) struct UnusedNames {
    /// Name of the codec's type parameter in generated functions.
    pub(crate) codec: Ident,
    /// Name of the lifetime parameter in the types that `derive(Batch)` generates.
    pub(crate) lifetime: Lifetime,
}

impl UnusedNames {
    pub(crate) fn of(input: &DeriveInput) -> UnusedNames {
        let text = input.to_token_stream().to_string();
        let unused = |name: &str| {
            let mut name = name.to_owned();
            while text.contains(&name) {
                name.push('_');
            }
            name
        };
        UnusedNames {
            codec: format_ident!("{}", unused("__MpCodec")),
            lifetime: Lifetime::new(&unused("'s"), Span::call_site()),
        }
    }
}

/// Returns a variable for each field. The variable has the field's span, so that the compiler reports errors
/// at the field.
pub(crate) fn locals<'f>(fields: impl IntoIterator<Item = &'f Field>) -> Vec<Ident> {
    let place = |field: &Field| field.ident.as_ref().map_or_else(|| field.ty.span(), Ident::span);
    let local = |(i, field)| Ident::new(&format!("__mp_field_{i}"), place(field));
    fields.into_iter().enumerate().map(local).collect()
}

/// Returns the absolute path of a primitive type, since the deriving crate may have an item with the same
/// name.
pub(crate) fn primitive(name: &str) -> Tokens {
    let name = format_ident!("{name}");
    quote!(::core::primitive::#name)
}
