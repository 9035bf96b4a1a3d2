//! Round trips of random values of random types of serde's data model. Each value is sent directly, and in
//! places where serde buffers values (untagged, internally tagged, flattened). The reference is `postcard`,
//! which distinguishes all types.

use mp_reduce::{pack, unpack};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::shape::{Shape, Typed, shapes};

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(untagged)]
enum Untagged {
    Typed(Typed),
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(tag = "kind")]
enum Internally {
    Typed(Typed),
    Field { it: Typed },
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(tag = "kind", content = "of")]
enum Adjacently {
    Typed(Typed),
    Field { it: Typed },
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Flat {
    own: Typed,
    #[serde(flatten)]
    inner: Typed,
}

/// Checks that the value round-trips. If `wide` is `true`, the value has 128-bit numbers where serde buffers
/// values, and may also be refused and returned.
fn same<T>(value: T, wide: bool) -> Result<(), TestCaseError>
where
    T: Serialize + serde::de::DeserializeOwned + Clone + PartialEq + std::fmt::Debug + 'static,
{
    match pack(value.clone()) {
        Ok(envelope) => match unpack::<T>(envelope) {
            Ok(arrived) => prop_assert_eq!(arrived, value),
            Err(error) => return Err(TestCaseError::fail(format!("{value:?} was put: {error}"))),
        },
        Err(error) => {
            prop_assert!(wide && error.to_string().contains("128 bits"), "{:?}: {}", value, error);
            prop_assert_eq!(error.value, value);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn values_of_random_types_round_trip(shape in shapes(), seed in any::<u64>()) {
        let value = shape.typed(seed);
        let bytes = postcard::to_allocvec(&value).unwrap();
        let reference: Typed = postcard::from_bytes(&bytes).unwrap();
        prop_assert_eq!(&reference, &value, "postcard");
        let wide = shape.is_wide();
        same(value.clone(), false)?;
        same(vec![Some(value.clone()), None], false)?;
        same(Some(Some(value.clone())), false)?;
        same(Adjacently::Typed(value.clone()), false)?;
        same(Adjacently::Field { it: value.clone() }, false)?;
        same(Untagged::Typed(value.clone()), wide)?;
        same(Some(Untagged::Typed(value.clone())), wide)?;
        same(Internally::Field { it: value.clone() }, wide)?;
        if matches!(shape, Shape::Struct(_)) {
            same(Internally::Typed(value.clone()), wide)?;
            same(Flat { own: value.clone(), inner: value }, wide)?;
        }
    }
}
