//! Derive macros of `mp`. Use them through the `mp` (or `mp_reduce`) crate, which re-exports them.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Fields, Path, parse_macro_input, parse_quote};

/// Makes a message of a struct or enum whose fields are messages: exclusive tensors and plain data, say.
///
/// A type that is `Serialize + Deserialize` is a message already and must not derive this.
///
/// `#[message(crate = path)]` says where the `message` module is found; the default is `::mp`.
#[proc_macro_derive(Message, attributes(message))]
pub fn derive_message(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(input).unwrap_or_else(syn::Error::into_compile_error).into()
}

fn crate_path(input: &DeriveInput) -> syn::Result<Path> {
    let mut path: Path = parse_quote!(::mp);
    for attr in input.attrs.iter().filter(|a| a.path().is_ident("message")) {
        attr.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error("unknown option; the only one is `crate = path`"));
            }
            path = meta.value()?.parse()?;
            Ok(())
        })?;
    }
    Ok(path)
}

/// The pattern that binds all fields, the calls that write them, and the expression that reads them again.
fn fields(fields: &Fields, m: &Tokens) -> (Tokens, Tokens, Tokens) {
    let names: Vec<_> = match fields {
        Fields::Named(named) => named.named.iter().filter_map(|f| f.ident.clone()).collect(),
        Fields::Unnamed(unnamed) => (0..unnamed.unnamed.len()).map(|i| format_ident!("f{i}")).collect(),
        Fields::Unit => Vec::new(),
    };
    let write = quote!(#(#m::Message::encode::<__C>(#names, out)?;)*);
    let read = quote!(#m::Message::decode::<__C>(inc)?);
    let reads = names.iter().map(|_| &read);
    match fields {
        Fields::Named(_) => (quote!({ #(#names),* }), write, quote!({ #(#names: #reads),* })),
        Fields::Unnamed(_) => (quote!(( #(#names),* )), write, quote!(( #(#reads),* ))),
        Fields::Unit => (quote!(), write, quote!()),
    }
}

fn expand(mut input: DeriveInput) -> syn::Result<Tokens> {
    let root = crate_path(&input)?;
    let m = quote!(#root::message);
    let (encode, decode) = match &input.data {
        Data::Struct(s) => {
            let (pattern, write, read) = fields(&s.fields, &m);
            (quote!({ let Self #pattern = self; #write }), quote!(Ok(Self #read)))
        }
        Data::Enum(e) => {
            let (mut writes, mut reads) = (Vec::new(), Vec::new());
            for (i, v) in e.variants.iter().enumerate() {
                let (name, i) = (&v.ident, i as u32);
                let (pattern, write, read) = fields(&v.fields, &m);
                writes.push(quote!(Self::#name #pattern => { __C::write(out, &#i)?; #write }));
                reads.push(quote!(#i => Ok(Self::#name #read)));
            }
            let name = input.ident.to_string();
            (
                quote!(match self { #(#writes)* }),
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
            fn encode<__C: #m::Codec>(&self, out: &mut #m::Outgoing) -> #m::Result<()> {
                #encode
                Ok(())
            }

            fn decode<__C: #m::Codec>(inc: &mut #m::Incoming) -> #m::Result<Self> {
                #decode
            }
        }
    })
}
