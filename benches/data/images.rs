//! JPEG files of 400 × 300 pixels for the rows that decode images. The files are removed at the end.
//!
//! Image decoders round differently: the outputs of two decoders are close, but not equal.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use image::codecs::jpeg::JpegEncoder;
use image::{Rgb, RgbImage};

use crate::{Result, references};

const FILES: usize = 64;
/// Quality that cameras and most data sets use.
const QUALITY: u8 = 90;

/// Folder with the generated image files, which is removed on drop.
#[derive(Debug)]
pub(crate) struct Images {
    folder: PathBuf,
}

impl Images {
    /// Writes image files of colour gradients with some noise. Decoding them takes as long as decoding
    /// photographs.
    ///
    /// # Errors
    /// Returns an error if a file can't be written.
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
            let to = BufWriter::new(File::create(images.folder.join(format!("{file:03}.jpg")))?);
            image.write_with_encoder(JpegEncoder::new_with_quality(to, QUALITY))?;
        }
        Ok(images)
    }

    /// Returns the checksum of the middle part of each image, decoded by `mp_bench_decoder`.
    ///
    /// # Errors
    /// Returns an error if an image can't be decoded.
    pub(crate) fn sums(&self) -> Result<Vec<u64>> {
        let mut row = vec![0; mp_bench_decoder::ROW];
        self.paths()
            .map(|path| mp_bench_decoder::decode(&path, &mut row).map(|()| references::sum(&row)))
            .collect()
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the paths of the image files, ordered by name.
    pub(crate) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        (0..FILES).map(|file| self.folder.join(format!("{file:03}.jpg")))
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}
