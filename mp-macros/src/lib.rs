//! Derive macros of `mp`. Use them through the crate `mp` or `mp_reduce`, which re-exports them.

mod batch;
mod unused_names;

use proc_macro::TokenStream;
use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Span, TokenStream as Tokens};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Fields, LitStr, Member, Path, parse_macro_input, parse_quote};

use crate::unused_names::{UnusedNames, primitive};

/// Implements `Message` for a struct or enum whose fields are messages, such as exclusive tensors and plain
/// data.
///
/// A type that implements `Serialize` and `Deserialize` is a message already, and must not derive `Message`.
///
/// # Plain old data
/// With `#[message(as_bytes)]`, a type that implements `bytemuck::Pod` is sent as its bytes in memory, with
/// one copy on each side (see `message::AsBytes`).
///
/// ```ignore
/// #[derive(Clone, Copy, Pod, Zeroable, Message)]
/// #[repr(C)]
/// #[message(as_bytes)]
/// struct Reading {
///     time: f64,
///     values: [f32; 12],
/// }
/// ```
///
/// # Names for other languages
/// `#[message(name = "vision/batch/1")]` gives a struct a schema, which replaces the name of the type in
/// queues and messages: `vision/batch/1(pixels:tensor<f32>,class:tensor<i64>,path:str)`. Programs with
/// another build and programs in Python read the schema, so they exchange such messages without a shared
/// type. Each field has a type with a `Schema`. Change the name when the meaning changes.
///
/// # Renamed packages
/// The macro finds the name of the package `multiproc` in the program's `Cargo.toml`. With
///
/// ```toml
/// [dependencies]
/// parallel = { package = "multiproc", version = "0.1" }
/// ```
///
/// the macro uses `::parallel::message`. `#[message(crate = path)]` sets the path of the crate with the
/// module `message` explicitly. Set this path if the program names the package twice, uses the package
/// through another crate that re-exports it (`#[message(crate = ::framework::mp)]`), or is not built by
/// Cargo. If the macro finds no name, it uses `::mp`. If there is no crate with this name, the compiler
/// reports "cannot find `mp` in the crate root".
#[proc_macro_derive(Message, attributes(message))]
pub fn derive_message(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Implements `Batch` for a struct whose fields are columns.
///
/// ```ignore
/// #[derive(Batch)]
/// struct Images {
///     pixels: Tensor<f32>,
///     class: Tensor<i64>,
///     path: Strings,
/// }
///
/// cx.rows(items, ImagesSpec { pixels: &[3, 224, 224], class: &[], path: () }, |item, rng, row| {
///     decode(item.index, row.pixels)?; // &mut [f32]; `row` is an `ImagesRow<'_>`
///     row.class[0] = 7;
///     row.path.push_str("a.jpg");
///     Ok(())
/// })
/// ```
///
/// For a struct `Images`, the macro also defines two structs: `ImagesSpec` has the shapes of the rows of each
/// column, and `ImagesRow` has the row of one sample in each column. A field may be a struct that derives
/// `Batch`.
///
/// `#[batch(crate = path)]` sets the path of the library's module `data`. Set it in the same cases as the
/// path for `derive(Message)`.
#[proc_macro_derive(Batch, attributes(batch))]
pub fn derive_batch(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    batch::expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Parsed options of a derive attribute.
#[derive(Default)]
struct Options {
    path: Option<Path>,
    /// Span of the option `as_bytes`, if the attribute has it.
    as_bytes: Option<Span>,
    /// Name for other languages, if the attribute has one.
    name: Option<LitStr>,
}

/// Parses the options of the attribute named `attribute`. `words` lists the permitted options, and is part of
/// the error for any other option.
fn options(input: &DeriveInput, attribute: &str, words: &str) -> syn::Result<Options> {
    let mut options = Options::default();
    for attr in input.attrs.iter().filter(|a| a.path().is_ident(attribute)) {
        attr.parse_nested_meta(|meta| {
            if meta.path.is_ident("crate") {
                options.path = Some(meta.value()?.parse()?);
            } else if meta.path.is_ident("as_bytes") && words.contains("as_bytes") {
                options.as_bytes = Some(meta.path.span());
            } else if meta.path.is_ident("name") && words.contains("name") {
                options.name = Some(meta.value()?.parse()?);
            } else {
                return Err(meta.error(format!("unknown option; there is {words}")));
            }
            Ok(())
        })?;
    }
    Ok(options)
}

/// Returns the name of `package` in the crate that is being compiled, or `None` if that crate does not depend
/// on the package. `library` is the name if the package is not renamed.
fn known(package: &str, library: &str) -> Option<syn::Ident> {
    // A package that is not renamed is found under the name of its library.
    match crate_name(package) {
        Ok(FoundCrate::Name(name)) if name != package => Some(format_ident!("{name}")),
        Ok(_) => Some(format_ident!("{library}")),
        Err(_) => None,
    }
}

/// Returns the path of the crate that contains the module `message`.
fn default_path() -> Path {
    let name = known("multiproc", "mp").or_else(|| known("mp-reduce", "mp_reduce"));
    let name = name.unwrap_or_else(|| format_ident!("mp"));
    parse_quote!(::#name)
}

/// Generated code for all fields of a struct or a variant.
struct FieldCode {
    /// Pattern that binds all fields.
    pattern: Tokens,
    /// Calls that encode the fields.
    write: Tokens,
    /// Calls that move the exclusive parts of an unsent message back into the fields.
    back: Tokens,
    /// Expression that decodes the fields.
    read: Tokens,
}

fn fields(fields: &Fields, m: &Tokens, variant: &str, unused: &UnusedNames) -> FieldCode {
    let codec = &unused.codec;
    let locals = unused_names::locals(fields);
    let names: Vec<_> =
        (0..).map(Member::from).zip(fields).map(|(i, f)| f.ident.clone().map_or(i, Member::from)).collect();
    let write = quote!(#(#m::Message::encode::<#codec>(#locals, __mp_out)?;)*);
    let back = quote!(#(#m::Message::take_back(#locals, __mp_back);)*);
    let reads = names.iter().map(|name| {
        let name = match name {
            Member::Named(name) => format!("{variant}{}", name.unraw()),
            Member::Unnamed(i) => format!("{variant}{}", i.index),
        };
        quote!(#m::Message::decode::<#codec>(__mp_inc).map_err(|__mp_e| #m::in_field::<Self>(__mp_e, #name))?)
    });
    // Also valid for a tuple or unit struct: `Name { 0: … }`.
    let (pattern, read) = (quote!({ #(#names: #locals),* }), quote!({ #(#names: #reads),* }));
    FieldCode { pattern, write, back, read }
}

/// Expands a type that is sent as bytes. The compiler reports an error at the option if the type is not
/// `Pod`.
fn expand_as_bytes(input: &DeriveInput, m: &Tokens, span: Span) -> Tokens {
    let (name, codec) = (&input.ident, UnusedNames::of(input).codec);
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    let write = quote_spanned!(span=> #m::write_as_bytes::<Self, #codec>(__mp_out, self));
    let read_into = quote_spanned!(span=> #m::read_as_bytes_into::<Self, #codec>(__mp_inc, __mp_slot));
    let plain = quote_spanned!(span=> #m::read_as_bytes_plain::<Self, #codec>(__mp_bytes));
    let u8 = primitive("u8");
    quote! {
        #[automatically_derived]
        impl #impl_generics #m::Message for #name #type_generics #where_clause {
            #[inline]
            fn encode<#codec: #m::Codec>(&mut self, __mp_out: &mut #m::Outgoing) -> #m::Result<()> {
                #write
            }

            #[inline]
            fn take_back(&mut self, _: &mut #m::UnsentValues) {}

            #[inline]
            fn decode<#codec: #m::Codec>(__mp_inc: &mut #m::Incoming) -> #m::Result<Self> {
                #m::decode_by_slot::<Self, #codec>(__mp_inc)
            }

            #[inline]
            fn decode_into<#codec: #m::Codec>(
                __mp_inc: &mut #m::Incoming,
                __mp_slot: &mut ::core::option::Option<Self>,
            ) -> #m::Result<()> {
                #read_into
            }

            #[inline]
            fn decode_plain<#codec: #m::Codec>(__mp_bytes: &[#u8]) -> #m::Result<Self> {
                #plain
            }
        }
    }
}

fn expand(mut input: DeriveInput) -> syn::Result<Tokens> {
    let words = "`crate = path`, `name = \"…\"`, and `as_bytes`";
    let Options { path, as_bytes, name: schema } = options(&input, "message", words)?;
    let root = path.unwrap_or_else(default_path);
    let m = quote!(#root::message);
    if let (Some(span), Some(_)) = (as_bytes, &schema) {
        let why = "`as_bytes` is the layout of this machine and this build: a message has that or a `name`";
        return Err(syn::Error::new(span, why));
    }
    let (schema, schema_of_field) = match &schema {
        Some(name) => named(&input, name, &m)?,
        None => (Tokens::new(), Tokens::new()),
    };
    if let Some(span) = as_bytes {
        return Ok(expand_as_bytes(&input, &m, span));
    }
    let unused = UnusedNames::of(&input);
    let (codec, ok) = (&unused.codec, quote!(::core::result::Result::Ok));
    let (encode, take_back, decode) = match &input.data {
        Data::Enum(e) => {
            let (u32, name) = (primitive("u32"), input.ident.unraw().to_string());
            let (mut writes, mut backs, mut reads) = (Vec::new(), Vec::new(), Vec::new());
            for (i, v) in e.variants.iter().enumerate() {
                let (name, i) = (&v.ident, i as u32);
                let FieldCode { pattern, write, back, read } =
                    fields(&v.fields, &m, &format!("{}.", name.unraw()), &unused);
                writes.push(
                    quote!(Self::#name #pattern => { <#codec as #m::Codec>::write(__mp_out, &#i)?; #write }),
                );
                backs.push(quote!(Self::#name #pattern => { #back }));
                reads.push(quote!(#i => #ok(Self::#name #read)));
            }
            // An enum without variants is matched by value, because the compiler considers a reference to
            // such an enum inhabited.
            let this = if e.variants.is_empty() { quote!(*self) } else { quote!(self) };
            (
                quote!(match #this { #(#writes)* }),
                quote!(match #this { #(#backs)* }),
                quote!(match <#codec as #m::Codec>::read::<#u32>(__mp_inc)? {
                    #(#reads,)*
                    __mp_other => ::core::result::Result::Err(#m::no_such_variant(#name, __mp_other)),
                }),
            )
        }
        Data::Struct(s) => {
            let FieldCode { pattern, write, back, read } = fields(&s.fields, &m, "", &unused);
            let bind = quote!(let Self #pattern = self;);
            (quote!({ #bind #write }), quote!({ #bind #back }), quote!(#ok(Self #read)))
        }
        Data::Union(u) => {
            let why = "a union has no fields that could be sent one by one";
            return Err(syn::Error::new(u.union_token.span, why));
        }
    };
    for param in input.generics.type_params_mut() {
        param.bounds.push(parse_quote!(#m::Message));
    }
    let name = &input.ident;
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        #[allow(unreachable_code, reason = "an enum without variants has no values")]
        impl #impl_generics #m::Message for #name #type_generics #where_clause {
            #schema

            fn encode<#codec: #m::Codec>(&mut self, __mp_out: &mut #m::Outgoing) -> #m::Result<()> {
                let __mp_level = #m::Level::enter()?;
                #encode
                #ok(())
            }

            fn take_back(&mut self, __mp_back: &mut #m::UnsentValues) {
                // Fields below the nesting limit were not written.
                let #ok(__mp_level) = #m::Level::enter() else { return };
                #take_back
            }

            fn decode<#codec: #m::Codec>(__mp_inc: &mut #m::Incoming) -> #m::Result<Self> {
                let __mp_level = #m::Level::enter()?;
                #decode
            }
        }

        #schema_of_field
    })
}

/// Returns the method `schema` of a named message, and the implementation that makes the message's type
/// usable as a field of another named message.
fn named(input: &DeriveInput, name: &LitStr, m: &Tokens) -> syn::Result<(Tokens, Tokens)> {
    let text = name.value();
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "/_.-".contains(c);
    if text.is_empty() || !text.chars().all(is_valid) {
        let why = "a name has letters, digits, and `/`, `_`, `.`, `-`: `vision/batch/1`";
        return Err(syn::Error::new(name.span(), why));
    }
    let fields = match &input.data {
        Data::Struct(data) if input.generics.params.is_empty() => match &data.fields {
            Fields::Named(fields) => Some(&fields.named),
            _ => None,
        },
        _ => None,
    };
    let Some(fields) = fields else {
        let why = "a named message is a struct with named fields, without parameters";
        return Err(syn::Error::new(name.span(), why));
    };
    let names = fields.iter().filter_map(|field| field.ident.as_ref());
    let names: Vec<String> = names.map(|name| name.unraw().to_string()).collect();
    let types = fields.iter().map(|field| &field.ty);
    let this = &input.ident;
    let string = quote!(::std::string::String);
    let some = quote!(::core::option::Option);
    let method = quote! {
        fn schema() -> #some<#string> {
            #some::Some(#m::schema::of_fields(
                #name,
                &[#((#names, <#types as #m::Schema>::schema_text())),*],
            ))
        }
    };
    let field = quote! {
        #[automatically_derived]
        impl #m::Schema for #this {
            fn schema_text() -> #string {
                <Self as #m::Message>::schema().unwrap_or_default()
            }
        }
    };
    Ok((method, field))
}
