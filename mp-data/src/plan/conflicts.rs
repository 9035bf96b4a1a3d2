//! Detection of settings that exclude each other.

use mp_core::user_code::catch_panic;

use super::builder::{PlanBuilder, setting};
use super::error::PlanError;
use super::sampler::{Batching, Sampler};

impl PlanBuilder {
    /// Returns an error that names both settings, if a setting has no effect together with another one.
    pub(super) fn check_conflicts(&self) -> Result<(), PlanError> {
        let is_set = [
            ("batch_size", self.batch_size.is_some()),
            ("global_batch_size", self.global.is_some()),
            ("drop_last", self.drop_last),
            ("shuffle", self.shuffle == Some(true)),
            ("shuffle_by", self.by.is_some()),
            ("sampler", self.sampler.is_some()),
            ("index_sampler", self.own_sampler.is_some()),
            ("batching", self.batching.is_some()),
            ("batch_sampler", self.own_batching.is_some()),
        ];
        // Checks that none of `others` is set together with this setting.
        let excludes = |name: &str, others: &[&str], why: &str| {
            let other = is_set.iter().find(|(other, set)| *set && others.contains(other));
            let refused = |(other, _): &(&'static str, bool)| {
                setting(other, format!("`{name}` {why}: leave one of them out"))
            };
            other.map_or(Ok(()), |other| Err(refused(other)))
        };
        if self.global.is_some() {
            excludes("global_batch_size", &["batch_size"], "says already how large batches are")?;
        }
        if self.own_batching.is_some() {
            excludes("batch_sampler", &["batching"], "says already how draws become batches")?;
        }
        let batching = if self.own_batching.is_some() { "batch_sampler" } else { "batching" };
        let own = match &self.batching {
            Some(Batching::Custom(sampler)) => Some(sampler),
            _ => self.own_batching.as_ref(),
        };
        if let Some(sampler) = own {
            let sizes = ["batch_size", "global_batch_size", "drop_last"];
            excludes(batching, &sizes, "makes batches itself, of any size")?;
            let order = ["shuffle", "shuffle_by", "sampler", "index_sampler"];
            excludes(batching, &order, "makes batches itself, in any order")?;
            let unknown = || catch_panic(|| sampler.batches(0)) == Some(None);
            if self.uneven.is_some() && self.world > 1 && unknown() {
                let why = format!(
                    "the sampler of `{batching}` doesn't say how many batches there are: give it \
                     `BatchSampler::batches`, or leave `uneven` out"
                );
                return Err(setting("uneven", why));
            }
        }
        if let Some(Batching::MaxTokens { .. }) = self.batching {
            let sizes = ["batch_size", "global_batch_size", "drop_last"];
            excludes("batching", &sizes, "makes batches of as many samples as `MaxTokens` says")?;
        }
        if self.own_sampler.is_some() {
            excludes("index_sampler", &["sampler"], "chooses the samples itself")?;
            excludes("index_sampler", &["shuffle", "shuffle_by"], "chooses the order itself")?;
        }
        match &self.sampler {
            Some(Sampler::Random) if self.shuffle == Some(false) => {
                return Err(setting(
                    "shuffle",
                    "`sampler` is `Random`, which shuffles: leave one of them out",
                ));
            }
            None | Some(Sampler::Random | Sampler::Subset(_)) => {}
            Some(_) => excludes("sampler", &["shuffle", "shuffle_by"], "chooses the order itself")?,
        }
        if self.shuffle == Some(false) && self.by.is_some() {
            return Err(setting(
                "shuffle",
                "it is false, and `shuffle_by` says how to: leave one of them out",
            ));
        }
        Ok(())
    }
}
