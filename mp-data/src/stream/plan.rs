//! Assignment of shards to lanes, and permutations of samples.

use serde::{Deserialize, Serialize};

use crate::BuildError;
use crate::dataset::stream_position::{MOST_SAMPLES, MOST_SHARDS};
use crate::plan::{RngPurpose, epoch_key, mix, no_such_rank, shuffle};

/// Order of a rank's shards in one pass: a list if they are shuffled, else `None`.
pub(crate) struct ShardOrder(Option<Vec<u32>>);

/// Settings that determine the order of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamPlan {
    pub(crate) seed: u64,
    pub(crate) shards: u64,
    pub(crate) rank: u32,
    pub(crate) world: u32,
    /// Number of lanes of this rank: at least one, and at most the number of its shards.
    pub(crate) lanes: u64,
    pub(crate) batch_size: u64,
    pub(crate) drop_last: bool,
    pub(crate) shuffle: bool,
    /// Number of samples of a lane that are permuted together, or 0.
    pub(crate) window: u64,
    /// Number of batches of an epoch. `None` if an epoch is one pass over the shards.
    pub(crate) steps: Option<u64>,
}

impl StreamPlan {
    pub(crate) fn new() -> StreamPlan {
        StreamPlan {
            seed: 0,
            shards: 0,
            rank: 0,
            world: 1,
            lanes: 16,
            batch_size: 1,
            drop_last: false,
            shuffle: false,
            window: 0,
            steps: None,
        }
    }

    /// Returns all fields as numbers, for checksums.
    pub(crate) fn words(&self) -> [u64; 9] {
        let StreamPlan { seed, shards, rank, world, lanes, batch_size, drop_last, shuffle, window, steps } =
            *self;
        let flags = u64::from(drop_last) | u64::from(shuffle) << 1 | u64::from(steps.is_some()) << 2;
        let (rank, world) = (u64::from(rank), u64::from(world));
        [seed, shards, rank, world, lanes, batch_size, flags, window, steps.unwrap_or_default()]
    }

    /// Validates the plan and completes it for a dataset with this number of shards.
    pub(crate) fn for_shards(mut self, shards: usize) -> Result<StreamPlan, BuildError> {
        let check = |holds: bool, setting, reason: &dyn Fn() -> String| {
            if holds { Ok(()) } else { Err(BuildError::Setting { setting, reason: reason() }) }
        };
        let (rank, world) = (self.rank, self.world);
        check(rank < world, "distributed", &|| no_such_rank(rank, world))?;
        check(shards >= world as usize, "distributed", &|| {
            format!(
                "the dataset has {shards} shards, fewer than there are ranks ({world}): a rank would \
                 have none"
            )
        })?;
        check(shards <= MOST_SHARDS, "shards", &|| {
            format!("{shards} shards; at most {MOST_SHARDS} are possible")
        })?;
        for (setting, value) in [("batch_size", self.batch_size), ("lanes", self.lanes)] {
            let is_possible = (1..=MOST_SAMPLES).contains(&value);
            check(is_possible, setting, &|| format!("it is {value}; possible are 1 to 2⁴⁰"))?;
        }
        check(self.window <= MOST_SAMPLES, "shuffle_window", &|| {
            format!("it is {}; at most 2⁴⁰ are possible", self.window)
        })?;
        self.shards = shards as u64;
        self.lanes = self.lanes.min((self.shards - u64::from(rank)).div_ceil(u64::from(world)));
        Ok(self)
    }

    /// Returns the seed of one pass of an epoch. With `steps`, an epoch can have several passes.
    pub(crate) fn pass_seed(&self, pass: u64) -> u64 {
        if pass == 0 {
            return self.seed;
        }
        mix(self.seed.wrapping_add(pass.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    /// Returns the shards of this rank, in the order of one pass of an epoch. Lane l has the shards at l, l +
    /// lanes, l + 2 · lanes and so on.
    pub(crate) fn order(&self, epoch: u64, pass: u64) -> ShardOrder {
        if !self.shuffle {
            return ShardOrder(None);
        }
        let mut shards: Vec<u32> = (self.rank..self.shards as u32).step_by(self.world as usize).collect();
        let key = epoch_key(self.pass_seed(pass), epoch, RngPurpose::Shards);
        shuffle(&mut shards, key.wrapping_add(u64::from(self.rank)));
        ShardOrder(Some(shards))
    }

    /// Returns the shard with number `shard_in_lane` in a lane. Returns `None` after the last shard of the
    /// lane.
    pub(crate) fn shard(&self, order: &ShardOrder, lane: u64, shard_in_lane: u64) -> Option<usize> {
        let at = shard_in_lane.checked_mul(self.lanes)?.checked_add(lane)?;
        let shard = match &order.0 {
            Some(shards) => u64::from(*shards.get(usize::try_from(at).ok()?)?),
            None => at.checked_mul(u64::from(self.world))?.checked_add(u64::from(self.rank))?,
        };
        usize::try_from(shard).ok().filter(|_| shard < self.shards)
    }

    /// Returns the number of samples that are read before the first of them is taken.
    pub(crate) fn read_at_once(&self) -> u64 {
        if self.window == 0 { self.batch_size } else { self.window }
    }

    /// Permutes the samples of a window that begins at this position.
    pub(crate) fn permute<T>(&self, samples: &mut [T], (epoch, pass): (u64, u64), begins: u64) {
        if self.window > 0 {
            let key = epoch_key(self.pass_seed(pass), epoch, RngPurpose::ShuffleWindows);
            shuffle(samples, mix(key.wrapping_add(begins)));
        }
    }
}
