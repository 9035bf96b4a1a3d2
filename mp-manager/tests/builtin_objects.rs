//! Ready-made objects, from two processes.

mod common;

use std::collections::HashMap;

use common::{DEADLINE, eventually, manager, take};
use mp_manager::{CallError, Dict, List, ManagerHandle, Namespace, Proxy};
use mp_pool::Pool;
use mp_queue::Queue;
use mp_spawn::{Process, closure};
use mp_sync::Lock;

#[test]
fn manager_shares_dicts_lists_and_namespaces() {
    let manager = manager();
    let dict = manager.dict::<String, List<u32>>().unwrap().with_timeout(DEADLINE);
    let space = manager.namespace().unwrap().with_timeout(DEADLINE);
    let work = |(manager, dict, space): (ManagerHandle, Dict<String, List<u32>>, Namespace)| {
        // After this process has ended, only another object holds a handle of this list.
        let list = manager.list::<u32>()?;
        list.extend([3, 1, 2])?;
        dict.insert("numbers", list)?;
        space.set("pid", std::process::id())?;
        space.set("dict", dict.clone())
    };
    let child = Process::spawn(work, (manager.handle(), dict.clone(), space.clone())).unwrap();
    let pid = child.pid();
    child.join().unwrap();
    let list = dict.get("numbers").unwrap().unwrap().with_timeout(DEADLINE);
    assert_eq!(list.iter().unwrap().collect::<Vec<_>>(), [3, 1, 2]);
    list.proxy().call(closure!([] |list: &mut Vec<u32>| list.sort_unstable())).unwrap();
    assert_eq!((list.remove(0).unwrap(), list.pop().unwrap(), list.len().unwrap()), (1, Some(3), 1));
    list.insert(1, 9).unwrap();
    assert!(
        matches!(list.insert(5, 9), Err(CallError::Raised(_)))
            && matches!(list.remove(2), Err(CallError::Raised(_)))
    );
    assert_eq!(space.get::<u32>("pid").unwrap(), Some(pid));
    assert!(matches!(space.get::<String>("pid"), Err(CallError::Raised(_))));
    let again = space.get::<Dict<String, List<u32>>>("dict").unwrap().unwrap();
    assert!(again.contains("numbers").unwrap() && again.proxy().is_same_object(dict.proxy()));
    assert!(space.remove("pid").unwrap() && !space.remove("pid").unwrap());
    assert_eq!(space.names().unwrap(), ["dict"]);
    assert_eq!(dict.len().unwrap(), 1);
    assert!(dict.remove("numbers").unwrap().is_some() && dict.is_empty().unwrap());
    assert_eq!(dict.iter().unwrap().count() + dict.keys().unwrap().len() + dict.values().unwrap().len(), 0);
    list.clear().unwrap();
    assert!(list.is_empty().unwrap() && list.get(0).unwrap().is_none());
}

#[test]
fn changes_of_an_object_within_one_call_are_atomic() {
    let manager = manager();
    let counts = manager.dict::<u8, u64>().unwrap().with_timeout(DEADLINE);
    let count = |counts: Dict<u8, u64>| {
        for i in 0..300_u32 {
            let add =
                closure!([] |counts: &mut HashMap<u8, u64>, key: u8| *counts.entry(key).or_default() += 1);
            counts.proxy().call_with(add, (i % 3) as u8)?;
        }
        Ok::<_, CallError>(())
    };
    let children = [(); 3].map(|()| Process::spawn(count, counts.clone()).unwrap());
    children.iter().for_each(|child| child.join().unwrap());
    let mut all: Vec<_> = counts.iter().unwrap().collect();
    all.sort_unstable();
    assert_eq!(all, [(0, 300), (1, 300), (2, 300)]);
    assert_eq!(counts.get_or_insert(0, 5).unwrap() + counts.get_or_insert(7, 5).unwrap(), 305);
}

#[test]
fn queues_and_values_outlive_the_managers_server() {
    let manager = manager();
    let queue = manager.queue::<u32>(4).unwrap();
    let (value, array) = (manager.value(1_u64).unwrap(), manager.array(&[1_u8, 2]).unwrap());
    let work = |(queue, value): (Queue<u32>, Lock<u64>)| {
        *value.lock().unwrap() += 1;
        queue.put(7).unwrap();
    };
    let child = Process::spawn(work, (queue.clone(), value.clone())).unwrap();
    manager.shutdown(DEADLINE).unwrap();
    child.join().unwrap();
    assert_eq!(take(&queue), 7);
    assert_eq!((*value.lock().unwrap(), array.lock().unwrap()[1]), (2, 2));
}

#[test]
fn pool_in_the_server_ends_with_its_last_proxy() {
    let manager = manager();
    let pool = manager.pool(2).unwrap().with_timeout(DEADLINE);
    let work = |pool: Proxy<Pool>| {
        let squares = closure!([] |pool: &mut Pool, numbers: Vec<u64>| pool.map(|x: u64| x * x, numbers));
        pool.call_with(squares, vec![1, 2, 3])
    };
    assert_eq!(Process::spawn(work, pool.clone()).unwrap().join().unwrap(), [1, 4, 9]);
    let pids = pool.call(closure!([] |pool: &mut Pool| pool.pids())).unwrap();
    assert!(pids.iter().all(|pid| common::alive(*pid)));
    drop(pool);
    eventually("the workers end", || pids.iter().all(|pid| !common::alive(*pid)));
}
