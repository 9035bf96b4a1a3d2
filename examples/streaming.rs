//! Tar files that worker processes read as streams. In one run a worker is killed. In another run, reading is
//! stopped and then resumed from a saved state, with another number of workers. All runs deliver the same
//! batches.
//!
//! `cargo run --release --features data,indicatif --example streaming -- --samples 100000 --workers 2`

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use mp::data::{
    Batch, Context, FrozenStrings, IterableDataset, LoadError, LoadedBatch, SampleOf, Samples, ShardPosition,
    ShardReader, StreamLoader, StreamState, Strings,
};
use mp::{AnyResult, Tensor};
use serde::{Deserialize, Serialize};

const SHARDS: usize = 12;
const SIDE: usize = 16;

/// Writes the samples `first..end` into a tar file. Each sample is a small image in a file, whose name has
/// the sample's number and class.
fn write_shard(path: &Path, first: usize, end: usize) -> AnyResult<()> {
    let mut tar = tar::Builder::new(File::create(path)?);
    for number in first..end {
        let pixels: Vec<u8> = (0..SIDE * SIDE).map(|i| (number * 31 + i * (number % 7)) as u8).collect();
        let mut header = tar::Header::new_gnu();
        header.set_size(pixels.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, format!("{number:06}.{}.raw", number % 10), &pixels[..])?;
    }
    Ok(tar.finish()?)
}

#[derive(Serialize, Deserialize)]
struct Tars(FrozenStrings);

/// Tar file, and position of the next file's header in bytes.
struct TarReader {
    file: BufReader<File>,
    at: u64,
}

impl ShardReader for TarReader {
    type Sample = (String, Vec<u8>);

    fn read(&mut self) -> AnyResult<Option<Self::Sample>> {
        let mut archive = tar::Archive::new(&mut self.file);
        let Some(entry) = archive.entries()?.next() else { return Ok(None) };
        let mut entry = entry?;
        let name = entry.path()?.display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        // A file's bytes are padded to whole blocks of 512.
        let end = entry.raw_file_position() + entry.size();
        let padding = end.next_multiple_of(512) - end;
        self.file.seek_relative(padding as i64)?;
        self.at += end + padding;
        Ok(Some((name, bytes)))
    }

    fn token(&self) -> Option<u64> {
        Some(self.at)
    }
}

#[derive(Batch)]
struct Images {
    pixels: Tensor<f32>,
    class: Tensor<i64>,
    name: Strings,
}

impl IterableDataset for Tars {
    type Batch = Images;
    type Reader = TarReader;

    fn shards(&self) -> usize {
        self.0.len()
    }

    fn open(&mut self, shard: usize, at: ShardPosition) -> AnyResult<TarReader> {
        let at = at.token.unwrap_or(0);
        let mut file = BufReader::new(File::open(&self.0[shard])?);
        file.seek(SeekFrom::Start(at))?;
        Ok(TarReader { file, at })
    }

    fn fetch(
        &mut self,
        samples: Samples<SampleOf<Self>>,
        cx: &mut Context<Self::Batch>,
    ) -> AnyResult<Images> {
        let shapes = ImagesSpec { pixels: &[SIDE, SIDE], class: &[], name: () };
        cx.rows_from(samples, shapes, |(name, bytes), rng, row| {
            let class = name.split('.').nth(1).ok_or_else(|| format!("{name} has no class"))?;
            row.class[0] = class.parse()?;
            if bytes.len() != row.pixels.len() {
                return Err(format!("{name} has {} bytes", bytes.len()).into());
            }
            // Half of the samples are mirrored. The choice depends on the sample only.
            let mirrored = rng.bool();
            for (to, from) in row.pixels.chunks_exact_mut(SIDE).zip(bytes.chunks_exact(SIDE)) {
                for (x, pixel) in to.iter_mut().enumerate() {
                    *pixel = f32::from(from[if mirrored { SIDE - 1 - x } else { x }]) / 255.0;
                }
            }
            row.name.push_str(&name);
            Ok(())
        })
    }

    fn describe(&self, shard: usize) -> Option<String> {
        self.0.get(shard).map(str::to_owned)
    }
}

/// Batch, or the reason why it is missing.
type BatchResult = Result<LoadedBatch<Images>, LoadError>;

/// Summary of the received batches.
#[derive(Default)]
struct Summary {
    samples: usize,
    hash: DefaultHasher,
}

impl Summary {
    fn add(&mut self, batch: &Images) -> AnyResult<()> {
        self.samples += batch.class.len();
        batch.pixels.iter().for_each(|pixel| pixel.to_bits().hash(&mut self.hash));
        (batch.class.to_vec(), batch.name.to_vec()?).hash(&mut self.hash);
        Ok(())
    }

    /// Takes at most `most` batches.
    fn take(&mut self, batches: impl Iterator<Item = BatchResult>, most: usize) -> AnyResult<()> {
        batches.take(most).try_for_each(|batch| self.add(&*batch?))
    }

    fn result(&self) -> (usize, u64) {
        (self.samples, self.hash.finish())
    }
}

/// Files that are removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

fn option(name: &str, default: usize) -> AnyResult<usize> {
    let value = std::env::args().skip_while(|word| word != name).nth(1);
    value.map_or(Ok(default), |value| Ok(value.parse()?))
}

fn main() -> AnyResult<()> {
    let (samples, workers) = (option("--samples", 20_000)?, option("--workers", 2)?);
    let folder = Folder(std::env::temp_dir().join(format!("streaming-{}", std::process::id())));
    std::fs::create_dir(&folder.0)?;
    let mut paths = Vec::new();
    for shard in 0..SHARDS {
        let path = folder.0.join(format!("{shard:02}.tar"));
        write_shard(&path, samples * shard / SHARDS, samples * (shard + 1) / SHARDS)?;
        paths.push(path.display().to_string());
    }
    let loader = |workers: usize| -> AnyResult<StreamLoader<Tars>> {
        let tars = Tars(FrozenStrings::new(&paths)?);
        let builder = StreamLoader::builder(tars).batch_size(64).lanes(4).shuffle_window(256).seed(17);
        Ok(builder.num_workers(workers).build()?)
    };

    let whole = loader(workers)?;
    let (mut seen, begun) = (Summary::default(), Instant::now());
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("reading {spinner} {pos} batches [{elapsed}] {msg}")?);
    seen.take(whole.epoch(0).with_progress(&bar), usize::MAX)?;
    bar.finish();
    let rate = samples as f64 / begun.elapsed().as_secs_f64();
    println!("{}", whole.metrics());

    // The same, and a worker is killed meanwhile.
    let (mut killed, mut batches) = (Summary::default(), whole.epoch(0));
    killed.take(&mut batches, 5)?;
    if let Some(pid) = whole.pids().first() {
        std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status()?;
    }
    killed.take(&mut batches, usize::MAX)?;
    println!("workers replaced: {}", whole.metrics().restarts);

    // The same, and the reading process stops meanwhile. Another one continues, with one more worker.
    let state = folder.0.join("state.json");
    let mut resumed = Summary::default();
    {
        let mut batches = whole.epoch(0);
        resumed.take(&mut batches, 9)?;
        std::fs::write(&state, serde_json::to_vec(&batches.state())?)?;
    }
    drop(whole);
    let state: StreamState = serde_json::from_slice(&std::fs::read(&state)?)?;
    resumed.take(&mut loader(workers + 1)?.resume(&state)?, usize::MAX)?;

    let result = seen.result();
    if (killed.result(), resumed.result()) != (result, result) || result.0 != samples {
        return Err(
            format!("{result:?}, killed {:?}, resumed {:?}", killed.result(), resumed.result()).into()
        );
    }
    println!(
        "{samples} samples of {SHARDS} tar files by {workers} workers: {rate:.0} samples/s; the same after \
         a killed worker and a resume"
    );
    Ok(())
}
