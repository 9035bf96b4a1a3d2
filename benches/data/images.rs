//! Image files, which are removed at the end: 400 × 300 pixels, PNG, which every decoder decodes to the same bytes.

use std::path::{Path, PathBuf};

use image::{Rgb, RgbImage};

use crate::Result;

const FILES: usize = 64;

/// A folder with images.
#[derive(Debug)]
pub(crate) struct Images {
    folder: PathBuf,
}

impl Images {
    /// Writes them: slopes of colour with some noise, so that they compress like photographs do, by a half.
    ///
    /// # Errors
    /// A file can't be written.
    pub(crate) fn write() -> Result<Self> {
        let images =
            Self { folder: std::env::temp_dir().join(format!("mp-bench-images-{}", std::process::id())) };
        std::fs::create_dir_all(&images.folder)?;
        for file in 0..FILES {
            let mut noise = file as u32 + 1;
            let image = RgbImage::from_fn(400, 300, |x, y| {
                let mut channel = |slope: u32| {
                    noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    ((slope + 7 * file as u32) / 3 % 240 + (noise >> 28)) as u8
                };
                Rgb([channel(x + y), channel(2 * x), channel(x + 3 * y)])
            });
            image.save(images.folder.join(format!("{file:03}.png")))?;
        }
        Ok(images)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The files, by their names.
    pub(crate) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        (0..FILES).map(|file| self.folder.join(format!("{file:03}.png")))
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}
