//! Round trips of each kind of empty value (`None`, `Some(None)`, `()`). Plain MessagePack encodes all of
//! them in the same way.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::same;

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug, Default)]
struct Unit;

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
struct NoFields {}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
struct NoElements();

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
struct Newtype<T>(T);

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
#[serde(transparent)]
struct Transparent<T> {
    inner: T,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
enum Variants {
    Unit,
    OfNothing(()),
    OfOption(Option<u8>),
    OfOptions(Option<Option<()>>),
    Field { it: Option<Option<u8>> },
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
#[serde(untagged)]
enum Untagged {
    Number(u8),
    Pair(Option<Option<bool>>, Option<()>),
    Fields { maybe: Option<Option<u8>>, unit: Option<Unit> },
    Nothing,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
#[serde(tag = "kind")]
enum Internally {
    Nothing,
    Wrapped(Fields),
    Fields { maybe: Option<Option<u8>>, unit: Unit },
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
#[serde(tag = "kind", content = "of")]
enum Adjacently {
    Nothing,
    Of(Option<Option<Unit>>),
    Two(Option<()>, ()),
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
struct Fields {
    first: Option<Option<Option<u8>>>,
    second: Option<()>,
    third: Option<Unit>,
    fourth: Option<Newtype<Option<Transparent<Option<()>>>>>,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
struct Flat {
    own: Option<Option<u8>>,
    #[serde(flatten)]
    fields: Fields,
}

const NOTHING: Fields = Fields { first: None, second: None, third: None, fourth: None };
const SOMETHING: Fields = Fields {
    first: Some(Some(None)),
    second: Some(()),
    third: Some(Unit),
    fourth: Some(Newtype(Some(Transparent { inner: Some(()) }))),
};

#[test]
fn nested_options_round_trip() {
    for value in [None, Some(None), Some(Some(None)), Some(Some(Some(0_u8)))] {
        same(value);
        same(vec![value; 2]);
        same((value, 7_u8, value));
    }
    same([Some(Some(Some(Some(Some(Some(())))))), Some(Some(Some(Some(Some(None))))), Some(None), None]);
    same([Some(Ok::<Option<u8>, ()>(None)), Some(Err(())), None]);
}

#[test]
fn units_in_options_round_trip() {
    same([Some(()), None]);
    same([Some(Unit), None]);
    same([Some(NoFields {}), None]);
    same([Some(NoElements()), None]);
    same([Some(Newtype(())), None]);
    same([Some(Newtype(None)), Some(Newtype(Some(()))), None]);
    same([Some(Transparent { inner: None }), Some(Transparent { inner: Some(Unit) }), None]);
    same([Some(Newtype(Transparent { inner: Newtype(()) })), None]);
    same([Some(std::marker::PhantomData::<u8>), None]);
    same([Some([0_u8; 0]), None]);
    same([Some(Vec::<()>::new()), Some(vec![()]), None]);
    same([Some(BTreeMap::<(), ()>::new()), Some(BTreeMap::from([((), ())])), None]);
    same([Some(Box::new(None)), Some(Box::new(Some(0_u8))), None]);
    same([Some(String::new()), None]);
    same(BTreeMap::from([(None, None), (Some(None), Some(())), (Some(Some(1_u8)), None)]));
}

#[test]
fn units_in_enum_variants_round_trip() {
    let variants = [
        Variants::Unit,
        Variants::OfNothing(()),
        Variants::OfOption(None),
        Variants::OfOptions(Some(None)),
        Variants::OfOptions(None),
        Variants::Field { it: Some(None) },
    ];
    for value in variants {
        same(value);
        same([Some(value), None]);
    }
    for value in [Some(Untagged::Nothing), Some(Untagged::Number(1)), None] {
        same(value);
        same(Some(value));
    }
}

#[test]
fn units_and_options_buffered_by_serde_round_trip() {
    for maybe in [None, Some(None), Some(Some(3))] {
        for unit in [None, Some(Unit)] {
            same(Untagged::Fields { maybe, unit });
        }
        same(Internally::Fields { maybe, unit: Unit });
        same(Untagged::Pair(maybe.map(|m| m.map(|m| m == 3)), None));
        same(Untagged::Pair(None, maybe.map(drop)));
        same(Adjacently::Of(maybe.map(|m| m.map(|_| Unit))));
        same(Adjacently::Two(maybe.map(drop), ()));
        same([Some(Flat { own: maybe, fields: NOTHING }), None]);
        same(Flat { own: maybe, fields: SOMETHING });
    }
    same([
        Some(Internally::Nothing),
        Some(Internally::Wrapped(NOTHING)),
        Some(Internally::Wrapped(SOMETHING)),
    ]);
    same([Some(Adjacently::Nothing), None]);
}

/// The unit structs are in untagged enums and flattened fields.
#[test]
fn unit_structs_in_untagged_enums_round_trip() {
    #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
    #[serde(untagged)]
    enum Either {
        Number(u8),
        Unit(Unit),
    }
    same([Either::Unit(Unit), Either::Number(1)]);
    #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
    struct Outer {
        #[serde(flatten)]
        inner: Inner,
    }
    #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
    struct Inner {
        unit: Unit,
        maybe: Option<Unit>,
        all: Vec<Unit>,
    }
    same(Outer { inner: Inner { unit: Unit, maybe: Some(Unit), all: vec![Unit; 3] } });
}
