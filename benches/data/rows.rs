//! Measured rows.

use std::path::PathBuf;
use std::time::Duration;

use crate::images::Images;
use crate::ours::Takes;
use crate::python::{self, Task};
use crate::run::{Contender, Entrant};
use crate::{Result, ours, references};

/// Resources that contenders need: image files, and a Python interpreter, if there is one.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) images: &'a Images,
    pub(crate) python: Option<PathBuf>,
}

/// Preferred direction of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Lower,
    Higher,
}

impl Better {
    pub(crate) fn is(self, figure: f64, than: f64) -> bool {
        match self {
            Better::Lower => figure < than,
            Better::Higher => figure > than,
        }
    }

    /// Returns the worst possible figure.
    pub(crate) fn worst(self) -> f64 {
        match self {
            Better::Lower => f64::INFINITY,
            Better::Higher => f64::NEG_INFINITY,
        }
    }
}

/// Goal for our figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// Maximum in the row's unit.
    AtMost(f64),
    /// Minimum factor by which our figure is better than the figure of the named contender.
    Times(&'static str, f64),
    /// Maximum difference between our figure and the figure of the named contender, in the row's unit.
    LaterBy(&'static str, f64),
}

type Contenders = fn(&Setup<'_>, &mut Vec<String>) -> Result<Vec<Entrant>>;

/// Description of a row. The first contender is mp.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    pub(crate) about: &'static str,
    pub(crate) contenders: Contenders,
    pub(crate) goals: &'static [Goal],
}

/// All rows, in the order in which they run.
pub(crate) static ALL: &[Row] = &[
    Row {
        id: "transfer",
        unit: "batches/s",
        better: Better::Higher,
        about: "batches of 64 × 3 × 224 × 224 f32 (38 MB), each sample filled with its number",
        contenders: transfer,
        goals: &[Goal::Times("torch", 10.0), Goal::Times("threads", 0.8)],
    },
    Row {
        id: "decode",
        unit: "batches/s",
        better: Better::Higher,
        about: "batches of 16 JPEG files of 400 × 300 pixels, the middle 224 × 224 of each",
        contenders: decode,
        goals: &[Goal::Times("rayon", 0.97), Goal::Times("SPDL, this decoder", 0.97)],
    },
    Row {
        id: "numbers_256",
        unit: "batches/s",
        better: Better::Higher,
        about: "batches of 256 numbers",
        contenders: numbers_256,
        goals: &[Goal::Times("torch", 10.0)],
    },
    Row {
        id: "number",
        unit: "s",
        better: Better::Lower,
        about: "what a batch of one number takes",
        contenders: number,
        goals: &[Goal::AtMost(30e-6)],
    },
    Row {
        id: "strings",
        unit: "batches/s",
        better: Better::Higher,
        about: "batches of 256 strings of 26 bytes, as bytes and offsets (torch: as a list[str])",
        contenders: strings,
        goals: &[Goal::Times("torch", 10.0)],
    },
    Row {
        id: "strings_list",
        unit: "batches/s",
        better: Better::Higher,
        about: "the same, each a String of its own (torch: as a list[str])",
        contenders: strings_list,
        goals: &[Goal::Times("torch", 2.0)],
    },
    Row {
        id: "items_32m",
        unit: "GB/s",
        better: Better::Higher,
        about: "items of 32 MiB, which one worker has, copied once on their way to the trainer",
        contenders: items_32m,
        goals: &[Goal::Times("SPDL", 1.0)],
    },
    Row {
        id: "uneven",
        unit: "batches/s",
        better: Better::Higher,
        about: "4 workers, a batch takes 2 ms, and one in 20 takes 40 ms: in order",
        contenders: uneven,
        goals: &[Goal::Times("torch", 1.3), Goal::Times("threads", 0.95)],
    },
    Row {
        id: "uneven_two_ahead",
        unit: "batches/s",
        better: Better::Higher,
        about: "the same, two batches ahead for each worker, as both have it by default",
        contenders: uneven_two_ahead,
        goals: &[Goal::Times("torch", 1.1)],
    },
    Row {
        id: "uneven_any_order",
        unit: "batches/s",
        better: Better::Higher,
        about: "the same in any order",
        contenders: uneven_any_order,
        goals: &[Goal::Times("threads", 0.95)],
    },
    Row {
        id: "first",
        unit: "s",
        better: Better::Lower,
        about: "from making the loader to its first batch, of 4 numbers",
        contenders: first,
        goals: &[Goal::AtMost(8e-3), Goal::Times("torch", 1.0 / 0.3)],
    },
    Row {
        id: "first_38m",
        unit: "s",
        better: Better::Lower,
        about: "from making the loader to its first batch, of 38 MB",
        contenders: first_38m,
        goals: &[Goal::Times("torch", 1.0 / 0.6)],
    },
    Row {
        id: "memory",
        unit: "bytes",
        better: Better::Lower,
        about: "private memory of a worker that has made batches of 38 MB",
        contenders: memory,
        goals: &[Goal::AtMost(4e6)],
    },
    Row {
        id: "paths",
        unit: "bytes",
        better: Better::Lower,
        about: "what a list of a million paths of 26 bytes takes in the trainer and 8 workers, after a \
        shuffled epoch",
        contenders: paths,
        goals: &[Goal::Times("one copy", 1.0 / 1.1)],
    },
    Row {
        id: "kill",
        unit: "s",
        better: Better::Lower,
        about: "a worker is killed: the longest wait for a batch, less the 10 ms that a batch takes; none \
        is missing",
        contenders: kill,
        goals: &[Goal::AtMost(30e-3)],
    },
    Row {
        id: "resume",
        unit: "s",
        better: Better::Lower,
        about: "to the first batch when a shuffled epoch of 200,000 is resumed at batch 100,000",
        contenders: resume,
        goals: &[Goal::LaterBy("at batch 0", 5e-3)],
    },
    Row {
        id: "resume_tokens",
        unit: "s",
        better: Better::Lower,
        about: "the same, where batches have as many samples as make 800 tokens",
        contenders: resume_tokens,
        goals: &[Goal::LaterBy("at batch 0", 5e-3)],
    },
    Row {
        id: "stream",
        unit: "s",
        better: Better::Lower,
        about: "what a batch of 64 samples of 256 bytes takes, of a stream of 16 shards",
        contenders: stream,
        goals: &[],
    },
];

/// Formats a figure in a suitable unit.
pub(crate) fn human(figure: f64, unit: &str) -> String {
    let size = figure.abs();
    match unit {
        "s" if size >= 1.0 => format!("{figure:.2} s"),
        "s" if size >= 1e-3 => format!("{:.1} ms", figure * 1e3),
        "s" => format!("{:.1} µs", figure * 1e6),
        "bytes" => format!("{:.1} MB", figure / 1e6),
        _ if size >= 1e4 => format!("{:.1} K {unit}", figure / 1e3),
        _ if size >= 100.0 => format!("{figure:.0} {unit}"),
        _ => format!("{figure:.1} {unit}"),
    }
}

fn entrant(name: &'static str, variants: Vec<Contender>) -> Entrant {
    Entrant { name, variants }
}

/// Starts a Python library at each of these settings, and returns it as a contender. Returns an empty list if
/// Python is missing or no setting starts.
fn python(
    setup: &Setup<'_>,
    versions: &mut Vec<String>,
    script: &str,
    (name, row, batches): (&'static str, &str, usize),
    variants: &[&str],
) -> Result<Vec<Entrant>> {
    let Some(python) = &setup.python else { return Ok(Vec::new()) };
    let mut begun = Vec::new();
    for variant in variants {
        let task = Task { python, script, row, variant, batches, images: setup.images.folder() };
        match python::start(task, versions) {
            Ok(contender) => begun.push(contender),
            Err(error) => eprintln!("SKIPPED: {row}: {name}, {variant}: {error}"),
        }
    }
    Ok(if begun.is_empty() { Vec::new() } else { vec![entrant(name, begun)] })
}

/// Settings of torch in the rows of strings. With both, torch makes a list of strings for each batch.
const LISTS: [&str; 2] = ["default 2", "default 4"];
const TORCH: &str = "torch_loader.py";
const SPDL: &str = "spdl_loader.py";

fn transfer(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const BATCHES: usize = 60;
    let mut all = vec![
        entrant("mp", vec![ours::transfer(BATCHES)?]),
        entrant("threads", vec![references::fill(BATCHES)]),
    ];
    let settings = ["default 2", "default 4", "in-place 2", "in-place 4"];
    all.extend(python(setup, versions, TORCH, ("torch", "transfer", BATCHES), &settings)?);
    all.extend(python(setup, versions, SPDL, ("SPDL", "transfer", BATCHES), &["numpy 2"])?);
    Ok(all)
}

fn decode(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const BATCHES: usize = 40;
    let rayon = [false, true].into_iter().map(|by_rows| references::decode(setup.images, BATCHES, by_rows));
    let mut all = vec![
        entrant("mp", vec![ours::decode(setup.images, BATCHES)?]),
        entrant("rayon", rayon.collect::<Result<_>>()?),
    ];
    for (name, script, same, settings) in [
        ("torch, this decoder", TORCH, true, &["same 2", "same 4"][..]),
        ("torch", TORCH, false, &["PIL 2", "PIL 4", "torchvision 2"]),
        ("SPDL, this decoder", SPDL, true, &["same 2", "same 3"]),
        ("SPDL", SPDL, false, &["PIL 2", "PIL 3"]),
    ] {
        let begun = python(setup, versions, script, (name, "decode", BATCHES), settings)?.into_iter();
        all.extend(begun.map(|entrant| if same { entrant } else { entrant.each(Contender::roughly) }));
    }
    Ok(all)
}

fn numbers_256(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const BATCHES: usize = 2000;
    let mut all = vec![entrant("mp", vec![ours::small(256, BATCHES, None)?])];
    let settings = ["default 2", "default 4", "at-once 2", "at-once 4"];
    all.extend(python(setup, versions, TORCH, ("torch", "numbers_256", BATCHES), &settings)?);
    all.extend(python(setup, versions, SPDL, ("SPDL", "numbers_256", BATCHES), &["numpy 2"])?);
    Ok(all)
}

fn number(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const BATCHES: usize = 4000;
    let mut all = vec![
        entrant("mp", vec![ours::small(1, BATCHES, None)?]),
        entrant("mp, two ahead", vec![ours::small(1, BATCHES, Some(2))?]),
    ];
    let settings = ["default 2", "default 4", "at-once 2", "at-once 4"];
    all.extend(python(setup, versions, TORCH, ("torch", "number", BATCHES), &settings)?);
    all.extend(python(setup, versions, SPDL, ("SPDL", "number", BATCHES), &["numpy 2"])?);
    // They report a rate per second.
    Ok(all.into_iter().map(|one| one.each(|setting| setting.map(|rate| Ok(1.0 / rate)))).collect())
}

fn strings(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const BATCHES: usize = 1500;
    let mut all = vec![entrant("mp", vec![ours::strings(BATCHES, false)?, ours::strings(BATCHES, true)?])];
    all.extend(python(setup, versions, TORCH, ("torch", "strings", BATCHES), &LISTS)?);
    let settings = ["at-once 2", "at-once 4"];
    all.extend(python(setup, versions, TORCH, ("torch, bytes", "strings", BATCHES), &settings)?);
    Ok(all)
}

fn strings_list(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const BATCHES: usize = 1500;
    let mut all = vec![entrant(
        "mp",
        vec![ours::list_of_strings(BATCHES, false)?, ours::list_of_strings(BATCHES, true)?],
    )];
    all.extend(python(setup, versions, TORCH, ("torch", "strings", BATCHES), &LISTS)?);
    Ok(all)
}

fn items_32m(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const ITEMS: usize = 120;
    let mut all = vec![entrant("mp", vec![ours::large_items(32 << 20, ITEMS)?])];
    // The same numbers of segments: 3, and 5, which its page uses.
    all.extend(python(setup, versions, SPDL, ("SPDL", "items_32m", ITEMS), &["pool 3", "pool 5"])?);
    Ok(all)
}

const UNEVEN: usize = 400;
const UNEVENLY: Takes = Takes::Uneven(Duration::from_millis(2));

fn uneven(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    let ours = [2, 8, 16].into_iter().map(|ahead| ours::uneven(UNEVEN, UNEVENLY, true, ahead));
    let mut all = vec![
        entrant("mp", ours.collect::<Result<_>>()?),
        entrant("threads", vec![references::uneven(4, UNEVEN, UNEVENLY)]),
    ];
    let settings = ["default 2", "default 8", "default 16"];
    all.extend(python(setup, versions, TORCH, ("torch", "uneven", UNEVEN), &settings)?);
    Ok(all)
}

fn uneven_two_ahead(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    let mut all = vec![entrant("mp", vec![ours::uneven(UNEVEN, UNEVENLY, true, 2)?])];
    all.extend(python(setup, versions, TORCH, ("torch", "uneven", UNEVEN), &["default 2"])?);
    Ok(all)
}

fn uneven_any_order(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    let ours = [2, 8].into_iter().map(|ahead| ours::uneven(UNEVEN, UNEVENLY, false, ahead));
    let mut all = vec![
        entrant("mp", ours.collect::<Result<_>>()?),
        entrant("threads", vec![references::uneven(4, UNEVEN, UNEVENLY)]),
    ];
    let settings = ["default 2", "default 8"];
    all.extend(python(setup, versions, TORCH, ("torch", "uneven_any_order", UNEVEN), &settings)?);
    Ok(all)
}

fn first(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    let mut all = vec![entrant("mp", vec![ours::first()])];
    all.extend(python(setup, versions, TORCH, ("torch", "first", 1), &["default 2"])?);
    Ok(all)
}

fn first_38m(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const BATCHES: usize = 20;
    let mut all = vec![entrant("mp", vec![ours::first_large(BATCHES)])];
    let settings = ["default 2", "in-place 2"];
    all.extend(python(setup, versions, TORCH, ("torch", "first_38m", BATCHES), &settings)?);
    Ok(all)
}

fn memory(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const BATCHES: usize = 20;
    let mut all = vec![entrant("mp", vec![ours::memory(BATCHES)?])];
    let torch = python(setup, versions, TORCH, ("torch", "memory", BATCHES), &["default 2"])?;
    // The script reports its worker, which waits for the next epoch now.
    let private = |setting: Contender| setting.map(|pid| ours::private(pid as u32));
    all.extend(torch.into_iter().map(|one| one.each(private)));
    Ok(all)
}

fn paths(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const PATHS: usize = 1_000_000;
    let mut all =
        vec![entrant("mp", vec![ours::paths(PATHS)?]), entrant("one copy", vec![ours::one_copy(PATHS)])];
    all.extend(python(setup, versions, TORCH, ("torch", "paths", PATHS), &["list 2"])?);
    Ok(all)
}

fn kill(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const BATCHES: usize = 80;
    let ours = ours::kill(BATCHES).checked(ours::kill_check(BATCHES));
    let mut all = vec![entrant("mp", vec![ours])];
    all.extend(python(setup, versions, TORCH, ("torch", "kill", BATCHES), &["default 2"])?);
    Ok(all)
}

fn resume(_: &Setup<'_>, _: &mut Vec<String>) -> Result<Vec<Entrant>> {
    resumed(false)
}

fn resume_tokens(_: &Setup<'_>, _: &mut Vec<String>) -> Result<Vec<Entrant>> {
    resumed(true)
}

fn resumed(by_tokens: bool) -> Result<Vec<Entrant>> {
    let [far, near] = [100_000, 0].map(|next| ours::resume(next, by_tokens));
    Ok(vec![entrant("mp", vec![far?]), entrant("at batch 0", vec![near?])])
}

fn stream(_: &Setup<'_>, _: &mut Vec<String>) -> Result<Vec<Entrant>> {
    let of = |name, workers| -> Result<Entrant> { Ok(entrant(name, vec![ours::stream(workers)?])) };
    Ok(vec![of("mp", 2)?, of("1 worker", 1)?, of("no worker", 0)?])
}
