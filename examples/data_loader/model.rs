//! Network with one hidden layer, trained by one thread, so that the same batches give bit-identical weights.

use mp::data::plan::SampleRng;

use crate::digits::{CLASSES, SIDE};

const PIXELS: usize = SIDE * SIDE;
const HIDDEN: usize = 32;
/// Index of the first weight of the second layer. The weights of the first layer precede it: a row for each
/// pixel, and a row of biases.
const SECOND: usize = (PIXELS + 1) * HIDDEN;
const WEIGHTS: usize = SECOND + (HIDDEN + 1) * CLASSES;

pub(crate) struct Model {
    pub(crate) weights: Vec<f32>,
}

/// Computes `y += a * x`.
fn add(y: &mut [f32], a: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

impl Model {
    /// Creates small random weights, the same in each run.
    pub(crate) fn new() -> Self {
        let mut rng = SampleRng::new(3, 0, 0);
        let weight = |i| if i < SECOND { 0.05 } else { 0.3 } * (2.0 * rng.f32() - 1.0);
        Model { weights: (0..WEIGHTS).map(weight).collect() }
    }

    /// Creates a model with these weights.
    ///
    /// # Errors
    /// Returns an error if the number of weights differs from this model's.
    pub(crate) fn with(weights: Vec<f32>) -> mp::AnyResult<Self> {
        match weights.len() {
            WEIGHTS => Ok(Model { weights }),
            others => Err(format!("{others} weights are of another model: this one has {WEIGHTS}").into()),
        }
    }

    /// Returns the hidden layer, and the probability of each class.
    fn forward(&self, image: &[f32]) -> ([f32; HIDDEN], [f32; CLASSES]) {
        let (first, second) = self.weights.split_at(SECOND);
        let (mut hidden, mut classes) = ([0.0; HIDDEN], [0.0; CLASSES]);
        add(&mut hidden, 1.0, &first[PIXELS * HIDDEN..]);
        for (pixel, weights) in image.iter().zip(first.chunks_exact(HIDDEN)).filter(|(p, _)| **p != 0.0) {
            add(&mut hidden, *pixel, weights);
        }
        hidden.iter_mut().for_each(|h| *h = h.max(0.0));
        add(&mut classes, 1.0, &second[HIDDEN * CLASSES..]);
        for (h, weights) in hidden.iter().zip(second.chunks_exact(CLASSES)) {
            add(&mut classes, *h, weights);
        }
        let most = classes.iter().fold(f32::MIN, |a, b| a.max(*b));
        classes.iter_mut().for_each(|c| *c = (*c - most).exp());
        let sum: f32 = classes.iter().sum();
        classes.iter_mut().for_each(|c| *c /= sum);
        (hidden, classes)
    }

    /// Makes one step down the gradient of the batch.
    pub(crate) fn train(&mut self, images: &[f32], classes: &[i64], rate: f32) {
        let step = -rate / classes.len() as f32;
        let passes: Vec<_> = images.chunks_exact(PIXELS).map(|image| self.forward(image)).collect();
        let (first, second) = self.weights.split_at_mut(SECOND);
        // The gradients at the hidden layer, by the old weights.
        let back = |(hidden, error): &([f32; HIDDEN], [f32; CLASSES])| {
            let mut back = [0.0; HIDDEN];
            for ((back, h), row) in back.iter_mut().zip(hidden).zip(second.chunks_exact(CLASSES)) {
                *back = if *h > 0.0 { row.iter().zip(error).map(|(w, e)| w * e).sum() } else { 0.0 };
            }
            back
        };
        let mut passes = passes;
        for ((_, error), class) in passes.iter_mut().zip(classes) {
            error[*class as usize] -= 1.0;
        }
        let backs: Vec<[f32; HIDDEN]> = passes.iter().map(back).collect();
        for ((image, (hidden, error)), back) in images.chunks_exact(PIXELS).zip(&passes).zip(&backs) {
            for (h, row) in hidden.iter().zip(second.chunks_exact_mut(CLASSES)) {
                add(row, step * h, error);
            }
            add(&mut second[HIDDEN * CLASSES..], step, error);
            for (pixel, row) in image.iter().zip(first.chunks_exact_mut(HIDDEN)).filter(|(p, _)| **p != 0.0) {
                add(row, step * pixel, back);
            }
            add(&mut first[PIXELS * HIDDEN..], step, back);
        }
    }

    /// Returns the number of images that the model classifies correctly.
    pub(crate) fn right(&self, images: &[f32], classes: &[i64]) -> usize {
        let most = |image| {
            let (_, classes) = self.forward(image);
            (0..CLASSES).max_by(|a, b| classes[*a].total_cmp(&classes[*b]))
        };
        let pairs = images.chunks_exact(PIXELS).zip(classes);
        pairs.filter(|(image, class)| most(image) == usize::try_from(**class).ok()).count()
    }

    /// Returns the hash of all bits of the weights (FNV-1a).
    pub(crate) fn hash(&self) -> u64 {
        let bytes = self.weights.iter().flat_map(|weight| weight.to_bits().to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }
}
