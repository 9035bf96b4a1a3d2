//! A value to which several parts of a message point arrives once, in any kind of message and in any order of
//! reading.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use mp::{Bundle, FrozenTensor, Message, Queue, Tensor, closure};
use mp_tests::{give, take, travels};
use proptest::prelude::*;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Settings {
    name: String,
    wide: i128,
}

fn settings() -> Arc<Settings> {
    Arc::new(Settings { name: "long settings".into(), wide: i128::MIN })
}

#[derive(Serialize, Deserialize, Clone)]
struct Job {
    number: u32,
    #[serde(with = "mp::message::shared")]
    settings: Arc<Settings>,
}

#[test]
fn hundred_message_fields_share_one_pointer() {
    let jobs = || {
        let one = settings();
        let job = |number| Job { number, settings: if number == 50 { settings() } else { one.clone() } };
        vec![(0..100).map(job).collect::<Vec<_>>()]
    };
    travels(jobs, |_, jobs| {
        assert!(
            jobs.iter().enumerate().all(|(i, job)| job.number as usize == i && *job.settings == *settings())
        );
        for job in &jobs {
            assert_eq!(Arc::ptr_eq(&job.settings, &jobs[0].settings), job.number != 50, "{}", job.number);
        }
        // No other part keeps the pointer alive.
        assert_eq!((Arc::strong_count(&jobs[0].settings), Arc::strong_count(&jobs[50].settings)), (99, 1));
    });
}

#[derive(Serialize, Deserialize)]
struct AllKinds {
    #[serde(with = "mp::message::shared")]
    text: Arc<str>,
    #[serde(with = "mp::message::shared")]
    again: Option<Arc<str>>,
    #[serde(with = "mp::message::shared")]
    slice: Rc<[u16]>,
    #[serde(with = "mp::message::shared")]
    slices: Vec<Rc<[u16]>>,
    #[serde(with = "mp::message::shared")]
    path: Arc<Path>,
    #[serde(with = "mp::message::shared")]
    by_name: BTreeMap<String, Arc<Path>>,
    #[serde(with = "mp::message::shared")]
    by_number: HashMap<u8, Option<Arc<str>>>,
}

#[test]
fn all_kinds_of_shared_pointers_round_trip() {
    let make = || {
        let (text, slice, path): (Arc<str>, Rc<[u16]>, Arc<Path>) =
            ("t".repeat(20_000).into(), vec![7; 20_000].into(), Path::new("/a").into());
        vec![AllKinds {
            again: Some(text.clone()),
            slices: vec![slice.clone(), Rc::from([]), slice.clone()],
            by_name: BTreeMap::from([("a".into(), path.clone())]),
            by_number: HashMap::from([(1, Some(text.clone())), (2, None)]),
            text,
            slice,
            path,
        }]
    };
    travels(make, |_, all| {
        assert!(all.text.len() == 20_000 && Arc::ptr_eq(&all.text, all.again.as_ref().unwrap()));
        assert!(Arc::ptr_eq(&all.text, all.by_number[&1].as_ref().unwrap()) && all.by_number[&2].is_none());
        assert!(*all.slice == [7; 20_000] && Rc::ptr_eq(&all.slice, &all.slices[0]));
        assert!(Rc::ptr_eq(&all.slice, &all.slices[2]) && all.slices[1].is_empty());
        assert!(Arc::ptr_eq(&all.path, &all.by_name["a"]) && *all.path == *Path::new("/a"));
        assert_eq!((Arc::strong_count(&all.text), Rc::strong_count(&all.slice)), (3, 3));
    });
}

/// Serde reads flattened fields last, and reads the contents of an untagged enum once for each variant.
#[test]
fn shared_pointers_are_found_in_any_field_order() {
    #[derive(Serialize, Deserialize)]
    struct Inner {
        #[serde(with = "mp::message::shared")]
        first: Arc<Settings>,
    }
    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Number(u64),
        Wrong {
            settings: Inner,
            missing: u8,
        },
        Text2(#[serde(with = "mp::message::shared")] Arc<str>),
        Right {
            #[serde(with = "mp::message::shared")]
            settings: Arc<Settings>,
        },
    }
    #[derive(Serialize, Deserialize)]
    struct Outer {
        #[serde(flatten)]
        inner: Inner,
        #[serde(skip_deserializing, with = "mp::message::shared")]
        ignored: Option<Arc<String>>,
        #[serde(with = "mp::message::shared")]
        second: Arc<Settings>,
        either: Vec<Either>,
        #[serde(with = "mp::message::shared")]
        last: Option<Arc<String>>,
    }
    let make = || {
        let (one, text) = (settings(), Some(Arc::new("a text".to_string())));
        let either = vec![
            Either::Right { settings: one.clone() },
            Either::Text2("shared".into()),
            Either::Text("a".into()),
        ];
        let inner = Inner { first: one.clone() };
        vec![Outer { inner, ignored: text.clone(), second: one, either, last: text }]
    };
    travels(make, |_, outer| {
        assert!(Arc::ptr_eq(&outer.inner.first, &outer.second));
        assert_eq!(outer.last.as_deref().map(String::as_str), Some("a text"));
        match &outer.either[..] {
            [Either::Right { settings }, Either::Text2(shared), Either::Text(text)] => {
                assert!(Arc::ptr_eq(settings, &outer.second));
                assert_eq!((&**shared, text.as_str()), ("shared", "a"));
            }
            _ => panic!("read as other variants"),
        }
    });
}

#[derive(Serialize, Deserialize)]
struct Holds {
    #[serde(with = "mp::message::shared")]
    all: Vec<Arc<Holds>>,
    number: u32,
    tensor: Option<FrozenTensor<u8>>,
}

#[test]
fn nested_shared_pointers_and_tensors_round_trip() {
    let make = || {
        let tensor = Tensor::from_slice(&[1, 2, 3], [3]).unwrap().freeze();
        let holds = |number, all| Arc::new(Holds { all, number, tensor: Some(tensor.clone()) });
        let leaf = holds(1, vec![]);
        let (left, right) = (holds(2, vec![leaf.clone()]), holds(3, vec![leaf.clone(), leaf.clone()]));
        let top = vec![left.clone(), right, left, leaf];
        vec![Holds { all: top, number: 4, tensor: Some(tensor) }]
    };
    travels(make, |_, top| {
        let [left, right, again, leaf] = &top.all[..] else { panic!("{} parts", top.all.len()) };
        assert!(Arc::ptr_eq(left, again) && Arc::ptr_eq(&left.all[0], leaf));
        assert!(right.all.iter().all(|part| Arc::ptr_eq(part, leaf)));
        assert_eq!((left.number, right.number, leaf.number, Arc::strong_count(leaf)), (2, 3, 1, 4));
        let storage = |holds: &Holds| holds.tensor.as_ref().unwrap().storage().clone();
        assert!(top.all.iter().all(|part| storage(part) == storage(&top)));
    });
}

#[derive(Message)]
struct Exclusive {
    tensor: Tensor<u8>,
    left: Job,
    right: Bundle<Vec<Job>>,
}

/// All fields of a type that derives `Message` belong to one message. The same holds for the captures of a
/// closure, for arguments, and for results.
#[test]
fn pointers_are_shared_across_all_values_of_a_message() {
    let make = || {
        let job = Job { number: 1, settings: settings() };
        let right = Bundle(vec![job.clone(), Job { number: 2, settings: settings() }, job.clone()]);
        vec![Exclusive { tensor: Tensor::zeros([3]).unwrap(), left: job, right }]
    };
    travels(make, |_, Exclusive { tensor, left, right: Bundle(right) }| {
        assert_eq!((tensor.len(), right.len()), (3, 3));
        assert!(
            Arc::ptr_eq(&left.settings, &right[0].settings)
                && Arc::ptr_eq(&left.settings, &right[2].settings)
        );
        assert!(!Arc::ptr_eq(&left.settings, &right[1].settings));
    });
    let worker = |_: usize, (first, second): (Job, Job)| {
        let same = Arc::ptr_eq(&first.settings, &second.settings);
        if same { Ok((first, second)) } else { Err("they are two") }
    };
    let job = Job { number: 1, settings: settings() };
    for (first, second) in mp::spawn(worker, (job.clone(), job.clone()), 2).unwrap() {
        assert!(Arc::ptr_eq(&first.settings, &second.settings));
    }
    let pool = mp::Pool::new(1).unwrap();
    let (left, right) = (job.clone(), job.clone());
    let task = closure!([left, right] |_nothing: ()| Arc::ptr_eq(&left.settings, &right.settings));
    assert_eq!(pool.task_closure(task).map(vec![()]).unwrap(), [true]);
    // Each task is a separate message, even if several tasks are sent together.
    let numbers = pool.map(|job: Job| job.settings.name.len() as u32 + job.number, vec![job; 100]).unwrap();
    assert_eq!(numbers, [14; 100]);
}

/// Two pointers have one address, and point to different types.
#[test]
fn pointers_of_distinct_types_stay_distinct() {
    #[derive(Serialize, Deserialize)]
    struct Both {
        #[serde(with = "mp::message::shared")]
        sized: Arc<[u8; 3]>,
        #[serde(with = "mp::message::shared")]
        slice: Arc<[u8]>,
        #[serde(with = "mp::message::shared")]
        units: Vec<Arc<()>>,
    }
    let make = || {
        let (sized, unit) = (Arc::new([1, 2, 3]), Arc::new(()));
        vec![Both { slice: sized.clone(), sized, units: vec![unit.clone(), Arc::new(()), unit] }]
    };
    travels(make, |_, Both { sized, slice, units }| {
        assert_eq!((*sized, &*slice), ([1, 2, 3], &[1, 2, 3][..]));
        let same = |a: usize, b: usize| Arc::ptr_eq(&units[a], &units[b]);
        assert_eq!((same(0, 2), same(0, 1)), (true, false));
    });
}

#[derive(Serialize, Deserialize)]
struct Cyclic {
    #[serde(with = "mp::message::shared")]
    next: Rc<RefCell<Option<Cycle>>>,
}

#[derive(Serialize, Deserialize)]
struct Cycle(Box<Cyclic>);

#[test]
fn cyclic_message_value_is_refused_and_returned() {
    let next = Rc::new(RefCell::new(None));
    let cyclic = || Cyclic { next: next.clone() };
    *next.borrow_mut() = Some(Cycle(Box::new(cyclic())));
    let queue = Queue::bounded(2).unwrap();
    let error = queue.put(cyclic()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("leads to itself") && text.contains("#[serde(skip)]"), "{text}");
    let back = error.into_value();
    assert!(Rc::ptr_eq(&back.next, &next));
    drop(back);
    // The refused message has left no traces.
    *next.borrow_mut() = None;
    assert_eq!(Rc::strong_count(&next), 1);
    give(&queue, cyclic());
    assert!(take(&queue).next.borrow().is_none());
}

/// A chain isn't a cycle. A chain is refused only if it is nested too deeply.
#[test]
fn only_too_long_chain_of_pointers_is_refused() {
    let chain = |n| {
        (0..n).fold(Holds { all: vec![], number: 0, tensor: None }, |next, number| Holds {
            all: vec![Arc::new(next)],
            number,
            tensor: None,
        })
    };
    travels(
        || vec![chain(50)],
        |_, top| {
            let mut depth = 0;
            let mut holds = &top;
            while let [next] = &holds.all[..] {
                (depth, holds) = (depth + 1, next);
            }
            assert_eq!(depth, 50);
        },
    );
    let queue = Queue::bounded(1).unwrap();
    let error = queue.put(chain(5000)).unwrap_err().to_string();
    assert!(error.contains("nested") && error.len() < 10_000, "{} {}", error.len(), &error[..200]);
}

/// The parent pointers of a tree are left out, and the receiver makes them again.
#[test]
fn weak_pointers_in_messages_are_skipped() {
    #[derive(Serialize, Deserialize)]
    struct Child {
        number: u8,
        #[serde(skip)]
        parent: Weak<u8>,
    }
    let parent = Arc::new(3);
    let child = || vec![Child { number: 1, parent: Arc::downgrade(&parent) }];
    travels(child, |_, child| assert!(child.number == 1 && child.parent.upgrade().is_none()));
}

/// Other formats contain a copy of the value for each pointer, as with serde's feature `rc`.
#[test]
fn shared_pointers_are_plain_in_other_formats() {
    let one = settings();
    let jobs = [Job { number: 1, settings: one.clone() }, Job { number: 2, settings: one }];
    let bytes = rmp_serde::to_vec(&jobs).unwrap();
    let arrived: Vec<Job> = rmp_serde::from_slice(&bytes).unwrap();
    assert!(arrived.iter().all(|job| *job.settings == *settings()));
    assert!(!Arc::ptr_eq(&arrived[0].settings, &arrived[1].settings));
    assert_eq!(Arc::strong_count(&jobs[0].settings), 2, "nothing keeps it");
}

/// Queue for jobs, and the settings that the jobs share.
type Within = (Queue<Vec<Job>>, Arc<Settings>);

thread_local! {
    static WITHIN: RefCell<Option<Within>> = const { RefCell::new(None) };
}

/// Value that sends a message while it is written, and receives a message while it is read.
struct Nests;

impl Serialize for Nests {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if let Some((queue, settings)) = WITHIN.take() {
            give(&queue, (5..8).map(|number| Job { number, settings: settings.clone() }).collect());
        }
        s.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for Nests {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if let Some((queue, _)) = WITHIN.take() {
            let jobs = take(&queue);
            assert!(
                jobs.iter()
                    .all(|job| Arc::ptr_eq(&job.settings, &jobs[0].settings) && job.settings.name == "inner")
            );
        }
        <()>::deserialize(d).map(|()| Nests)
    }
}

#[test]
fn nested_messages_have_separate_shared_parts() {
    let inner = Queue::bounded(1).unwrap();
    let outer = Queue::bounded(1).unwrap();
    let (one, other) = (settings(), Arc::new(Settings { name: "inner".into(), wide: 1 }));
    let job = Job { number: 1, settings: one.clone() };
    // The inner message contains the same part as the outer message.
    WITHIN.set(Some((inner.clone(), other.clone())));
    give(&outer, (job.clone(), Nests, Job { number: 2, settings: other.clone() }, job.clone()));
    WITHIN.set(Some((inner, other)));
    let (first, Nests, second, third) = take(&outer);
    assert!(Arc::ptr_eq(&first.settings, &third.settings) && second.settings.name == "inner");
    assert_eq!((first.settings.name.as_str(), Arc::strong_count(&one)), ("long settings", 2));
}

/// Random patterns of pointers: received pointers are equal exactly if the sent pointers were equal.
#[test]
fn random_shared_pointer_patterns_round_trip() {
    proptest!(|(mentions in prop::collection::vec((0..8_usize, any::<bool>()), 0..60))| {
        let parts: Vec<_> = (0..8).map(|number| {
            Arc::new(Settings { name: "x".repeat(number * 40), wide: number as i128 })
        }).collect();
        let job = |part: usize| Job { number: part as u32, settings: parts[part].clone() };
        let jobs: Vec<_> = mentions.iter().map(|(part, _)| job(*part)).collect();
        let queue = Queue::bounded(1).unwrap();
        give(&queue, jobs);
        let arrived = take(&queue);
        for (i, a) in arrived.iter().enumerate() {
            prop_assert_eq!(&*a.settings, &*parts[a.number as usize]);
            for b in &arrived[..i] {
                prop_assert_eq!(Arc::ptr_eq(&a.settings, &b.settings), a.number == b.number);
            }
        }
    });
}

/// Tensors need no `shared` attribute: a tensor that occurs several times in a message stays one storage.
#[test]
fn repeated_tensors_in_a_message_stay_one_storage() {
    let make = || {
        let frozen = Tensor::from_slice(&[1_u8, 2, 3, 4], [2, 2]).unwrap().freeze();
        let shared = Tensor::<f32>::zeros([3]).unwrap().share();
        let (turned, row, again) = (frozen.t().unwrap(), frozen.select(0, 1).unwrap(), frozen.clone());
        vec![(frozen, turned, row, again, shared.clone(), shared)]
    };
    travels(make, |_, (whole, turned, row, again, one, two)| {
        assert!([&turned, &row, &again].iter().all(|t| t.storage() == whole.storage()));
        one.set(&[1], 5.0).unwrap();
        assert!((two.get(&[1]).unwrap() - 5.0).abs() < f32::EPSILON);
    });
}
