//! Time of calls on the host.

use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::gpu::{Gpu, Outcome, ProbeError};
use crate::helper::{self, Helper, ms, number, tell, timed, us};
use crate::host::{self, Shared};

const TIMES: usize = 5;
const SIZES: [(&str, usize); 3] = [("2 MiB", 2 << 20), ("1 GiB", 1 << 30), ("16 GiB", 16 << 30)];

/// Times of calls, in the order of their first call.
#[derive(Default)]
struct Costs(Vec<(String, Vec<f64>)>);

impl Costs {
    fn add(&mut self, call: &str, time: f64) {
        if !self.0.iter().any(|(name, _)| name == call) {
            self.0.push((call.to_owned(), Vec::new()));
        }
        if let Some((_, times)) = self.0.iter_mut().find(|(name, _)| name == call) {
            times.push(time);
        }
    }

    fn take<T>(&mut self, call: &str, run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let (time, value) = timed(run)?;
        self.add(call, us(time));
        Ok(value)
    }

    /// Reads a helper's line: pairs of a one-word name and a time.
    fn told(&mut self, line: &str) -> Outcome {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.chunks_exact(2) {
            let time = pair[1].parse().map_err(|_| ProbeError(line.to_owned()))?;
            self.add(&format!("  there: {}", pair[0]), time);
        }
        Ok(())
    }

    fn print(&mut self, of: &str) {
        for (name, times) in &mut self.0 {
            times.sort_unstable_by(f64::total_cmp);
            let (least, most) = (times[0], times[times.len() - 1]);
            let middle = times[times.len() / 2];
            println!("{of:<7} {name:<34} median {middle:10.1}  min {least:10.1}  max {most:10.1} us");
        }
    }
}

pub(crate) fn ask() -> Outcome {
    let (mine, theirs) = host::pair()?;
    let gpu = Gpu::start()?;
    println!("cuInit {:.1} ms, cuDevicePrimaryCtxRetain {:.1} ms", ms(gpu.started.0), ms(gpu.started.1));
    let mut other = Helper::start("costs", &[theirs.to_string()])?;
    println!("  in another process, while this one has a context: {}", other.hear()?);
    small(&gpu, &mut other)?;
    for (name, bytes) in SIZES {
        let mut costs = Costs::default();
        let mut outcome = Ok(());
        for _ in 0..TIMES {
            outcome = outcome.and_then(|()| virtual_memory(&gpu, &mut costs, mine, &mut other, bytes));
        }
        for _ in 0..TIMES {
            outcome = outcome.and_then(|()| legacy(&gpu, &mut costs, &mut other, bytes));
        }
        costs.print(name);
        outcome?;
    }
    other.close()
}

fn small(gpu: &Gpu, other: &mut Helper) -> Outcome {
    let mut costs = Costs::default();
    let pages = Shared::new(256 << 10)?;
    for i in 0..TIMES {
        // The first registration also allocates the pages.
        let call = if i == 0 { "cuMemHostRegister, fresh pages" } else { "cuMemHostRegister of 256 KiB" };
        costs.take(call, || gpu.register(pages.host, pages.bytes))?;
        costs.take("cuMemHostUnregister", || gpu.unregister(pages.host))?;
    }
    for _ in 0..TIMES {
        let stream = costs.take("cuStreamCreate", || gpu.stream())?;
        costs.take("cuStreamDestroy", || gpu.destroy_stream(stream))?;
        let event = costs.take("cuEventCreate, between processes", || gpu.event())?;
        let handle = costs.take("cuIpcGetEventHandle", || gpu.event_handle(event))?;
        costs.told(&other.ask(&format!("event {}", helper::text(handle)))?)?;
        costs.take("cuEventDestroy", || gpu.destroy_event(event))?;
    }
    costs.print("");
    Ok(())
}

fn virtual_memory(gpu: &Gpu, costs: &mut Costs, end: i32, other: &mut Helper, bytes: usize) -> Outcome {
    let handle = costs.take("cuMemCreate", || gpu.create(bytes))?;
    let at = costs.take("cuMemAddressReserve", || gpu.reserve(bytes))?;
    costs.take("cuMemMap", || gpu.map(at, bytes, handle))?;
    costs.take("cuMemSetAccess", || gpu.set_access(at, bytes))?;
    let file = costs.take("cuMemExportToShareableHandle", || gpu.export(handle))?;
    host::send(end, &file)?;
    costs.told(&other.ask(&format!("import {bytes}"))?)?;
    costs.take("close of the descriptor", || {
        drop(file);
        Ok(())
    })?;
    costs.take("cuMemUnmap", || gpu.unmap(at, bytes))?;
    costs.take("cuMemAddressFree", || gpu.give_back(at, bytes))?;
    costs.take("cuMemRelease, the last of it", || gpu.release(handle))
}

fn legacy(gpu: &Gpu, costs: &mut Costs, other: &mut Helper, bytes: usize) -> Outcome {
    let at = costs.take("cuMemAlloc", || gpu.alloc(bytes))?;
    let handle = costs.take("cuIpcGetMemHandle", || gpu.memory_handle(at))?;
    costs.told(&other.ask(&format!("open {}", helper::text(handle)))?)?;
    costs.take("cuMemFree", || gpu.free(at))
}

/// Runs the other process: imports and opens objects on request.
pub(crate) fn help(arguments: &[String]) -> Outcome {
    let gpu = Gpu::start()?;
    let end = number(arguments, 0)?;
    tell(&format!(
        "cuInit {:.1} ms, cuDevicePrimaryCtxRetain {:.1} ms",
        ms(gpu.started.0),
        ms(gpu.started.1)
    ))?;
    while let Ok(line) = helper::heard() {
        let (what, value) = line.split_once(' ').unwrap_or((&line, ""));
        let mut times: Vec<(&str, Duration)> = Vec::new();
        match what {
            "event" => {
                let (time, event) = timed(|| gpu.open_event(helper::handle(value)?))?;
                times.push(("cuIpcOpenEventHandle", time));
                times.push(("cuEventDestroy", timed(|| gpu.destroy_event(event))?.0));
            }
            "open" => {
                let (time, at) = timed(|| gpu.open_memory(helper::handle(value)?))?;
                times.push(("cuIpcOpenMemHandle", time));
                times.push(("cuIpcCloseMemHandle", timed(|| gpu.close_memory(at))?.0));
            }
            _ => {
                let bytes: usize = value.parse()?;
                let file = host::receive(end)?;
                let (time, handle) = timed(|| gpu.import(file.as_raw_fd()))?;
                times.push(("cuMemImportFromShareableHandle", time));
                let (time, at) = timed(|| gpu.reserve(bytes))?;
                times.push(("cuMemAddressReserve", time));
                times.push(("cuMemMap", timed(|| gpu.map(at, bytes, handle))?.0));
                times.push(("cuMemSetAccess", timed(|| gpu.set_access(at, bytes))?.0));
                times.push(("cuMemUnmap", timed(|| gpu.unmap(at, bytes))?.0));
                gpu.give_back(at, bytes)?;
                times.push(("cuMemRelease", timed(|| gpu.release(handle))?.0));
            }
        }
        let words: Vec<String> =
            times.iter().map(|(name, time)| format!("{name} {:.1}", us(*time))).collect();
        tell(&words.join(" "))?;
    }
    Ok(())
}
