//! Loaders whose batches are made by workers of other members of a cluster. Each member is a process with an
//! arena of its own, like a program on another host.
#![cfg(feature = "net")]

mod common;

use std::collections::HashSet;
use std::time::Duration;

use common::shards::{Shards, all_of, streaming};
use common::{all, builder, eventually, next};
use mp_data::{
    AnyResult, BuildError, Context, DataLoader, DataLoaderBuilder, Dataset, Item, StreamLoaderBuilder,
};
use mp_harness::members::{Member, argument, part, ready};
use mp_net::{Cluster, ClusterConfig};
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Number of workers of a member.
const WORKERS: usize = 2;

fn config(rank: usize, first: &str) -> ClusterConfig {
    ClusterConfig::new(rank, 2, first).timeout(Duration::from_secs(20))
}

/// Starts a member that serves a loader.
fn start(part: &str, cluster: &Cluster) -> Member {
    Member::start(part, cluster.address()).0
}

#[test]
#[ignore = "the program of the members that other tests start"]
fn started_member() {
    let cluster = Cluster::join(&config(1, &argument())).unwrap();
    let served = match part().unwrap().as_str() {
        "indexed" => builder(200, WORKERS).serve(&cluster),
        "slow" => slow(WORKERS).serve(&cluster),
        "stream" => streamed(WORKERS).serve(&cluster),
        _ => builder(200, WORKERS).seed(18).serve(&cluster),
    };
    let served = served.unwrap();
    ready("it serves");
    served.wait();
}

fn first() -> Cluster {
    Cluster::join(&config(0, "127.0.0.1:0")).unwrap()
}

/// Dataset whose batches take longer to make than to transfer. A batch contains the id of the process that
/// made it.
#[derive(Serialize, Deserialize)]
struct Slow;

impl Dataset for Slow {
    type Batch = Tensor<u32>;

    fn len(&self) -> usize {
        800
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        // sleep: each batch takes so long that the workers of all hosts make some.
        std::thread::sleep(Duration::from_millis(20));
        let there = u32::from(part().is_some());
        cx.rows(items, &[2], |item, _, row| {
            row.copy_from_slice(&[item.index as u32, there]);
            Ok(())
        })
    }
}

fn slow(workers: usize) -> DataLoaderBuilder<Slow> {
    DataLoader::builder(Slow).num_workers(workers).batch_size(2).shuffle(true).seed(5).name("slow")
}

fn streamed(workers: usize) -> StreamLoaderBuilder<Shards> {
    streaming(&[7, 30, 12, 3, 25], workers)
}

#[test]
fn loader_batches_are_the_same_on_any_hosts() {
    let expected = all(builder(200, 0).build().unwrap().epochs(0..3));
    let cluster = first();
    let member = start("indexed", &cluster);
    let loader = builder(200, 1).hosts(&cluster).build().unwrap();
    eventually("workers of both hosts are ready", || loader.pids().len() == 1 + WORKERS);
    assert_eq!(all(loader.epochs(0..3)), expected);
    drop(member);
    assert_eq!(all(loader.epochs(0..3)), expected);
}

#[test]
fn batches_of_a_killed_host_are_made_again() {
    let cluster = first();
    let member = start("slow", &cluster);
    let loader = slow(1).hosts(&cluster).build().unwrap();
    eventually("workers of both hosts are ready", || loader.pids().len() == 1 + WORKERS);
    let (mut batches, mut there, mut indices) = (loader.epoch(0), HashSet::new(), Vec::new());
    let mut member = Some(member);
    while let Some(batch) = next(&mut batches) {
        let batch = batch.unwrap();
        indices.extend(batch.info.indices());
        let rows: Vec<u32> = batch.to_vec();
        assert!(rows.chunks(2).zip(batch.info.indices()).all(|(row, index)| row[0] as usize == index));
        there.insert(rows[1]);
        if there.len() == 2 {
            drop(member.take());
        }
    }
    assert!(member.is_none(), "both hosts make batches");
    let plan = slow(0).build().unwrap();
    let order = plan.plan().epoch(0);
    let expected: Vec<usize> = (0..400)
        .flat_map(|number| order.batch(number).unwrap().unwrap().items)
        .map(|item| item.index)
        .collect();
    assert_eq!(indices, expected);
}

#[test]
fn streamed_batches_are_the_same_on_any_hosts() {
    let expected = all_of(streamed(0).build().unwrap().epoch(0));
    let cluster = first();
    let member = start("stream", &cluster);
    let loader = streamed(1).hosts(&cluster).build().unwrap();
    eventually("workers of both hosts are ready", || loader.pids().len() == 1 + WORKERS);
    assert_eq!(all_of(loader.epoch(0)), expected);
    drop(member);
    assert_eq!(all_of(loader.epoch(0)), expected);
}

#[test]
fn served_loader_with_another_seed_is_not_used() {
    let cluster = first();
    let member = start("other seed", &cluster);
    let loader = builder(200, 1).hosts(&cluster).build().unwrap();
    let expected = all(builder(200, 0).build().unwrap().epoch(0));
    assert_eq!(all(loader.epoch(0)), expected);
    assert_eq!(loader.pids().len(), 1);
    drop(member);
    let refused = builder(200, 0).hosts(&cluster).build().unwrap_err();
    assert!(matches!(refused, BuildError::Setting { setting: "num_workers", .. }), "{refused}");
    let refused = builder(200, 0).serve(&cluster).unwrap_err();
    assert!(matches!(refused, BuildError::Setting { setting: "num_workers", .. }), "{refused}");
}
