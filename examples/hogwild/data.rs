//! Data set, which is read, checked, shuffled and stored in shared memory.

use std::path::Path;

use mp::{FrozenTensor, Tensor};

const DIGITS: &str = include_str!("digits.csv");
const MOST_CLASSES: f64 = 1000.0;

/// Images, one for each row, and their classes.
pub(crate) struct Set {
    pub(crate) images: FrozenTensor<f32>,
    pub(crate) labels: FrozenTensor<u32>,
}

impl Set {
    fn new(rows: &[(Vec<f32>, u32)], inputs: usize) -> mp::AnyResult<Self> {
        let mut images = Tensor::empty([rows.len(), inputs])?;
        for (to, (pixels, _)) in images.as_mut_slice()?.chunks_mut(inputs).zip(rows) {
            to.copy_from_slice(pixels);
        }
        let labels = Tensor::from_fn(&[rows.len()], |i| rows[i].1)?;
        Ok(Self { images: images.freeze(), labels: labels.freeze() })
    }

    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }
}

/// Data for training, and for tests: a fifth of the images, which are not trained.
pub(crate) struct Data {
    pub(crate) inputs: usize,
    pub(crate) classes: usize,
    pub(crate) train: Set,
    pub(crate) test: Set,
}

impl Data {
    /// Loads the data from a file, or the built-in digits if `file` is `None`.
    pub(crate) fn load(file: Option<&Path>) -> mp::AnyResult<Self> {
        let mut rows = match file {
            None => parse(DIGITS, "digits.csv")?,
            Some(path) => {
                let name = path.display().to_string();
                let text = std::fs::read_to_string(path).map_err(|e| format!("{name}: {e}"))?;
                parse(&text, &name)?
            }
        };
        let inputs = rows[0].0.len();
        let classes = rows.iter().map(|r| r.1 as usize + 1).max().unwrap_or(1);
        let most = rows.iter().flat_map(|r| &r.0).fold(0.0_f32, |a, &v| a.max(v.abs()));
        let scale = if most > 0.0 { 1.0 / most } else { 1.0 };
        rows.iter_mut().flat_map(|r| &mut r.0).for_each(|v| *v *= scale);
        Shuffle::new(1).run(&mut rows);
        let (test, train) = rows.split_at(rows.len() / 5);
        Ok(Self { inputs, classes, train: Set::new(train, inputs)?, test: Set::new(test, inputs)? })
    }
}

fn parse(text: &str, name: &str) -> mp::AnyResult<Vec<(Vec<f32>, u32)>> {
    let mut rows: Vec<(Vec<f32>, u32)> = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let at = |column: usize, why: String| format!("{name}: line {}, column {column}: {why}", i + 1);
        let mut numbers = Vec::new();
        let mut column = 1;
        for field in line.split(',') {
            match field.trim().parse::<f64>() {
                Ok(v) if v.is_finite() => numbers.push((v, column)),
                _ => return Err(at(column, format!("{:?} is no number", field.trim())).into()),
            }
            column += field.chars().count() + 1;
        }
        let Some((class, class_column)) = numbers.pop().filter(|_| !numbers.is_empty()) else {
            return Err(at(1, "a line needs at least one number and a class".into()).into());
        };
        if class.fract() != 0.0 || !(0.0..MOST_CLASSES).contains(&class) {
            return Err(at(class_column, format!("{class} is no class: a whole number from 0 to 999")).into());
        }
        if let Some((first, _)) = rows.first()
            && first.len() != numbers.len()
        {
            let why = format!("{} numbers, but the first line has {}", numbers.len() + 1, first.len() + 1);
            return Err(at(1, why).into());
        }
        rows.push((numbers.into_iter().map(|(v, _)| v as f32).collect(), class as u32));
    }
    if rows.len() < 10 {
        return Err(format!("{name}: {} lines; at least 10 are needed to train and test", rows.len()).into());
    }
    Ok(rows)
}

/// Generator of random numbers that shuffles in the same way in every run.
pub(crate) struct Shuffle(u64);

impl Shuffle {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a random number: SplitMix64 (Steele, Lea, Flood 2014).
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn run<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
    }
}
