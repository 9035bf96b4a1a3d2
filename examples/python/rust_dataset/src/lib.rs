//! Dataset in Rust for torch: worker processes draw images of digits, and torch uses the memory of the
//! images.

use mp::data::plan::SampleRng;
use mp::data::{AnyResult, Batch, Context, Dataset, Item, Strings, Tensor};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};

/// Width and height of an image.
const SIDE: usize = 28;
const CLASSES: usize = 10;

/// Font: seven rows of five points for each digit. The leftmost point is the highest of the five bits.
const FONT: [[u8; 7]; CLASSES] = [
    [0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110],
    [0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110],
    [0b01110, 0b10001, 0b00001, 0b00110, 0b01000, 0b10000, 0b11111],
    [0b01110, 0b10001, 0b00001, 0b00110, 0b00001, 0b10001, 0b01110],
    [0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010],
    [0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110],
    [0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110],
    [0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000],
    [0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110],
    [0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100],
];

/// Returns the darkness of a digit at this position of the font, from 0 to 1, interpolated between points.
fn ink(digit: usize, x: f32, y: f32) -> f32 {
    let point = |x: f32, y: f32| {
        let inside = (0.0..5.0).contains(&x) && (0.0..7.0).contains(&y);
        if inside && FONT[digit][y as usize] >> (4 - x as usize) & 1 == 1 { 1.0 } else { 0.0 }
    };
    let (left, top) = (x.floor(), y.floor());
    let (right, below) = (x - left, y - top);
    let above = point(left, top) * (1.0 - right) + point(left + 1.0, top) * right;
    let under = point(left, top + 1.0) * (1.0 - right) + point(left + 1.0, top + 1.0) * right;
    above * (1.0 - below) + under * below
}

/// Draws a digit with random size, position, slant, brightness and noise.
fn draw(digit: usize, rng: &mut SampleRng, pixels: &mut [f32]) {
    let mut between = |low: f32, high: f32| low + (high - low) * rng.f32();
    let (wide, high) = (between(2.6, 3.8), between(2.6, 3.4));
    let (middle, centre) = (between(12.0, 16.0), between(12.5, 15.5));
    let (slant, brightness) = (between(-0.2, 0.2), between(0.6, 0.9));
    for (i, pixel) in pixels.iter_mut().enumerate() {
        let y = ((i / SIDE) as f32 - centre) / high;
        let x = ((i % SIDE) as f32 - middle) / wide + slant * y;
        *pixel = ink(digit, x + 2.0, y + 3.0) * brightness + between(0.0, 0.1);
    }
}

/// Dataset of `count` images of digits, beginning at number `first`. The images are the same in each run.
#[derive(Serialize, Deserialize)]
struct Digits {
    first: usize,
    count: usize,
    /// Index of a sample that returns an error, for tests.
    broken: Option<usize>,
    /// Index of a sample that kills its worker, for tests.
    deadly: Option<usize>,
    /// Name of a function in the main module that is called for each batch, for tests.
    called: Option<String>,
}

impl Dataset for Digits {
    type Batch = (Tensor<f32>, Tensor<i64>);

    fn len(&self) -> usize {
        self.count
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        if let Some(called) = &self.called {
            Python::attach(|py| py.import("__main__")?.call_method0(called.as_str()).map(drop))?;
        }
        cx.rows(items, (&[1, SIDE, SIDE], &[]), |item, _, (pixels, class)| {
            if Some(item.index) == self.broken {
                return Err("this digit can't be drawn".into());
            }
            if Some(item.index) == self.deadly {
                std::process::abort();
            }
            let number = self.first + item.index;
            class[0] = (number % CLASSES) as i64;
            // Written in the memory that torch gets.
            draw(number % CLASSES, &mut SampleRng::new(28, 0, number as u64), pixels);
            Ok(())
        })
    }
}

mp_python::data_loader!(
    Images,
    Digits,
    |count: usize,
     first: usize = 0,
     broken: Option<usize> = None,
     deadly: Option<usize> = None,
     called: Option<String> = None| Digits { first, count, broken, deadly, called }
);

/// Batch with named columns of several kinds.
#[derive(Batch)]
struct Words {
    number: Tensor<i64>,
    text: Strings,
    letters: mp::data::Ragged<u8>,
}

/// Dataset of numbers as texts. The field is the length.
#[derive(Serialize, Deserialize)]
struct Numbers(usize);

impl Dataset for Numbers {
    type Batch = Words;

    fn len(&self) -> usize {
        self.0
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Words>) -> AnyResult<Words> {
        cx.rows(items, WordsSpec { number: &[], text: (), letters: () }, |item, _, row| {
            row.number[0] = item.index as i64;
            row.text.push_str(&format!("number {}", item.index));
            row.letters.extend(row.text.bytes().take(item.index));
            Ok(())
        })
    }
}

mp_python::data_loader!(Texts, Numbers, |count: usize| {
    if count == 0 { Err("there are no numbers") } else { Ok(Numbers(count)) }
});

#[pymodule(gil_used = false)]
mod digits {
    use super::*;

    #[pymodule_export]
    use super::{Images, Texts};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        mp_python::add_to(module)
    }
}
