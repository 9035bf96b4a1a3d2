//! Results of several calls at once, waits with a time-out, and errors that name their item.

mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::{DEADLINE, Gate, got, join, kill, stop_at};
use mp_core::{Waitable, select, wait};
use mp_pool::{Pool, TaskError, as_completed};
use mp_queue::Queue;
use mp_spawn::Process;

#[test]
fn imap_next_timeout_loses_no_result() {
    for ordered in [true, false] {
        let pool = Pool::new(2).unwrap();
        let gate = Gate::new();
        let items = (0..6_u32).map(|number| (gate.clone(), number));
        let call = pool.task(stop_at).chunksize(1);
        let mut results = if ordered { call.imap(items) } else { call.imap_unordered(items) };
        let late = results.next_timeout(Duration::from_millis(1)).unwrap_err();
        assert_eq!((late.in_flight, late.to_string().contains("in flight: 6 tasks")), (6, true));
        assert!(results.next_timeout(Duration::ZERO).is_err());
        let mut seen = Vec::new();
        gate.open(6);
        for _ in 0..6 {
            seen.push(results.next_timeout(DEADLINE).unwrap().unwrap().unwrap());
        }
        assert!(results.next_timeout(Duration::ZERO).unwrap().is_none());
        assert!(!ordered || seen.is_sorted());
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>().len(), 6);
        join(&pool);
    }
}

#[test]
fn as_completed_yields_results_in_completion_order() {
    let (pool, other) = (Pool::new(2).unwrap(), Pool::new(1).unwrap());
    let gates = [Gate::new(), Gate::new(), Gate::new()];
    let pools = [&pool, &pool, &other];
    let results: Vec<_> =
        (0..3).map(|i| pools[i].apply_async(stop_at, (gates[i].clone(), i as u32))).collect();
    gates.iter().for_each(|gate| _ = gate.arrived());
    let mut completed = as_completed(results);
    assert_eq!(completed.len(), 3);
    assert_eq!(completed.next_timeout(Duration::from_millis(1)).unwrap_err().in_flight, 3);
    for place in [2, 0] {
        gates[place].open(1);
        let (at, value) = completed.next_timeout(DEADLINE).unwrap().unwrap();
        assert_eq!((at, value.unwrap()), (place, place as u32));
    }
    // A call whose pool was dropped, and the end of the iterator.
    drop(pool);
    let (at, value) = completed.next().unwrap();
    assert!(at == 1 && matches!(value, Err(TaskError::Terminated)));
    assert!(completed.next().is_none() && completed.next_timeout(Duration::ZERO).unwrap().is_none());
    // Results that are already available, of many items each.
    let maps = [other.map_async(|x: u32| x + 1, 0..3), other.map_async(|x: u32| x, 5..6)];
    maps.iter().for_each(|map| map.wait());
    let all: BTreeSet<_> = as_completed(maps).map(|(at, values)| (at, values.unwrap())).collect();
    assert_eq!(all, BTreeSet::from([(0, vec![1, 2, 3]), (1, vec![5])]));
    join(&other);
}

#[test]
fn wait_accepts_task_results_queues_and_processes() {
    let pool = Pool::new(1).unwrap();
    let (gate, news) = (Gate::new(), Queue::<u32>::unbounded().unwrap());
    let process = Process::builder().spawn(|gate: Gate| gate.pass(9), gate.clone()).unwrap();
    gate.arrived();
    let result = pool.apply_async(stop_at, (gate.clone(), 1));
    let map = pool.map_async(|x: u32| x, 0..3);
    gate.arrived();
    let things: [&dyn Waitable; 4] = [&news, &result, &process, &map];
    assert_eq!(wait(&things, Some(Duration::from_millis(1))).unwrap(), [0; 0]);
    news.put(4).unwrap();
    assert_eq!(select(&things, Some(DEADLINE)).unwrap(), Some(0));
    assert_eq!(news.get().unwrap(), Some(4));
    gate.open(2);
    let until = Instant::now() + DEADLINE;
    let mut seen = BTreeSet::new();
    while seen.len() < 3 {
        assert!(Instant::now() < until, "{seen:?}");
        seen.extend(wait(&things, Some(DEADLINE)).unwrap());
    }
    assert_eq!(seen, BTreeSet::from([1, 2, 3]));
    // Results that are already available.
    assert_eq!(wait(&[&result, &map], None).unwrap(), [0, 1]);
    assert_eq!((got(result).unwrap(), got(map).unwrap()), (1, vec![0, 1, 2]));
    let later = pool.apply_async(|x: u32| x, 5);
    assert_eq!(wait(&[&later], Some(DEADLINE)).unwrap(), [0]);
    join(&pool);
}

#[test]
fn error_of_a_call_with_many_items_names_its_item() {
    let pool = Pool::new(2).unwrap();
    let odd = |x: u32| if x % 2 == 1 { Err("odd") } else { Ok(x) };
    let error = pool.task(odd).chunksize(3).map([0, 2, 4, 6, 7, 8]).unwrap_err();
    assert_eq!(error.index(), Some(4));
    let text = error.to_string();
    assert!(text.starts_with("item 4: worker ") && text.contains("odd") && !text.contains("rank"), "{text}");
    for ordered in [true, false] {
        let call = pool.task(odd);
        let results = if ordered { call.imap(0..100) } else { call.imap_unordered(0..100) };
        let indices: BTreeSet<_> = results.filter_map(|result| result.err()?.index()).collect();
        assert!(indices.into_iter().eq((1..100).step_by(2)));
    }
    let errors: Vec<_> = pool.map_async(odd, 0..4).results().into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.iter().filter_map(TaskError::index).collect::<Vec<_>>(), [1, 3]);
    // Errors of a death, of a time-out, and of a single call.
    let die = |x: u32| {
        if x == 5 {
            kill(std::process::id())
        }
    };
    let error = pool.map(die, 0..10).unwrap_err();
    assert!(error.index() == Some(5) && error.to_string().starts_with("item 5: worker "), "{error}");
    let hang = |x: u64| std::thread::sleep(Duration::from_secs(60 * x)); // sleep: it takes too long
    let error = pool.task(hang).timeout(Duration::from_millis(50)).map([0, 1]).unwrap_err();
    assert!(error.index() == Some(1) && error.to_string().starts_with("item 1: the task took"), "{error}");
    let error = pool.apply(odd, 1).unwrap_err();
    assert!(error.index().is_none() && error.to_string().starts_with("worker "), "{error}");
    join(&pool);
}
