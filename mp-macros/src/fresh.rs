//! Names in generated code that mean the same wherever a type derives.
//!
//! Fields, parameters and items of the deriving crate may have any name. So generated code reaches items by absolute paths, and its own
//! names begin with `__mp`, which no item of another crate has. A name that the type itself uses is lengthened.

use std::collections::HashSet;

use proc_macro2::{Ident, Span, TokenStream as Tokens, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::spanned::Spanned;
use syn::{DeriveInput, Field, Lifetime};

/// Names that occur nowhere in a type.
pub(crate) struct Fresh {
    /// The type parameter of functions that take a codec.
    pub(crate) codec: Ident,
    /// A lifetime of the types that go with a batch.
    pub(crate) lifetime: Lifetime,
}

impl Fresh {
    pub(crate) fn of(input: &DeriveInput) -> Fresh {
        let mut used = HashSet::new();
        collect(input.to_token_stream(), &mut used);
        Fresh {
            codec: unused(&used, "__MpCodec"),
            lifetime: Lifetime::new(&format!("'{}", unused(&used, "s")), Span::call_site()),
        }
    }
}

/// A variable for each field, at the field's place: the compiler shows an error of it there.
pub(crate) fn locals<'f>(fields: impl IntoIterator<Item = &'f Field>) -> Vec<Ident> {
    let place = |field: &Field| field.ident.as_ref().map_or_else(|| field.ty.span(), Ident::span);
    let local = |(i, field)| Ident::new(&format!("__mp_field_{i}"), place(field));
    fields.into_iter().enumerate().map(local).collect()
}

fn unused(used: &HashSet<String>, name: &str) -> Ident {
    let mut name = name.to_owned();
    while used.contains(&name) {
        name.push('_');
    }
    format_ident!("{name}")
}

fn collect(tokens: Tokens, used: &mut HashSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => _ = used.insert(ident.to_string()),
            TokenTree::Group(group) => collect(group.stream(), used),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// A primitive type, of which the deriving crate may have a namesake.
pub(crate) fn primitive(name: &str) -> Tokens {
    let name = format_ident!("{name}");
    quote!(::core::primitive::#name)
}
