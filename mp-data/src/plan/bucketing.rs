//! Batches of samples with similar lengths, which are made in windows of the order.

use mp_core::mutex::{Mutex, MutexGuard};

use super::error::PlanError;
use super::order::{DrawOrder, Item, PlannedBatch};
use super::permutation::shuffle;
use super::philox::{RngPurpose, epoch_key};
use super::sampler::{Batching, Uneven};
use super::saved_state::WindowStart;
use crate::fork_local::ForkLocal;

/// Windows of an epoch whose starts are known. All windows of `BucketByLength` have equally many batches, so
/// each start is computed. The start of a window of `MaxTokens` depends on all earlier windows. To find batch
/// k, the windows after the last known start are divided into batches. Saved states contain a start
/// ([`WindowStart`]).
#[derive(Debug, Default)]
pub(super) struct Windows(ForkLocal<Mutex<KnownWindows>>);

#[derive(Debug, Default)]
struct KnownWindows {
    /// Number of the first window of `MaxTokens` whose start is known. For this window and each later known
    /// window, `before` has the number of batches in all earlier windows.
    first: u64,
    before: Vec<u64>,
    /// Window that was divided into batches last.
    window: Option<Window>,
}

impl KnownWindows {
    /// Returns the last known window that begins at or before group `k`. A group is `world` batches, one for
    /// each rank.
    fn last_before(&self, k: u64, world: u64) -> WindowStart {
        let behind = self.before.partition_point(|before| before / world <= k);
        let Some(i) = behind.checked_sub(1) else { return WindowStart::START };
        WindowStart { number: self.first + i as u64, before: self.before[i] }
    }

    /// Stores the start of a window, if the window follows the last known window, or no window is known.
    fn begins(&mut self, start: WindowStart) {
        if self.before.is_empty() {
            self.first = start.number;
        }
        if start.number == self.first + self.before.len() as u64 {
            self.before.push(start.before);
        }
    }

    /// Forgets all windows.
    fn forget(&mut self) {
        *self = KnownWindows::default();
    }
}

#[derive(Debug)]
struct Window {
    start: WindowStart,
    batches: Vec<Vec<Item>>,
    /// Last batches, which are too few to give one to each rank. They become part of the next window.
    left: Vec<Vec<Item>>,
    last: bool,
}

impl Window {
    /// Returns the number of the first group in this window. A group is `world` batches, one for each rank.
    fn group(&self, world: u64) -> u64 {
        self.start.before / world
    }

    /// Returns the start of the next window.
    fn next(&self, world: u64) -> WindowStart {
        let batches = self.batches.len() + self.left.len();
        WindowStart { number: self.start.number + 1, before: self.group(world) * world + batches as u64 }
    }
}

impl Windows {
    /// Locks the known windows. In a forked copy of the process, no windows are known at first.
    fn known(&self) -> MutexGuard<'_, KnownWindows> {
        self.0.get().lock()
    }

    /// Stores the start of a window.
    fn note(&self, start: WindowStart) {
        self.known().begins(start);
    }

    /// Stores the start of a window from a saved state. An impossible start is ignored: in that case all
    /// windows from the first on are divided into batches.
    pub(super) fn begins(&self, order: &DrawOrder, start: WindowStart) {
        let Some(Batching::MaxTokens { window, .. }) = &order.plan.batching else { return };
        let draws = start.number.checked_mul(*window);
        let all = order.draw_count.unwrap_or(0);
        let can_be = draws.is_some_and(|draws| draws < all && start.before <= draws);
        if can_be {
            self.note(start);
        }
    }

    /// Returns the start of the last known window at or before batch `k`. Returns `None` if that is the first
    /// window, or if windows don't depend on each other.
    pub(super) fn start(&self, order: &DrawOrder, k: u64) -> Option<WindowStart> {
        let Some(Batching::MaxTokens { .. }) = &order.plan.batching else { return None };
        Some(self.known().last_before(k, u64::from(order.plan.world))).filter(|start| start.number > 0)
    }

    pub(super) fn batch(&self, order: &DrawOrder, k: u64) -> Result<Option<PlannedBatch>, PlanError> {
        let plan = &*order.plan;
        let (world, rank) = (u64::from(plan.world), plan.rank as usize);
        if order.draws() == 0 {
            return Ok(None);
        }
        // The window is moved out of the lock, because a sampler of the user runs below and may request
        // batches of this order.
        let kept = self.known().window.take();
        let window = if let Some(Batching::BucketByLength { window: groups, .. }) = &plan.batching {
            let number = k / groups;
            if number.saturating_mul(groups * plan.global) >= order.draws() {
                return Ok(None);
            }
            match kept {
                Some(window) if window.start.number == number => window,
                _ => cut(order, WindowStart { number, before: number * groups * world }, Vec::new(), k)?,
            }
        } else {
            self.find(order, kept, k)?
        };
        let full = window.batches.len() as u64 / world;
        let at = k - window.group(world);
        let found = if at < full {
            Some((window.batches[(at * world) as usize + rank].clone(), false))
        } else if at == full && window.last && !window.left.is_empty() {
            match plan.uneven {
                Uneven::Drop => None,
                Uneven::Error => return Err(order.uneven(k, window.left.len() as u64)),
                Uneven::Pad => {
                    Some((window.left[rank % window.left.len()].clone(), rank >= window.left.len()))
                }
            }
        } else {
            None
        };
        self.known().window = Some(window);
        Ok(found.map(|(items, repeated)| PlannedBatch {
            number: k,
            valid: if repeated { 0 } else { items.len() },
            items,
        }))
    }

    /// Returns the window of `MaxTokens` that has batch `k` of each rank.
    fn find(&self, order: &DrawOrder, kept: Option<Window>, k: u64) -> Result<Window, PlanError> {
        let world = u64::from(order.plan.world);
        let start = {
            let mut known = self.known();
            if known.before.first().is_some_and(|before| before / world > k) {
                // The batch is before the first known window, whose start came from a state.
                known.forget();
            }
            known.last_before(k, world)
        };
        let mut window = match kept {
            Some(window) if window.start == start => window,
            _ => match leftover_before(order, start, k)? {
                Some(left) => cut(order, start, left, k)?,
                None => {
                    // The start from the state is impossible.
                    self.known().forget();
                    cut(order, WindowStart::START, Vec::new(), k)?
                }
            },
        };
        self.note(window.start);
        while !window.last && window.next(world).before / world <= k {
            let next = window.next(world);
            let left = window.left;
            window = cut(order, next, left, k)?;
            self.note(next);
        }
        Ok(window)
    }
}

/// Returns the batches of earlier windows that could not be divided among all ranks, and so belong to this
/// window. Returns `None` if the earlier windows have too few batches for this start.
fn leftover_before(
    order: &DrawOrder,
    start: WindowStart,
    k: u64,
) -> Result<Option<Vec<Vec<Item>>>, PlanError> {
    let wanted = (start.before % u64::from(order.plan.world)) as usize;
    let mut left = Vec::new();
    for number in (0..start.number).rev() {
        if left.len() >= wanted {
            break;
        }
        let (mut own, _) = batches_of(order, number, k)?;
        own.drain(..own.len().saturating_sub(wanted - left.len()));
        own.truncate(wanted - left.len());
        own.append(&mut left);
        left = own;
    }
    Ok((left.len() == wanted).then_some(left))
}

fn cut(
    order: &DrawOrder,
    start: WindowStart,
    mut before: Vec<Vec<Item>>,
    k: u64,
) -> Result<Window, PlanError> {
    let (mut batches, last) = batches_of(order, start.number, k)?;
    before.append(&mut batches);
    let left = before.split_off(before.len() - before.len() % order.plan.world as usize);
    Ok(Window { start, batches: before, left, last })
}

/// Returns the batches of a window, permuted, and `true` if the window is the last.
fn batches_of(order: &DrawOrder, number: u64, k: u64) -> Result<(Vec<Vec<Item>>, bool), PlanError> {
    let plan = &*order.plan;
    let (lengths, positions, tokens) = match &plan.batching {
        Some(Batching::BucketByLength { lengths, window }) => (lengths, window * plan.global, None),
        Some(Batching::MaxTokens { lengths, window, tokens }) => (lengths, *window, Some(*tokens)),
        _ => unreachable!("only batches of these two are made in windows"),
    };
    let end = ((number + 1) * positions).min(order.draws());
    let mut items: Vec<Item> =
        (number * positions..end).map(|p| order.item(p, k)).collect::<Result<_, _>>()?;
    let length = |item: &Item| u64::from(lengths[item.index]);
    items.sort_unstable_by_key(|item| (length(item), item.position));
    let mut batches: Vec<Vec<Item>> = Vec::new();
    for item in items {
        // Items are sorted by length, so this item is the longest of its batch.
        let fits = |batch: &Vec<Item>| match tokens {
            None => (batch.len() as u64) < plan.batch_size,
            Some(tokens) => (batch.len() as u64 + 1) * length(&item) <= tokens,
        };
        match batches.last_mut() {
            Some(batch) if fits(batch) => batch.push(item),
            _ => batches.push(vec![item]),
        }
    }
    let last = end == order.draws();
    if last
        && plan.drop_last
        && tokens.is_none()
        && batches.last().is_some_and(|b| (b.len() as u64) < plan.batch_size)
    {
        batches.pop();
    }
    shuffle(&mut batches, epoch_key(plan.seed, order.epoch, RngPurpose::LengthWindows).wrapping_add(number));
    Ok((batches, last))
}
