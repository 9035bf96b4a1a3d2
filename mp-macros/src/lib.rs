//! Derive macros of `mp`. Use them through the `mp` (or `mp_reduce`) crate, which re-exports them.

mod batch;

use proc_macro::TokenStream;
use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Span, TokenStream as Tokens};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Fields, Path, parse_macro_input, parse_quote};

/// Makes a message of a struct or enum whose fields are messages: exclusive tensors and plain data, say.
///
/// A type that is `Serialize + Deserialize` is a message already and must not derive this.
///
/// # Plain old data
/// With `#[message(as_bytes)]` a type that is `bytemuck::Pod` is a message of the bytes that it has in memory: one copy on each side,
/// whatever is in it (see `message::AsBytes`).
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
/// # Under another name
/// Programs that have given the package `multiproc` another name need nothing: the macro reads in their `Cargo.toml` what it is
/// called. With
///
/// ```toml
/// [dependencies]
/// parallel = { package = "multiproc", version = "0.1" }
/// ```
///
/// it finds `::parallel::message`. `#[message(crate = path)]` says itself where the `message` module is, where no `Cargo.toml`
/// does: if the program names the package twice, or comes to it through another crate that re-exports it
/// (`#[message(crate = ::framework::mp)]`), or is not built by Cargo. Without it the path is `::mp` there, and the compiler's
/// error is "cannot find `mp` in the crate root".
#[proc_macro_derive(Message, attributes(message))]
pub fn derive_message(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a batch of a struct whose fields are columns.
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
/// Besides, it makes `ImagesSpec`, with the shape of each column's rows, and `ImagesRow`, with the place of one sample in each
/// column. A field may itself be a struct that derives `Batch`.
///
/// `#[batch(crate = path)]` says where the module `data` of the library is, in the cases in which `Message` has to be told too.
#[proc_macro_derive(Batch, attributes(batch))]
pub fn derive_batch(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    batch::expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// What an attribute says.
#[derive(Default)]
struct Options {
    path: Option<Path>,
    /// `as_bytes`, and where that stands.
    as_bytes: Option<Span>,
}

/// What the attribute with this name says; `words` are its options, as an error lists them.
fn options(input: &DeriveInput, attribute: &str, words: &str) -> syn::Result<Options> {
    let mut options = Options::default();
    for attr in input.attrs.iter().filter(|a| a.path().is_ident(attribute)) {
        attr.parse_nested_meta(|meta| {
            if meta.path.is_ident("crate") {
                options.path = Some(meta.value()?.parse()?);
            } else if meta.path.is_ident("as_bytes") && words.contains("as_bytes") {
                options.as_bytes = Some(meta.path.span());
            } else {
                return Err(meta.error(format!("unknown option; there is {words}")));
            }
            Ok(())
        })?;
    }
    Ok(options)
}

/// By what name the crate that is being compiled knows a package.
fn known(package: &str, library: &str) -> Option<syn::Ident> {
    // A package without a name of its own choice is found by that of its library.
    match crate_name(package) {
        Ok(FoundCrate::Name(name)) if name != package => Some(format_ident!("{name}")),
        Ok(_) => Some(format_ident!("{library}")),
        Err(_) => None,
    }
}

/// The crate in which the `message` module is.
fn default_path() -> Path {
    let name = known("multiproc", "mp").or_else(|| known("mp-reduce", "mp_reduce"));
    let name = name.unwrap_or_else(|| format_ident!("mp"));
    parse_quote!(::#name)
}

/// What is made for the fields of a struct or a variant.
struct Parts {
    /// The pattern that binds all of them.
    pattern: Tokens,
    /// The calls that write them.
    write: Tokens,
    /// The calls by which they take back what was written.
    back: Tokens,
    /// The expression that reads them again.
    read: Tokens,
}

/// What fields are called where an error tells of them.
fn named(fields: &Fields, names: &[syn::Ident]) -> Vec<String> {
    match fields {
        Fields::Named(_) => names.iter().map(ToString::to_string).collect(),
        _ => (0..names.len()).map(|i| i.to_string()).collect(),
    }
}

fn fields(fields: &Fields, m: &Tokens, variant: &str) -> Parts {
    let names: Vec<_> = match fields {
        Fields::Named(named) => named.named.iter().filter_map(|f| f.ident.clone()).collect(),
        Fields::Unnamed(unnamed) => (0..unnamed.unnamed.len()).map(|i| format_ident!("f{i}")).collect(),
        Fields::Unit => Vec::new(),
    };
    let write = quote!(#(#m::Message::encode::<__C>(#names, out)?;)*);
    let back = quote!(#(#m::Message::take_back(#names, back);)*);
    let reads = named(fields, &names).into_iter().map(|name| {
        let name = format!("{variant}{name}");
        quote!(#m::Message::decode::<__C>(inc).map_err(|e| #m::in_field::<Self>(e, #name))?)
    });
    let (pattern, read) = match fields {
        Fields::Named(_) => (quote!({ #(#names),* }), quote!({ #(#names: #reads),* })),
        Fields::Unnamed(_) => (quote!(( #(#names),* )), quote!(( #(#reads),* ))),
        Fields::Unit => (quote!(), quote!()),
    };
    Parts { pattern, write, back, read }
}

/// A type that is `Pod`: the compiler says so where it is not.
fn expand_as_bytes(input: &DeriveInput, m: &Tokens, span: Span) -> Tokens {
    let name = &input.ident;
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    let write = quote_spanned!(span=> #m::write_as_bytes::<Self, __C>(out, self));
    let read_into = quote_spanned!(span=> #m::read_as_bytes_into::<Self, __C>(inc, slot));
    let plain = quote_spanned!(span=> #m::read_as_bytes_plain::<Self, __C>(bytes));
    quote! {
        #[automatically_derived]
        impl #impl_generics #m::Message for #name #type_generics #where_clause {
            #[inline]
            fn encode<__C: #m::Codec>(&mut self, out: &mut #m::Outgoing) -> #m::Result<()> {
                #write
            }

            #[inline]
            fn take_back(&mut self, _: &mut #m::Returned) {}

            #[inline]
            fn decode<__C: #m::Codec>(inc: &mut #m::Incoming) -> #m::Result<Self> {
                #m::decode_by_slot::<Self, __C>(inc)
            }

            #[inline]
            fn decode_into<__C: #m::Codec>(
                inc: &mut #m::Incoming,
                slot: &mut ::core::option::Option<Self>,
            ) -> #m::Result<()> {
                #read_into
            }

            #[inline]
            fn decode_plain<__C: #m::Codec>(bytes: &[u8]) -> #m::Result<Self> {
                #plain
            }
        }
    }
}

fn expand(mut input: DeriveInput) -> syn::Result<Tokens> {
    let Options { path, as_bytes } = options(&input, "message", "`crate = path`, and `as_bytes`")?;
    let root = path.unwrap_or_else(default_path);
    let m = quote!(#root::message);
    if let Some(span) = as_bytes {
        return Ok(expand_as_bytes(&input, &m, span));
    }
    let (encode, take_back, decode) = match &input.data {
        Data::Struct(s) => {
            let Parts { pattern, write, back, read } = fields(&s.fields, &m, "");
            let bind = quote!(let Self #pattern = self;);
            (quote!({ #bind #write }), quote!({ #bind #back }), quote!(Ok(Self #read)))
        }
        Data::Enum(e) => {
            let (mut writes, mut backs, mut reads) = (Vec::new(), Vec::new(), Vec::new());
            for (i, v) in e.variants.iter().enumerate() {
                let (name, i) = (&v.ident, i as u32);
                let Parts { pattern, write, back, read } = fields(&v.fields, &m, &format!("{name}."));
                writes.push(quote!(Self::#name #pattern => { __C::write(out, &#i)?; #write }));
                backs.push(quote!(Self::#name #pattern => { #back }));
                reads.push(quote!(#i => Ok(Self::#name #read)));
            }
            let name = input.ident.to_string();
            (
                quote!(match self { #(#writes)* }),
                quote!(match self { #(#backs)* }),
                quote!(match <__C as #m::Codec>::read::<u32>(inc)? {
                    #(#reads,)*
                    other => Err(#m::no_such_variant(#name, other)),
                }),
            )
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
        impl #impl_generics #m::Message for #name #type_generics #where_clause {
            fn encode<__C: #m::Codec>(&mut self, out: &mut #m::Outgoing) -> #m::Result<()> {
                let _level = #m::Level::enter()?;
                #encode
                Ok(())
            }

            fn take_back(&mut self, back: &mut #m::Returned) {
                // What lies deeper was not written.
                let Ok(_level) = #m::Level::enter() else { return };
                #take_back
            }

            fn decode<__C: #m::Codec>(inc: &mut #m::Incoming) -> #m::Result<Self> {
                let _level = #m::Level::enter()?;
                #decode
            }
        }
    })
}
