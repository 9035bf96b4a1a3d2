//! Growth: measures the same work at ever larger sizes, for mp, for the physical limit and for the peers.
//! Each point is a histogram of the times of single operations, and the median of a few passes. Operations
//! below a microsecond are timed in groups of 16. In each pass, each axis is measured in a separate process
//! with its own arena, because a recovery reads all slabs and groups that the arena has ever used.
//!
//! Files: [`effort`] measures a point. [`links`] has queues and waiting messages, [`processes`] has starts,
//! joins and deaths, and [`memory`] has tensors and sizes of messages. [`figures`] has the results and their
//! JSON, [`plot`] draws them, and [`page`] writes the tables.

mod effort;
mod figures;
mod links;
mod memory;
mod page;
mod plot;
mod processes;
mod table;

use std::any::Any;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::args::Options;
use crate::process::Child;
use crate::work::Plan;
use crate::{Result, machine};
use effort::{Effort, Need, Times};
use figures::{CurveFigures, Figures, LineFigures, Point};

/// Expected form of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// Expects the same time at every size.
    Flat,
    /// Expects a time in proportion to the size.
    Linear,
}

/// Measures one point of a contender at a size.
type Measure = fn(&Effort, u64) -> Result<Times>;

/// Work that is measured at each size of its axis.
struct Curve {
    /// Permanent name.
    id: &'static str,
    /// Description of the work.
    about: &'static str,
    expected: Expected,
    /// Contenders: "mp" first, then the limit, then the peers.
    contenders: &'static [(&'static str, Measure)],
}

/// Quantity that grows, such as the number of processes, and the curves that are measured over it.
struct Axis {
    /// Permanent name, which is the name of its picture.
    id: &'static str,
    /// Label of the axis.
    label: &'static str,
    /// Sizes, of which a quick run takes every other one.
    sizes: &'static [u64],
    /// Resources that the measurements at a size need.
    need: fn(u64) -> Need,
    /// Creates the processes or tensors that exist while the curves are measured at a size.
    around: fn(u64) -> Result<Box<dyn Any>>,
    curves: &'static [Curve],
}

/// Number of passes over all sizes, since a machine's speed changes within minutes.
const PASSES: usize = 3;

/// First word of the command line of a process that measures an axis once.
pub(crate) const AXIS: &str = "__axis";

/// Measures all curves, or reads earlier figures, and writes the requested files.
///
/// # Errors
/// Returns an error for a wrong result, a failure of mp or of the limit, or a file that can't be read or
/// written.
pub(crate) fn run(options: &Options) -> Result<()> {
    let figures = match &options.from {
        Some(path) => serde_json::from_str(&std::fs::read_to_string(path)?)?,
        None => measure(options)?,
    };
    print!("{}", page::text(&figures));
    if let Some(path) = &options.json {
        figures.write(path)?;
    }
    if let Some(folder) = &options.publish {
        publish(&figures, folder)?;
    }
    Ok(())
}

/// Writes the figures, the pictures and the page's section below `folder`.
fn publish(figures: &Figures, folder: &Path) -> Result<()> {
    let pictures = folder.join("grow");
    std::fs::create_dir_all(&pictures)?;
    figures.write(&pictures.join("figures.json"))?;
    for curves in figures.axes() {
        std::fs::write(pictures.join(format!("{}.svg", curves[0].axis)), plot::draw(curves)?)?;
    }
    page::publish(figures, &folder.join("benchmarks.md"))
}

fn measure(options: &Options) -> Result<Figures> {
    if let Some(id) = options.only.iter().find(|id| !table::AXES.iter().any(|axis| axis.id == *id)) {
        return Err(format!("no axis is called {id:?}").into());
    }
    let load = machine::load();
    let start = Instant::now();
    let most = if options.quick { 1 } else { PASSES };
    let mut passes = Vec::new();
    let mut longest = Duration::ZERO;
    // A pass that might not end in time isn't begun.
    while passes.len() < most && start.elapsed() + longest < options.deadline {
        let pass = Instant::now();
        let mut curves = Vec::new();
        for axis in table::AXES.iter().filter(|axis| options.wants(axis.id)) {
            curves.extend(measured_elsewhere(axis, options)?);
        }
        passes.push(curves);
        longest = longest.max(pass.elapsed().mul_f64(1.2));
    }
    let processors = std::thread::available_parallelism()?.get();
    let machine = machine::describe(processors, options.quick, false, load);
    Ok(Figures::new(&machine, start.elapsed(), passes))
}

/// Measures an axis once, in a process of its own.
fn measured_elsewhere(axis: &Axis, options: &Options) -> Result<Vec<CurveFigures>> {
    let path = std::env::temp_dir().join(format!("mp-bench-{}-grow.json", std::process::id()));
    let mut command = Command::new(std::env::current_exe()?);
    command.args([AXIS, axis.id, if options.quick { "quick" } else { "full" }]).arg(&path);
    let ended = Child::spawn(axis.id, command.stdin(Stdio::null()))?.finish_within(options.deadline);
    let text = std::fs::read_to_string(&path);
    // If this fails, a short file is left in the temporary folder.
    _ = std::fs::remove_file(&path);
    ended?;
    Ok(serde_json::from_str(&text?)?)
}

/// Measures an axis once. `words` are the id of the axis, `quick` or `full`, and the file for the figures.
///
/// # Errors
/// Returns an error for a wrong result, or a failure of mp or of the limit.
pub(crate) fn be_axis(words: &[String]) -> Result<()> {
    let [id, amount, path] = words else { return Err("an axis needs an id, an amount and a file".into()) };
    let axis = table::AXES.iter().find(|axis| axis.id == id).ok_or("no axis has this id")?;
    // A million messages wait in some curves.
    mp::Arena::configure(mp::memory::ArenaOptions::new().messages(1_200_000))?;
    let effort = Effort::new(Plan::new(amount == "quick", None)?);
    let mut curves = Vec::new();
    measure_axis(axis, &effort, &mut curves)?;
    Ok(std::fs::write(path, serde_json::to_string(&curves)?)?)
}

/// Measures all curves of an axis at all sizes.
fn measure_axis(axis: &Axis, effort: &Effort, curves: &mut Vec<CurveFigures>) -> Result<()> {
    let step = if effort.plan.quick { 2 } else { 1 };
    for &size in axis.sizes.iter().rev().step_by(step).rev() {
        let lacks = (axis.need)(size).lacks();
        let around = if lacks.is_none() { Some((axis.around)(size)?) } else { None };
        for curve in axis.curves {
            eprintln!("{}: {} at {size}", axis.id, curve.id);
            let figures = CurveFigures::find(curves, axis, curve);
            for &(name, measure) in curve.contenders {
                let line = LineFigures::find(&mut figures.lines, name);
                if line.left_out.is_some() {
                    continue;
                }
                let measured = match &lacks {
                    Some(why) => Err(why.clone().into()),
                    None => measure(effort, size),
                };
                match measured {
                    Ok(times) => line.points.push(Point::new(size, &times)),
                    Err(error) if matches!(name, "mp" | "limit") && lacks.is_none() => {
                        return Err(format!("{}, {name} at {size}: {error}", curve.id).into());
                    }
                    // Larger sizes would fail, too.
                    Err(error) => {
                        eprintln!("{}: {name} is left out from {size} on: {error}", curve.id);
                        line.left_out = Some((size, error.to_string()));
                    }
                }
            }
        }
        drop(around);
    }
    Ok(())
}
