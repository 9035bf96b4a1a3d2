//! What is measured.

use std::path::PathBuf;

use crate::images::Images;
use crate::python::{self, Task};
use crate::run::{Contender, Entrant};
use crate::{Result, ours, references};

/// What contenders are made from.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) images: &'a Images,
    pub(crate) python: Option<PathBuf>,
}

/// Which way a figure should go.
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
}

/// What is wanted of our figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// In the row's unit.
    AtMost(f64),
    /// That many times as good as this one's.
    Times(&'static str, f64),
    /// No more than that above this one's.
    LaterBy(&'static str, f64),
}

type Contenders = fn(&Setup<'_>, &mut Vec<String>) -> Result<Vec<Entrant>>;

/// One row. Its first contender is ours.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    pub(crate) about: &'static str,
    pub(crate) contenders: Contenders,
    pub(crate) goals: &'static [Goal],
}

/// In the order in which they run.
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
        about: "batches of 16 PNG files of 400 × 300 pixels, the middle 224 × 224 of each",
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
        id: "first",
        unit: "s",
        better: Better::Lower,
        about: "from making the loader to its first batch, of 4 numbers",
        contenders: first,
        goals: &[Goal::AtMost(8e-3), Goal::Times("torch", 1.0 / 0.3)],
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
        id: "kill",
        unit: "s",
        better: Better::Lower,
        about: "a worker is killed: the longest wait for a batch, less the 10 ms that a batch takes; none is missing",
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

/// A figure in a unit that suits its size.
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

/// A library in Python at these settings; nothing without one.
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
    for (name, script, settings) in [
        ("torch, this decoder", TORCH, &["same 2", "same 4"][..]),
        ("torch", TORCH, &["PIL 2", "PIL 4", "torchvision 2"]),
        ("SPDL, this decoder", SPDL, &["same 2", "same 3"]),
        ("SPDL", SPDL, &["PIL 2", "PIL 3"]),
    ] {
        all.extend(python(setup, versions, script, (name, "decode", BATCHES), settings)?);
    }
    Ok(all)
}

fn numbers_256(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const BATCHES: usize = 2000;
    let mut all = vec![entrant("mp", vec![ours::small(256, BATCHES, 2)?, ours::small(256, BATCHES, 8)?])];
    let settings = ["default 2", "default 4", "at-once 2", "at-once 4"];
    all.extend(python(setup, versions, TORCH, ("torch", "numbers_256", BATCHES), &settings)?);
    all.extend(python(setup, versions, SPDL, ("SPDL", "numbers_256", BATCHES), &["numpy 2"])?);
    Ok(all)
}

fn number(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const BATCHES: usize = 4000;
    let mut all = vec![entrant("mp", vec![ours::small(1, BATCHES, 2)?, ours::small(1, BATCHES, 8)?])];
    let settings = ["default 2", "default 4", "at-once 2", "at-once 4"];
    all.extend(python(setup, versions, TORCH, ("torch", "number", BATCHES), &settings)?);
    all.extend(python(setup, versions, SPDL, ("SPDL", "number", BATCHES), &["numpy 2"])?);
    // They say how many a second.
    for entrant in &mut all {
        let variants = std::mem::take(&mut entrant.variants).into_iter();
        entrant.variants = variants.map(|variant| variant.map(|rate| Ok(1.0 / rate))).collect();
    }
    Ok(all)
}

fn first(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    let mut all = vec![entrant("mp", vec![ours::first()])];
    all.extend(python(setup, versions, TORCH, ("torch", "first", 1), &["default 2"])?);
    Ok(all)
}

fn memory(setup: &Setup<'_>, versions: &mut Vec<String>) -> Result<Vec<Entrant>> {
    const BATCHES: usize = 20;
    let mut all = vec![entrant("mp", vec![ours::memory(BATCHES)?])];
    all.extend(python(setup, versions, TORCH, ("torch", "memory", BATCHES), &["default 2"])?);
    // A script says which process its worker is, which waits for the next epoch now.
    for torch in all.iter_mut().skip(1) {
        let variants = std::mem::take(&mut torch.variants).into_iter();
        torch.variants = variants.map(|variant| variant.map(|pid| ours::private(pid as u32))).collect();
    }
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
