//! Expansion of `#[derive(Batch)]`.

use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Fields, Path, parse_quote};

use crate::unused_names::{UnusedNames, locals, primitive};
use crate::{known, options};

/// Returns the path of the module or crate that contains `Batch`.
fn default_path() -> Path {
    if let Some(name) = known("multiproc", "mp") {
        return parse_quote!(::#name::data);
    }
    match known("mp-data", "mp_data") {
        Some(name) => parse_quote!(::#name),
        None => parse_quote!(::mp::data),
    }
}

pub(crate) fn expand(input: &DeriveInput) -> syn::Result<Tokens> {
    let root = options(input, "batch", "`crate = path`")?.path.unwrap_or_else(default_path);
    let fields = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(named) if !named.named.is_empty() => &named.named,
            _ => {
                let why = "a batch is a struct with named columns, at least one: \
                           `struct Images { pixels: Tensor<f32> }`; columns without names are a tuple, \
                           which needs no derive";
                return Err(Error::new_spanned(&input.ident, why));
            }
        },
        _ => {
            let why = "a batch is a struct with named columns: each sample has a row in each of them";
            return Err(Error::new_spanned(&input.ident, why));
        }
    };
    if !input.generics.params.is_empty() {
        let why = "a batch has no parameters: its columns say which types their elements have";
        return Err(Error::new_spanned(&input.generics, why));
    }
    let (vis, name) = (&input.vis, &input.ident);
    let (spec, row) = (format_ident!("{name}Spec"), format_ident!("{name}Row"));
    let names: Vec<_> = fields.iter().filter_map(|field| field.ident.as_ref()).collect();
    let types: Vec<_> = fields.iter().map(|field| &field.ty).collect();
    let visible: Vec<_> = fields.iter().map(|field| &field.vis).collect();
    let places: Vec<_> = (0..names.len()).map(syn::Index::from).collect();
    let of_spec =
        format!("Shapes of the rows of a [`{name}`], which must be known before the rows are written.");
    let of_row = format!("Row of one sample in each column of a [`{name}`].");
    let shapes = names.iter().map(|name| format!("Shape of a row of `{name}`, or `()` if it has none."));
    let rows = names.iter().map(|name| format!("Row in the column `{name}`."));
    let texts: Vec<String> = names.iter().map(|name| syn::ext::IdentExt::unraw(*name).to_string()).collect();
    let UnusedNames { codec, lifetime } = UnusedNames::of(input);
    let locals = locals(fields);
    let (ok, some) = (quote!(::core::result::Result::Ok), quote!(::core::option::Option::Some));
    let (next, extend) = (quote!(::core::iter::Iterator::next), quote!(::core::iter::Extend::extend));
    let (d, batch) = (quote!(#root::derive), quote!(#root::Batch));
    let (vec, usize, u8) = (quote!(::std::vec::Vec), primitive("usize"), primitive("u8"));
    Ok(quote! {
        #[doc = #of_spec]
        #[derive(::core::clone::Clone, ::core::marker::Copy, ::core::cmp::PartialEq, ::core::fmt::Debug)]
        #vis struct #spec<#lifetime> {
            #(#[doc = #shapes] #visible #names: <#types as #batch>::Shapes<#lifetime>,)*
        }

        #[doc = #of_row]
        #vis struct #row<#lifetime> {
            #(#[doc = #rows] #visible #names: <#types as #batch>::Row<#lifetime>,)*
        }

        #[automatically_derived]
        impl #batch for #name {
            type Shapes<#lifetime> = #spec<#lifetime>;
            type Builder = (#(<#types as #batch>::Builder,)*);
            type Row<#lifetime> = #row<#lifetime>;

            fn begin(
                __mp_rows: #usize,
                __mp_shapes: #spec<'_>,
                __mp_fill: #d::Fill,
            ) -> #d::AnyResult<Self::Builder> {
                #ok((#(<#types as #batch>::begin(__mp_rows, __mp_shapes.#names, __mp_fill)?,)*))
            }

            fn rows(__mp_builder: &mut Self::Builder) -> #d::AnyResult<#vec<#row<'_>>> {
                #(let mut #locals =
                    ::core::iter::IntoIterator::into_iter(
                        <#types as #batch>::rows(&mut __mp_builder.#places)?
                    );)*
                let mut __mp_all = #vec::new();
                loop {
                    __mp_all.push(#row {
                        #(#names: match #next(&mut #locals) {
                            #some(__mp_row) => __mp_row,
                            ::core::option::Option::None => break,
                        },)*
                    });
                }
                #ok(__mp_all)
            }

            fn unwritten(
                __mp_builder: &mut Self::Builder,
                __mp_byte: #u8,
            ) -> #d::AnyResult<#vec<#d::UnwrittenRow>> {
                let mut __mp_all = #vec::new();
                #(#extend(&mut __mp_all, #d::prefix_unwritten(
                    #texts,
                    <#types as #batch>::unwritten(&mut __mp_builder.#places, __mp_byte)?,
                ));)*
                #ok(__mp_all)
            }

            fn finish(__mp_builder: Self::Builder) -> #d::AnyResult<Self> {
                #ok(Self {
                    #(#names: <#types as #batch>::finish(__mp_builder.#places)
                        .map_err(|__mp_why| #d::prefix_error(#texts, __mp_why))?),*
                })
            }

            fn send<#codec: #d::Codec>(&mut self, __mp_out: &mut #d::Outgoing) -> #d::Result<()> {
                let __mp_level = #d::Level::enter()?;
                #(<#types as #batch>::send::<#codec>(&mut self.#names, __mp_out)?;)*
                #ok(())
            }

            fn get_back(&mut self, __mp_back: &mut #d::UnsentValues) {
                let #ok(__mp_level) = #d::Level::enter() else { return };
                #(<#types as #batch>::get_back(&mut self.#names, __mp_back);)*
            }

            fn receive<#codec: #d::Codec>(__mp_inc: &mut #d::Incoming) -> #d::Result<Self> {
                let __mp_level = #d::Level::enter()?;
                #ok(Self { #(#names: <#types as #batch>::receive::<#codec>(__mp_inc)?),* })
            }

            fn bytes(&self) -> #usize {
                0 #(+ <#types as #batch>::bytes(&self.#names))*
            }

            fn row_bytes(&self, __mp_row: #usize, __mp_rows: #usize) -> #vec<#vec<#u8>> {
                let mut __mp_all = #vec::new();
                #(#extend(&mut __mp_all, <#types as #batch>::row_bytes(&self.#names, __mp_row, __mp_rows));)*
                __mp_all
            }

            fn columns(&self) -> #vec<#d::ColumnInfo> {
                let mut __mp_all = #vec::new();
                #(
                    let __mp_columns = <#types as #batch>::columns(&self.#names);
                    #extend(&mut __mp_all, #d::prefix_columns(#texts, __mp_columns));
                )*
                __mp_all
            }

            fn into_column(self) -> #d::AnyResult<#d::ColumnData> {
                let Self { #(#names: #locals),* } = self;
                #ok(#d::ColumnData::Struct(::std::vec![
                    #((#texts, #batch::into_column(#locals)?)),*
                ]))
            }
        }
    })
}
