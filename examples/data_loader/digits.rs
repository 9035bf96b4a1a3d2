//! Image files of digits, drawn with a font of 5 × 7 points: with varying size, position, slant and
//! brightness, and with noise.

use std::path::{Path, PathBuf};

use image::GrayImage;
use indicatif::ProgressBar;
use mp::data::plan::SampleRng;

/// Width and height of an image.
pub(crate) const SIDE: usize = 28;
pub(crate) const CLASSES: usize = 10;

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

/// Returns the image with this number, which is the same in each run.
fn draw(number: usize) -> GrayImage {
    let mut rng = SampleRng::new(28, 0, number as u64);
    let mut between = |low: f32, high: f32| low + (high - low) * rng.f32();
    let (wide, high) = (between(2.6, 3.8), between(2.6, 3.4));
    let (middle, centre) = (between(12.0, 16.0), between(12.5, 15.5));
    let (slant, brightness) = (between(-0.2, 0.2), between(150.0, 230.0));
    GrayImage::from_fn(SIDE as u32, SIDE as u32, |x, y| {
        let y = (y as f32 - centre) / high;
        let x = (x as f32 - middle) / wide + slant * y;
        let light = ink(number % CLASSES, x + 2.0, y + 3.0) * brightness;
        image::Luma([(light + between(0.0, 25.0)) as u8])
    })
}

/// Writes the images with the numbers `0..count` that don't exist yet, each into the folder of its class.
/// Returns the paths of all images.
///
/// # Errors
/// If a file can't be written.
pub(crate) fn write(folder: &Path, count: usize, bar: &ProgressBar) -> mp::AnyResult<Vec<PathBuf>> {
    for class in 0..CLASSES {
        std::fs::create_dir_all(folder.join(class.to_string()))?;
    }
    let path = |number: usize| folder.join((number % CLASSES).to_string()).join(format!("{number:05}.png"));
    let paths: Vec<PathBuf> = (0..count).map(path).collect();
    bar.set_length(count as u64);
    for (number, path) in bar.wrap_iter(paths.iter().enumerate()) {
        if mp::interrupted() {
            return Err("interrupted while it wrote the images".into());
        }
        if !path.exists() {
            draw(number).save(path)?;
        }
    }
    Ok(paths)
}
