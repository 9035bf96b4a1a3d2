//! A folder of image files with one unreadable file.

use std::path::PathBuf;

use image::GrayImage;
use mp_data::{AnyResult, Context, DataLoader, Dataset, FrozenStrings, Item, OnError};
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::common::next;

const FILES: usize = 12;
const SIDE: u32 = 24;
/// Image whose file ends in the middle.
const TRUNCATED: usize = 5;

#[derive(Serialize, Deserialize)]
struct Images(FrozenStrings);

impl Dataset for Images {
    type Batch = Tensor<u8>;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[SIDE as usize, SIDE as usize], |item, _, row| {
            row.copy_from_slice(&image::open(&self.0[item.index])?.into_luma8());
            Ok(())
        })
    }

    fn describe(&self, index: usize) -> Option<String> {
        self.0.get(index).map(str::to_owned)
    }
}

fn pixel(number: usize, x: u32, y: u32) -> u8 {
    ((number as u32 * 7 + x * 31) ^ (y * 17)) as u8
}

/// A folder with the files, which is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn written() -> Folder {
        let folder = Folder(std::env::temp_dir().join(format!("images-{}", std::process::id())));
        std::fs::create_dir(&folder.0).unwrap();
        for number in 0..FILES {
            let image = GrayImage::from_fn(SIDE, SIDE, |x, y| image::Luma([pixel(number, x, y)]));
            image.save(folder.path(number)).unwrap();
        }
        let bytes = std::fs::read(folder.path(TRUNCATED)).unwrap();
        std::fs::write(folder.path(TRUNCATED), &bytes[..bytes.len() / 2]).unwrap();
        folder
    }

    fn path(&self, number: usize) -> String {
        self.0.join(format!("{number:02}.png")).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn error_of_a_truncated_image_names_its_file() {
    let folder = Folder::written();
    for (workers, threads) in [(0, 1), (2, 1), (1, 3)] {
        let build = |how| {
            let images = Images(FrozenStrings::new((0..FILES).map(|number| folder.path(number))).unwrap());
            let loader = DataLoader::builder(images).batch_size(4).num_workers(workers).on_error(how);
            loader.threads_per_worker(threads).build().unwrap()
        };
        for how in [OnError::Report, OnError::SkipSample] {
            let loader = build(how);
            let mut batches = loader.epoch(0);
            let (mut errors, mut given) = (Vec::new(), Vec::new());
            while let Some(batch) = next(&mut batches) {
                let batch = match batch {
                    Ok(batch) => batch,
                    Err(error) => {
                        errors.push(error);
                        continue;
                    }
                };
                let size = (SIDE * SIDE) as usize;
                for (number, pixels) in batch.info.indices().into_iter().zip(batch.to_vec().chunks(size)) {
                    let expected = (0..SIDE).flat_map(|y| (0..SIDE).map(move |x| pixel(number, x, y)));
                    assert!(pixels.iter().copied().eq(expected), "{number}");
                    given.push(number);
                }
            }
            if how == OnError::SkipSample {
                assert!(errors.is_empty(), "{errors:?}");
                assert_eq!(given, (0..FILES).filter(|number| *number != TRUNCATED).collect::<Vec<_>>());
                continue;
            }
            let [error] = &errors[..] else { panic!("{errors:?}") };
            let at = (error.epoch, error.batch, error.item.map(|item| item.index));
            assert_eq!(at, (0, 1, Some(TRUNCATED)), "{error}");
            let text = error.to_string();
            assert!(
                text.contains(&folder.path(TRUNCATED)) && text.contains("unexpected end of file"),
                "{text}"
            );
            assert_eq!(given, [0, 1, 2, 3, 8, 9, 10, 11]);
        }
    }
}
