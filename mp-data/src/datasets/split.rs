//! Random split of a dataset.

use super::{DatasetError, Subset};
use crate::Dataset;
use crate::plan::{RngPurpose, epoch_key, shuffle};

/// Length of a part of a dataset: a number of samples (`usize`) or a fraction (`f64`).
pub trait SplitLength: Copy {
    #[doc(hidden)]
    fn counts(lengths: &[Self], len: usize) -> Result<Vec<usize>, DatasetError>;
}

impl SplitLength for usize {
    fn counts(lengths: &[usize], len: usize) -> Result<Vec<usize>, DatasetError> {
        let sum = lengths.iter().try_fold(0usize, |sum, length| sum.checked_add(*length));
        if sum == Some(len) {
            return Ok(lengths.to_vec());
        }
        let reason =
            format!("a split into {lengths:?} of a dataset of {len} samples: the sum has to be {len}");
        Err(DatasetError::Split(reason))
    }
}

impl SplitLength for f64 {
    fn counts(fractions: &[f64], len: usize) -> Result<Vec<usize>, DatasetError> {
        if let Some(fraction) = fractions.iter().find(|fraction| !(0.0..=1.0).contains(*fraction)) {
            let reason =
                format!("a split into the fractions {fractions:?}: {fraction} is not between 0 and 1");
            return Err(DatasetError::Split(reason));
        }
        let sum: f64 = fractions.iter().sum();
        if (sum - 1.0).abs() > 1e-9 {
            let reason =
                format!("a split into the fractions {fractions:?}: the sum is {sum}, and has to be 1");
            return Err(DatasetError::Split(reason));
        }
        // Counts are rounded down. The remaining samples go to the first parts, one each.
        let mut counts: Vec<usize> = Vec::with_capacity(fractions.len());
        let mut left = len;
        for fraction in fractions {
            let count = ((len as f64 * fraction).floor() as usize).min(left);
            counts.push(count);
            left -= count;
        }
        let parts = counts.len();
        counts.iter_mut().enumerate().for_each(|(part, count)| {
            *count += left / parts + usize::from(part < left % parts);
        });
        Ok(counts)
    }
}

/// Splits a dataset into random parts that have no sample in common. A seed gives the same parts on any
/// machine.
///
/// ```
/// use mp_data::{Dataset, Tensor, random_split};
///
/// let numbers = Tensor::<i64>::from_fn([1001], |i| i as i64)?.freeze();
/// let [train, validation] = random_split(numbers.clone(), [0.8, 0.2], 17)?;
/// assert_eq!((train.len(), validation.len()), (801, 200));
/// let [some, rest] = random_split(numbers, [1, 1000], 17)?;
/// assert_eq!((some.len(), rest.len()), (1, 1000));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// Each part of a split into fractions has `floor(len * fraction)` samples, and each of the first parts gets
/// one of the remaining samples, as in torch. Each part has a clone of the dataset: paths and tensors
/// that lie in shared memory ([`FrozenStrings`](crate::FrozenStrings),
/// [`FrozenTensor`](mp_tensor::FrozenTensor)) are not copied.
///
/// # Errors
/// [`DatasetError::Split`] if the lengths don't add up to the length of the dataset, or the fractions to 1,
/// or if a fraction is not between 0 and 1. [`DatasetError::Memory`] without memory for the lists of
/// indices.
pub fn random_split<D, L, const N: usize>(
    dataset: D,
    lengths: [L; N],
    seed: u64,
) -> Result<[Subset<D>; N], DatasetError>
where
    D: Dataset + Clone,
    L: SplitLength,
{
    let len = dataset.len();
    let counts = L::counts(&lengths, len)?;
    let mut indices = Vec::new();
    indices.try_reserve_exact(len).map_err(|why| DatasetError::Memory(why.to_string()))?;
    indices.extend(0..len as u64);
    shuffle(&mut indices, epoch_key(seed, 0, RngPurpose::Split));
    let mut rest = &indices[..];
    let parts = counts.iter().map(|count| {
        let (part, behind) = rest.split_at_checked(*count).unwrap_or((rest, &[]));
        rest = behind;
        Subset::of(dataset.clone(), part)
    });
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    // There are as many parts as lengths.
    parts.try_into().map_err(|parts: Vec<_>| DatasetError::Split(format!("{} parts of {N}", parts.len())))
}
