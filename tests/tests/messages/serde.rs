//! All of serde's data model and attributes are supported. Message types need no adaptation to the codec of
//! the queue.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use mp_tests::same;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
struct Record {
    number: i128,
    letter: char,
    text: String,
    bytes: Vec<u8>,
    table: BTreeMap<String, Vec<u16>>,
    by_number: HashMap<i32, (f32, bool)>,
    next: Option<Box<Record>>,
    pause: Duration,
    unit: (),
}

#[test]
fn plain_serde_values_round_trip_in_messages() {
    same(&[0_u64, 1, 127, 128, 255, 256, 65_535, 65_536, u64::MAX]);
    same(&[i64::MIN, -129, -128, -33, -32, -1, i64::MAX]);
    same(&[f64::MIN_POSITIVE, -0.0, f64::INFINITY, f64::EPSILON]);
    same(&["".to_string(), "ä🦀\0".into(), "x".repeat(70_000)]);
    same(&[(), ()]);
    same(&[Ok::<u8, String>(3), Err("no".into())]);
    let inner = Record { number: i128::MIN, letter: '\u{10ffff}', ..Record::default() };
    let outer = Record {
        text: "outer".into(),
        bytes: (0..=255).collect(),
        table: BTreeMap::from([("a".into(), vec![1, 2]), ("".into(), vec![])]),
        by_number: HashMap::from([(-7, (0.5, true)), (i32::MAX, (-1.5, false))]),
        next: Some(Box::new(inner)),
        pause: Duration::new(3, 999_999_999),
        ..Record::default()
    };
    same(&[outer, Record::default()]);
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
enum Job {
    Stop,
    Sleep(u64),
    Move(i8, i8),
    Name { first: String, last: Option<String> },
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(untagged)]
enum Untagged {
    Number(i64),
    Pair(i64, String),
    Text(String),
    Point { x: f64, y: f64 },
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Plain {
    text: String,
    parts: Vec<u16>,
    done: Option<bool>,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(tag = "kind")]
enum Internally {
    Stop,
    Point { x: i32, y: i32 },
    Wrapped(Plain),
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
#[serde(tag = "kind", content = "of")]
enum Adjacently {
    Stop,
    Two(u8, u8),
    Point { x: i32 },
}

#[test]
fn enums_of_all_representations_round_trip() {
    let name = |last| Job::Name { first: "Ada".into(), last };
    same(&[Job::Stop, Job::Sleep(9), Job::Move(-1, 1), name(None), name(Some("L".into()))]);
    same(&[Untagged::Number(-5), Untagged::Pair(1, "one".into()), Untagged::Text("t".into())]);
    let wrapped = Internally::Wrapped(Plain { text: "in".into(), parts: vec![1, 2], done: Some(true) });
    same(&[Internally::Stop, Internally::Point { x: 1, y: 2 }, wrapped]);
    same(&[Adjacently::Stop, Adjacently::Two(1, 2), Adjacently::Point { x: 7 }]);
    same(&[vec![Some(Job::Stop), None], vec![]]);
}

#[test]
fn untagged_enums_with_named_fields_round_trip() {
    same(&[Untagged::Point { x: 0.5, y: 2.0 }]);
}

#[test]
fn flattened_and_renamed_fields_round_trip() {
    #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
    struct Position {
        x: i32,
        y: i32,
    }
    #[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
    struct Flat {
        #[serde(rename = "N")]
        name: String,
        #[serde(flatten)]
        position: Position,
        #[serde(flatten)]
        rest: BTreeMap<String, u8>,
    }
    let rest = BTreeMap::from([("z".to_string(), 3)]);
    same(&[Flat { name: "n".into(), position: Position { x: 1, y: -1 }, rest }]);
}

#[test]
fn options_round_trip_in_messages() {
    same(&[None, Some(0_u8), Some(255)]);
    same(&[None, Some(vec![None, Some(1_u8)])]);
}

#[test]
fn units_in_options_round_trip_in_messages() {
    same(&[Some(None::<u8>), None, Some(Some(0))]);
    same(&[Some(()), None]);
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug, Default)]
struct Sparse {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    second: Option<u32>,
}

#[test]
fn skipped_fields_keep_other_positions() {
    same(&[Sparse { first: Some(1), second: Some(2) }, Sparse::default()]);
    same(&[Sparse { first: Some(1), second: None }]);
    same(&[Sparse { first: None, second: Some(2) }]);
}

/// Units in options also arrive in arguments and results of pools, and in captures of closures.
#[test]
fn units_in_options_pass_pools_and_closures() {
    let pool = mp::Pool::new(1).unwrap();
    for value in [None, Some(None), Some(Some(()))] {
        assert_eq!(pool.apply(|value: Option<Option<()>>| value, value).unwrap(), value);
        let captured = mp::closure!([value] || -> Option<Option<()>> { *value });
        let there = pool.apply(|closure: mp::Closure<(), Option<Option<()>>>| closure.call(()), captured);
        assert_eq!(there.unwrap(), value);
    }
    let wrapped = pool.apply(|value: u8| (value > 1).then_some(()), 2).unwrap();
    assert_eq!(wrapped, Some(()));
}

/// Each level of nested closures counts towards the limit of nesting, although each level has a separate
/// serializer. So closures that can be put can be called.
#[test]
fn nested_closures_round_trip_in_messages() {
    let deep = |levels: u32| {
        let first = mp::Closure::new(|x: u32| x);
        (0..levels).fold(first, |inner, _| mp::closure!([inner] |x: u32| inner.call(x) + 1))
    };
    let check = move || {
        let mut refused = 0;
        for levels in [0, 1, 10, 20, 30, 40, 50, 60, 64, 70, 130, 500, 1100] {
            match mp::message::pack(deep(levels)) {
                Ok(envelope) => {
                    let arrived: mp::Closure<u32, u32> = mp::message::unpack(envelope).unwrap();
                    assert_eq!(arrived.call(7), 7 + levels);
                }
                Err(error) => {
                    assert!(levels > 20 && error.to_string().contains("nested"), "{levels}: {error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0);
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(check).unwrap().join().unwrap();
}
