//! Trains a classifier on image files that worker processes decode and augment at random. A killed worker
//! costs no batch, and a training that is stopped and resumed ends with bit-identical weights.
//!
//! `cargo run --release --features data,indicatif --example data_loader`, with `-- --kill-one`, or with `--
//! --stop-after 200 --save state.json` and then `-- --resume state.json`; `-- --help` lists the rest.

mod digits;
mod model;
mod options;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use indicatif::{ProgressBar, ProgressStyle};
use mp::data::{Batch, Context, DataLoader, Dataset, FrozenStrings, Item, LoaderState};
use mp::process::Interrupt;
use mp::{AnyResult, Process, Tensor};
use serde::{Deserialize, Serialize};

use digits::SIDE;
use model::Model;
use options::Options;

const BATCH: u64 = 32;

/// Image files. The name of each folder is the class of its images.
#[derive(Serialize, Deserialize)]
struct ImageFolder {
    /// Paths of the files, stored in shared memory once for all workers.
    paths: FrozenStrings,
    augment: bool,
}

#[derive(Batch)]
struct Images {
    pixels: Tensor<f32>,
    class: Tensor<i64>,
}

impl Dataset for ImageFolder {
    type Batch = Images;

    fn len(&self) -> usize {
        self.paths.len()
    }

    /// Makes a batch, in a worker. The trainer reads the rows directly, because they are in shared memory.
    fn fetch(&mut self, items: &[Item], cx: &mut Context<Images>) -> AnyResult<Images> {
        let shapes = ImagesSpec { pixels: &[SIDE, SIDE], class: &[] };
        cx.rows(items, shapes, |item, rng, row| {
            let path = Path::new(&self.paths[item.index]);
            let image = image::open(path)?.into_luma8();
            if image.dimensions() != (SIDE as u32, SIDE as u32) {
                return Err(format!("it has {} × {} pixels", image.width(), image.height()).into());
            }
            let class =
                path.parent().and_then(Path::file_name).and_then(|class| class.to_str()?.parse().ok());
            row.class[0] = class.ok_or("its folder has no class as its name")?;
            // Moved by up to two pixels, brighter or darker. The change depends only on seed, epoch and the
            // sample's position.
            let mut between = |low: i64, high: i64| low + rng.below((high - low + 1) as u64) as i64;
            let (right, down, light) =
                if self.augment { (between(-2, 2), between(-2, 2), between(80, 120)) } else { (0, 0, 100) };
            for (y, line) in row.pixels.chunks_exact_mut(SIDE).enumerate() {
                for (x, to) in line.iter_mut().enumerate() {
                    let pixel = image.get_pixel_checked((x as i64 - right) as u32, (y as i64 - down) as u32);
                    // Noise is black.
                    let pixel = pixel.map_or(0, |pixel| pixel.0[0].saturating_sub(40));
                    *to = f32::from(pixel) / 255.0 * light as f32 / 100.0;
                }
            }
            Ok(())
        })
    }

    fn describe(&self, index: usize) -> Option<String> {
        self.paths.get(index).map(str::to_owned)
    }
}

/// State from which a training is resumed.
#[derive(Serialize, Deserialize)]
struct Saved {
    weights: Vec<f32>,
    loader: LoaderState,
    /// Number of batches that were trained so far, in all epochs.
    batches: usize,
}

impl Saved {
    /// Writes the state to a file atomically. If the training is killed during the write, the old file stays.
    fn write(&self, path: &Path) -> AnyResult<()> {
        let part = path.with_extension("part");
        std::fs::write(&part, serde_json::to_vec(self)?)?;
        Ok(std::fs::rename(&part, path)?)
    }

    fn read(path: &Path) -> AnyResult<Self> {
        let text = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))?)
    }
}

/// Folder that is removed on drop.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a loader of a part of the images.
fn loader(paths: &[PathBuf], augment: bool, workers: usize) -> AnyResult<DataLoader<ImageFolder>> {
    let paths = FrozenStrings::new(paths.iter().map(|path| path.display().to_string()))?;
    let builder = DataLoader::builder(ImageFolder { paths, augment }).batch_size(BATCH).num_workers(workers);
    Ok(builder.shuffle(augment).seed(17).build()?)
}

/// Runs in a separate process, which handles Ctrl-C: it ends after the present batch, and saves its state.
fn train((options, folder): (Options, PathBuf)) -> AnyResult<()> {
    // Bars are shown on a terminal only.
    let bar = |template: &str| -> AnyResult<ProgressBar> {
        Ok(ProgressBar::no_length().with_style(ProgressStyle::with_template(template)?))
    };
    let writing = bar("writing  {bar:30} {pos}/{len} images [{elapsed}]")?;
    let paths = digits::write(&folder, options.images, &writing)?;
    writing.finish_and_clear();
    let (held_out, others) = paths.split_at(options.images / 5);
    let loader = loader(others, true, options.workers)?;
    let saved = options.resume.as_deref().map(Saved::read).transpose()?;
    let (mut model, mut count, batches) = match saved {
        Some(Saved { weights, loader: state, batches }) => {
            (Model::with(weights)?, batches, loader.resume_until(&state, options.epochs)?)
        }
        None => (Model::new(), 0, loader.epochs(0..options.epochs)),
    };

    let bar = bar("training {bar:30} {pos}/{len} batches [{elapsed}] {msg}")?;
    let mut batches = batches.with_progress(&bar);
    let each_epoch = others.len().div_ceil(BATCH as usize);
    let all = each_epoch * options.epochs as usize;
    while let Some(batch) = batches.next() {
        let batch = batch?;
        let rate = 0.2 / (1.0 + batch.info.epoch as f32 / 4.0);
        model.train(batch.pixels.as_slice()?, batch.class.as_slice()?, rate);
        count += 1;
        if options.kill_one && count == all / 2 {
            kill("-KILL", loader.pids().first().copied())?;
        }
        if options.press_after == Some(count) {
            // A terminal does the same: SIGINT to each of its foreground processes.
            kill(
                "-INT",
                loader.pids().into_iter().chain([std::process::id()]).chain(mp::process::parent_pid()),
            )?;
        }
        let stop = options.stop_after == Some(count) || mp::interrupted();
        if let Some(file) = options.save.as_deref().filter(|_| stop || count % each_epoch == 0) {
            // The weights, and the batches they were trained on. Prefetched batches don't count.
            Saved { weights: model.weights.clone(), loader: batches.state(), batches: count }.write(file)?;
        }
        if stop {
            break;
        }
    }
    drop(batches);
    bar.finish_and_clear();
    if mp::interrupted() {
        println!("interrupted after {count} of {all} batches");
        return Ok(());
    }

    let metrics = loader.metrics();
    let mut right = 0;
    for batch in self::loader(held_out, false, options.workers.min(1))?.epoch(0) {
        let batch = batch?;
        right += model.right(batch.pixels.as_slice()?, batch.class.as_slice()?);
    }
    let done = match &options.save {
        Some(file) if count < all => format!("stopped; --resume {} goes on", file.display()),
        _ => format!("weights {:016x}", model.hash()),
    };
    println!(
        "{count} of {all} batches, {} worker{} replaced, {:.0} samples/s, waiting {:.0} %: accuracy {:.3}, \
         {done}",
        metrics.restarts,
        if metrics.restarts == 1 { "" } else { "s" },
        metrics.samples as f64 / metrics.elapsed.as_secs_f64().max(1e-9),
        100.0 * metrics.waiting_share(),
        right as f64 / held_out.len() as f64,
    );
    Ok(())
}

/// Sends a signal: `-KILL`, as the kernel does when memory is short, or `-INT`.
fn kill(signal: &str, processes: impl IntoIterator<Item = u32>) -> AnyResult<()> {
    let processes = processes.into_iter().map(|pid| pid.to_string());
    let status = Command::new("kill").arg(signal).args(processes).status()?;
    if status.success() { Ok(()) } else { Err(format!("kill: {status}").into()) }
}

fn run() -> AnyResult<()> {
    let Some(options) = Options::from_args()? else { return Ok(()) };
    let temporary = Temporary(std::env::temp_dir().join(format!("data-loader-{}", std::process::id())));
    let folder = options.folder.clone().unwrap_or_else(|| temporary.0.clone());
    // Ctrl-C ends neither process at once, so the folder is removed.
    let trainer = Process::builder().name("trainer").interrupt(Interrupt::Graceful);
    Ok(trainer.spawn(train, (options, folder))?.join()?)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("data_loader: {error}");
            ExitCode::FAILURE
        }
    }
}
