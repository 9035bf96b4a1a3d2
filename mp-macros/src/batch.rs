//! `#[derive(Batch)]`.

use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Fields, Path, parse_quote};

use crate::{known, options};

/// The module in which `Batch` is.
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
                let why = "a batch is a struct with named columns, at least one: `struct Images { pixels: Tensor<f32> }`; \
                           columns without names are a tuple, which needs no derive";
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
    let of_spec = format!("What has to be known of the rows of a [`{name}`] before they are written.");
    let of_row = format!("The place of one sample in each column of a [`{name}`].");
    let shapes = names.iter().map(|name| format!("The shape of a row of `{name}`; `()` if it has none."));
    let rows = names.iter().map(|name| format!("The row in `{name}`."));
    let texts: Vec<String> = names.iter().map(|name| syn::ext::IdentExt::unraw(*name).to_string()).collect();
    Ok(quote! {
        #[doc = #of_spec]
        #[derive(Clone, Copy, Debug)]
        #vis struct #spec<'s> {
            #(#[doc = #shapes] #visible #names: <#types as #root::Batch>::Shapes<'s>,)*
        }

        #[doc = #of_row]
        #vis struct #row<'r> {
            #(#[doc = #rows] #visible #names: <#types as #root::Batch>::Row<'r>,)*
        }

        #[automatically_derived]
        impl #root::Batch for #name {
            type Shapes<'s> = #spec<'s>;
            type Making = (#(<#types as #root::Batch>::Making,)*);
            type Row<'r> = #row<'r>;

            fn begin(
                rows: usize,
                shapes: #spec<'_>,
                fill: #root::derive::Fill,
            ) -> #root::derive::AnyResult<Self::Making> {
                Ok((#(<#types as #root::Batch>::begin(rows, shapes.#names, fill)?,)*))
            }

            fn rows(making: &mut Self::Making) -> #root::derive::AnyResult<Vec<#row<'_>>> {
                #(let mut #names = <#types as #root::Batch>::rows(&mut making.#places)?.into_iter();)*
                let mut all = Vec::new();
                while let (#(Some(#names),)*) = (#(#names.next(),)*) {
                    all.push(#row { #(#names),* });
                }
                Ok(all)
            }

            fn unwritten(
                making: &mut Self::Making,
                byte: u8,
            ) -> #root::derive::AnyResult<Vec<#root::derive::Unwritten>> {
                let mut all = Vec::new();
                #(all.extend(#root::derive::unwritten_in(
                    #texts,
                    <#types as #root::Batch>::unwritten(&mut making.#places, byte)?,
                ));)*
                Ok(all)
            }

            fn finish(making: Self::Making) -> #root::derive::AnyResult<Self> {
                Ok(Self {
                    #(#names: <#types as #root::Batch>::finish(making.#places)
                        .map_err(|why| #root::derive::in_column(#texts, why))?),*
                })
            }

            fn send<__C: #root::derive::Codec>(
                &mut self,
                out: &mut #root::derive::Outgoing,
            ) -> #root::derive::Result<()> {
                let _level = #root::derive::Level::enter()?;
                #(<#types as #root::Batch>::send::<__C>(&mut self.#names, out)?;)*
                Ok(())
            }

            fn get_back(&mut self, back: &mut #root::derive::Returned) {
                let Ok(_level) = #root::derive::Level::enter() else { return };
                #(<#types as #root::Batch>::get_back(&mut self.#names, back);)*
            }

            fn receive<__C: #root::derive::Codec>(
                inc: &mut #root::derive::Incoming,
            ) -> #root::derive::Result<Self> {
                let _level = #root::derive::Level::enter()?;
                Ok(Self { #(#names: <#types as #root::Batch>::receive::<__C>(inc)?),* })
            }

            fn bytes(&self) -> usize {
                0 #(+ <#types as #root::Batch>::bytes(&self.#names))*
            }

            fn row_bytes(&self, row: usize, rows: usize) -> Vec<Vec<u8>> {
                let mut all = Vec::new();
                #(all.extend(<#types as #root::Batch>::row_bytes(&self.#names, row, rows));)*
                all
            }

            fn columns(&self) -> Vec<#root::derive::Column> {
                let mut all = Vec::new();
                #(all.extend(#root::derive::within(#texts, <#types as #root::Batch>::columns(&self.#names)));)*
                all
            }
        }
    })
}
