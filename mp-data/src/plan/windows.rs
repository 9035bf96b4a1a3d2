//! Batches of samples of like lengths, which are made in windows of the order.

use std::sync::{Mutex, PoisonError};

use super::{
    Batching, Item, PlanError, PlannedBatch, Uneven, epoch::Order, permutation::shuffle, philox::epoch_key,
};

/// What was computed of an epoch's windows. Those of `BucketByLength` have equally many batches, so any is made at once; of `MaxTokens`
/// only those before it tell where a batch is: going to batch k costs the cutting of all windows before it, once.
#[derive(Debug, Default)]
pub(super) struct Windows(Mutex<Option<Window>>);

#[derive(Debug)]
struct Window {
    number: u64,
    /// The first group of `world` batches in it.
    group: u64,
    batches: Vec<Vec<Item>>,
    /// What could not be dealt to all ranks, for the next window.
    left: Vec<Vec<Item>>,
    last: bool,
}

impl Windows {
    pub(super) fn batch(&self, order: &Order, k: u64) -> Result<Option<PlannedBatch>, PlanError> {
        let plan = &*order.plan;
        let world = plan.world as usize;
        if order.draws == 0 {
            return Ok(None);
        }
        // Taken out: a sampler of the user's runs below, and may ask for batches of this order itself.
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut window = match kept {
            Some(window) if window.group <= k => window,
            _ => cut(order, 0, 0, Vec::new(), k)?,
        };
        if let Some(Batching::BucketByLength { window: groups, .. }) = &plan.batching {
            let number = k / groups;
            if number.saturating_mul(groups * plan.global) >= order.draws {
                return Ok(None);
            }
            if number != window.number {
                window = cut(order, number, number * groups, Vec::new(), k)?;
            }
        } else {
            while k >= window.group + (window.batches.len() / world) as u64 && !window.last {
                let group = window.group + (window.batches.len() / world) as u64;
                let left =
                    if mp_core::mutant!("plan.window.leftover-lost") { Vec::new() } else { window.left };
                window = cut(order, window.number + 1, group, left, k)?;
            }
        }
        let full = (window.batches.len() / world) as u64;
        let at = k - window.group;
        let found = if at < full {
            Some((window.batches[at as usize * world + plan.rank as usize].clone(), false))
        } else if at == full && window.last && !window.left.is_empty() {
            match plan.uneven {
                Uneven::Drop => None,
                Uneven::Error => return Err(order.uneven(k, window.left.len() as u64)),
                Uneven::Pad => {
                    let rank = plan.rank as usize;
                    Some((window.left[rank % window.left.len()].clone(), rank >= window.left.len()))
                }
            }
        } else {
            None
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(window);
        Ok(found.map(|(items, repeated)| PlannedBatch {
            number: k,
            valid: if repeated { 0 } else { items.len() },
            items,
        }))
    }
}

fn cut(
    order: &Order,
    number: u64,
    group: u64,
    mut before: Vec<Vec<Item>>,
    k: u64,
) -> Result<Window, PlanError> {
    let plan = &*order.plan;
    let (lengths, positions, tokens) = match &plan.batching {
        Some(Batching::BucketByLength { lengths, window }) => (lengths, window * plan.global, None),
        Some(Batching::MaxTokens { lengths, window, tokens }) => (lengths, *window, Some(*tokens)),
        _ => unreachable!("only batches of these two are made in windows"),
    };
    let end = ((number + 1) * positions).min(order.draws);
    let mut items: Vec<Item> =
        (number * positions..end).map(|p| order.item(p, k)).collect::<Result<_, _>>()?;
    let length = |item: &Item| u64::from(lengths[item.index]);
    items.sort_unstable_by_key(|item| (length(item), item.position));
    let mut batches: Vec<Vec<Item>> = Vec::new();
    for item in items {
        // Sorted: each is the longest so far.
        let fits = |batch: &Vec<Item>| match tokens {
            None => (batch.len() as u64) < plan.batch_size,
            Some(tokens) => (batch.len() as u64 + 1) * length(&item) <= tokens,
        };
        match batches.last_mut() {
            Some(batch) if fits(batch) => batch.push(item),
            _ => batches.push(vec![item]),
        }
    }
    let last = end == order.draws;
    if last
        && plan.drop_last
        && tokens.is_none()
        && batches.last().is_some_and(|b| (b.len() as u64) < plan.batch_size)
    {
        batches.pop();
    }
    shuffle(&mut batches, epoch_key(plan.seed, order.epoch, 6).wrapping_add(number));
    before.append(&mut batches);
    let left = before.split_off(before.len() - before.len() % plan.world as usize);
    Ok(Window { number, group, batches: before, left, last })
}
