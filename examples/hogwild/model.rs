//! A network with one hidden layer, and the arithmetic of training it.

use serde::{Deserialize, Serialize};

use crate::data::Shuffle;

/// Sizes of the layers.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Model {
    pub(crate) inputs: usize,
    pub(crate) hidden: usize,
    pub(crate) classes: usize,
}

impl Model {
    /// Returns the number of weights: two matrices, each with a row of biases.
    pub(crate) fn len(&self) -> usize {
        (self.inputs + 1) * self.hidden + (self.hidden + 1) * self.classes
    }

    /// Returns small random numbers (He et al. 2015), the same in every run.
    pub(crate) fn initial_weights(&self) -> Vec<f32> {
        let mut random = Shuffle::new(3);
        let mut uniform = || random.next() as f32 / u64::MAX as f32 * 2.0 - 1.0;
        let first = (6.0 / self.inputs as f32).sqrt();
        let second = (6.0 / self.hidden as f32).sqrt();
        let split = (self.inputs + 1) * self.hidden;
        (0..self.len()).map(|i| uniform() * if i < split { first } else { second }).collect()
    }
}

/// Copy of the weights in one worker, and its buffers for gradients.
pub(crate) struct Network {
    model: Model,
    weights: Vec<f32>,
    gradient: Vec<f32>,
    hidden: Vec<f32>,
    scores: Vec<f32>,
    back: Vec<f32>,
}

/// Computes `y += a * x`.
fn add_scaled(y: &mut [f32], a: f32, x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Network {
    pub(crate) fn new(model: Model) -> Self {
        Self {
            model,
            weights: vec![0.0; model.len()],
            gradient: vec![0.0; model.len()],
            hidden: vec![0.0; model.hidden],
            scores: vec![0.0; model.classes],
            back: vec![0.0; model.hidden],
        }
    }

    pub(crate) fn weights(&mut self) -> &mut [f32] {
        &mut self.weights
    }

    pub(crate) fn gradient(&self) -> &[f32] {
        &self.gradient
    }

    /// Computes the probabilities of the classes into `scores`.
    fn forward(&mut self, image: &[f32]) {
        let Model { inputs, hidden, classes } = self.model;
        let (first, second) = self.weights.split_at((inputs + 1) * hidden);
        self.hidden.copy_from_slice(&first[inputs * hidden..]);
        for (i, &pixel) in image.iter().enumerate().filter(|(_, p)| **p != 0.0) {
            add_scaled(&mut self.hidden, pixel, &first[i * hidden..][..hidden]);
        }
        self.hidden.iter_mut().for_each(|h| *h = h.max(0.0));
        self.scores.copy_from_slice(&second[hidden * classes..]);
        for (i, &h) in self.hidden.iter().enumerate() {
            add_scaled(&mut self.scores, h, &second[i * classes..][..classes]);
        }
        let most = self.scores.iter().fold(f32::MIN, |a, &b| a.max(b));
        self.scores.iter_mut().for_each(|s| *s = (*s - most).exp());
        let sum: f32 = self.scores.iter().sum();
        self.scores.iter_mut().for_each(|s| *s /= sum);
    }

    /// Adds up the gradients of the cross entropy over a batch, and returns the sum of the losses.
    pub(crate) fn gradients(&mut self, images: &[f32], labels: &[u32]) -> f32 {
        let Model { inputs, hidden, classes } = self.model;
        self.gradient.fill(0.0);
        let mut loss = 0.0;
        for (image, &label) in images.chunks_exact(inputs).zip(labels) {
            self.forward(image);
            loss -= self.scores[label as usize].max(1e-9).ln();
            self.scores[label as usize] -= 1.0;
            let second = &self.weights[(inputs + 1) * hidden..];
            let (first_gradient, second_gradient) = self.gradient.split_at_mut((inputs + 1) * hidden);
            for (i, &h) in self.hidden.iter().enumerate() {
                let row = i * classes..(i + 1) * classes;
                self.back[i] = if h > 0.0 { dot(&self.scores, &second[row.clone()]) } else { 0.0 };
                add_scaled(&mut second_gradient[row], h, &self.scores);
            }
            add_scaled(&mut second_gradient[hidden * classes..], 1.0, &self.scores);
            for (i, &pixel) in image.iter().enumerate().filter(|(_, p)| **p != 0.0) {
                add_scaled(&mut first_gradient[i * hidden..][..hidden], pixel, &self.back);
            }
            add_scaled(&mut first_gradient[inputs * hidden..], 1.0, &self.back);
        }
        loss
    }

    /// Returns the proportion of images that the network classifies correctly.
    pub(crate) fn accuracy(&mut self, images: &[f32], labels: &[u32]) -> f64 {
        let mut right = 0;
        for (image, &label) in images.chunks_exact(self.model.inputs).zip(labels) {
            self.forward(image);
            let best = (0..self.scores.len()).max_by(|&a, &b| self.scores[a].total_cmp(&self.scores[b]));
            right += usize::from(best == Some(label as usize));
        }
        right as f64 / labels.len() as f64
    }
}
