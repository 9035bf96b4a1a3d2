//! Derives on types whose fields, parameters and neighbours have names that generated code could use.
#![allow(non_snake_case, non_camel_case_types, reason = "the names of generated code")]

use mp::data::{AnyResult, Batch, Context, DataLoader, Dataset, Item};
use mp::{Message, Queue, Tensor};

/// Sends a value through a queue, and returns the received value.
fn travelled<T: Message>(value: T) -> T {
    let queue = Queue::bounded(1).unwrap();
    queue.put(value).unwrap_or_else(|error| panic!("{error}"));
    queue.get().unwrap().expect("the value was put")
}

macro_rules! with_fields {
    ($($field:ident)*) => {
        #[derive(Message)]
        struct Fields { $($field: Tensor<u32>,)* }

        #[derive(Message)]
        #[allow(clippy::large_enum_variant, reason = "it has a variant of each kind")]
        enum Variants { Named { $($field: Tensor<u32>,)* }, $($field(u32),)* }

        const FIELDS: usize = [$(stringify!($field)),*].len();

        /// Returns values with consecutive numbers from `first`, with a tensor in each field.
        fn numbered(mut first: u32) -> (Fields, Variants) {
            let mut next = || { first += 1; Tensor::full([2], first).unwrap() };
            (Fields { $($field: next(),)* }, Variants::Named { $($field: next(),)* })
        }

        fn read(fields: &Fields) -> Vec<u32> {
            vec![$(fields.$field[[1]]),*]
        }

        fn read_variant(variant: Variants) -> Vec<u32> {
            match variant {
                Variants::Named { $($field,)* } => vec![$($field[[1]]),*],
                $(Variants::$field(value) => vec![value],)*
            }
        }
    };
}

macro_rules! with_columns {
    ($($field:ident)*) => {
        #[derive(Batch)]
        struct Columns { $($field: Tensor<u32>,)* }

        const COLUMNS: usize = [$(stringify!($field)),*].len();

        impl Dataset for Samples {
            type Batch = Columns;

            fn len(&self) -> usize {
                2
            }

            fn fetch(&mut self, items: &[Item], cx: &mut Context<Columns>) -> AnyResult<Columns> {
                cx.rows(items, ColumnsSpec { $($field: &[],)* }, |item, _, row| {
                    $(row.$field[0] = item.index as u32 + 7;)*
                    Ok(())
                })
            }
        }

        fn read_columns(columns: &Columns) -> Vec<u32> {
            vec![$(columns.$field[[1]]),*]
        }
    };
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Samples;

with_columns! {
    out back inc making all rows row shapes fill byte why level next begin finish r#type r#loop a s r
    __C __mp_all __mp_making __mp_rows __mp_field_0
}

with_fields! {
    out back inc slot bytes other e m f0 f1 level _level codec C T __C encode decode take_back mp core std
    r#type r#fn r#match r#async r#impl r#loop
    __MpCodec __mp_out __mp_back __mp_inc __mp_level __mp_field_0 __mp_e
}

#[test]
fn derived_fields_of_any_name_round_trip() {
    let _alone = mp_tests::alone();
    let counted = |first: u32| (first + 1..).take(FIELDS).collect::<Vec<u32>>();
    let (fields, variant) = numbered(10);
    assert_eq!(read(&travelled(fields)), counted(10));
    assert_eq!(read_variant(travelled(variant)), counted(10 + FIELDS as u32));
    assert_eq!(read_variant(travelled(Variants::other(5))), [5]);
    assert_eq!(read_variant(travelled(Variants::r#type(6))), [6]);
}

#[test]
fn derived_columns_of_any_name_are_loaded() {
    let _alone = mp_tests::alone();
    let loader = DataLoader::builder(Samples).batch_size(2).num_workers(1).build().unwrap();
    let columns = loader.epoch(0).next().unwrap().unwrap().into_inner();
    assert_eq!(read_columns(&columns), [8; COLUMNS]);
}

/// A message that is not sent is returned complete.
#[test]
fn refused_derived_fields_of_any_name_are_returned() {
    let _alone = mp_tests::alone();
    let queue = Queue::bounded(1).unwrap();
    queue.put(numbered(1).0).unwrap_or_else(|error| panic!("{error}"));
    let refused = queue.try_put(numbered(2).0).unwrap_err().into_value();
    assert_eq!(read(&refused)[..2], [3, 4]);
}

/// The type parameters have the names that generated code gives to its own parameters.
#[test]
fn type_parameters_of_any_name_round_trip() {
    let _alone = mp_tests::alone();
    #[derive(Message)]
    struct Typed<C, __C, __MpCodec, M>(C, __C, __MpCodec, M, Tensor<u8>);

    #[derive(Message)]
    struct Sized<const N: usize, const C: usize>(Tensor<u8>);

    let Typed(c, d, e, m, tensor) =
        travelled(Typed(1_u8, "two".to_owned(), Some(3_u64), vec![4_i32], Tensor::full([1], 5).unwrap()));
    assert_eq!((c, d.as_str(), e, m, tensor.to_vec()), (1, "two", Some(3), vec![4], vec![5]));
    let Sized::<1, 2>(tensor) = travelled(Sized(Tensor::full([1], 5).unwrap()));
    assert_eq!(tensor.to_vec(), [5]);
}

/// Module whose items have the names of the prelude, of primitive types and of crates.
mod shadowed {
    #![allow(dead_code, non_upper_case_globals, unused_imports, reason = "what no code names")]

    pub(super) enum Shadow {
        Ok,
        Err,
        Some,
        None,
    }
    use Shadow::{Err, None, Ok, Some};

    struct Vec;
    struct Option;
    struct Result;
    struct String;
    struct u8;
    struct u32;
    struct usize;
    struct bool;
    struct Clone;
    struct Codec;
    mod mp {}
    mod serde {}
    const out: () = ();
    const back: () = ();
    const inc: () = ();
    const all: () = ();
    const making: () = ();

    trait Everything: ::core::marker::Sized {
        fn next(&self) {}
        #[allow(clippy::wrong_self_convention, reason = "it stands in the way of the prelude's")]
        fn into_iter(&self) {}
        fn extend(&self) {}
    }
    impl<T> Everything for T {}

    #[derive(::mp::Message)]
    pub(super) struct Message {
        pub(super) tensor: ::mp::Tensor<f32>,
    }

    #[derive(::mp::Message)]
    pub(super) enum Choice {
        Ok,
        Err(::mp::Tensor<f32>),
        r#match(::core::primitive::u64),
    }

    #[derive(::mp::Message)]
    pub(super) enum Never {}

    #[derive(::mp::data::Batch)]
    pub(super) struct Columns {
        pub(super) r#type: ::mp::Tensor<f32>,
        pub(super) text: ::mp::data::Strings,
    }
}

#[test]
fn types_with_shadowed_names_round_trip() {
    let _alone = mp_tests::alone();
    let message = travelled(shadowed::Message { tensor: Tensor::full([1], 5.0).unwrap() });
    assert_eq!(message.tensor.to_vec(), [5.0]);
    assert!(matches!(travelled(shadowed::Choice::Ok), shadowed::Choice::Ok));
    let shadowed::Choice::r#match(7) = travelled(shadowed::Choice::r#match(7)) else { panic!("7 was sent") };
    let queue = Queue::<shadowed::Never>::bounded(1).unwrap();
    assert!(queue.try_get().is_err());
}

/// Errors print names without `r#`.
#[test]
fn raw_identifiers_are_plain_in_error_texts() {
    let _alone = mp_tests::alone();
    #[derive(Debug, serde::Serialize)]
    struct Refused;
    impl<'de> serde::Deserialize<'de> for Refused {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Err(serde::de::Error::custom("refused"))
        }
    }
    #[derive(Debug, Message)]
    #[allow(dead_code, reason = "it is never read")]
    struct Raw {
        r#type: Refused,
    }
    let queue = Queue::bounded(1).unwrap();
    queue.put(Raw { r#type: Refused }).unwrap();
    let error = queue.get().unwrap_err().to_string();
    assert!(error.contains("type") && !error.contains("r#"), "{error}");
}
