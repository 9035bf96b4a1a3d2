//! Driver of both sides, mp and torch, in turns. Each side is a server process, which reads names of rows and
//! prints figures.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use mp::AnyResult;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::cuda::Options;
use crate::cuda::row::{ROWS, Row};

/// Time limit for a restart of a side.
const AGAIN: Duration = Duration::from_secs(20);

/// Server of mp or of torch, and its process while it runs.
struct Side {
    name: &'static str,
    words: Vec<String>,
    running: Option<Running>,
    /// Reason why the side is not started again.
    off: Option<String>,
}

struct Running {
    child: Child,
    /// Stdin of the server. `None` after it was closed, which asks the server to end.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    ready: bool,
}

impl Drop for Running {
    /// Kills the process group, which includes the side's child processes.
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            _ = kill_process_group(group, Signal::KILL);
        }
        _ = self.child.wait();
    }
}

impl Side {
    fn new(name: &'static str, words: Vec<String>) -> Self {
        Self { name, words, running: None, off: None }
    }

    /// Starts the side unless it is running. Doesn't wait until the side is ready.
    fn start(&mut self) -> AnyResult<&mut Running> {
        if self.running.is_none() {
            if let Some(why) = &self.off {
                return Err(format!("it is off: {why}").into());
            }
            let (program, words) = self.words.split_first().ok_or("no program")?;
            let mut command = Command::new(program);
            command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
            let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
            let input = child.stdin.take();
            let output = BufReader::new(child.stdout.take().ok_or("no standard output")?);
            let (to, lines) = channel();
            std::thread::spawn(move || {
                for line in output.lines().map_while(Result::ok) {
                    if to.send(line).is_err() {
                        break;
                    }
                }
            });
            self.running = Some(Running { child, input, lines, ready: false });
        }
        self.running.as_mut().ok_or_else(|| "it isn't running".into())
    }

    /// Returns the side's next line of JSON. Other lines are forwarded to stderr.
    fn line(&mut self, deadline: Instant) -> AnyResult<Value> {
        let name = self.name;
        let running = self.start()?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match running.lines.recv_timeout(left) {
                Ok(line) => match serde_json::from_str::<Value>(&line) {
                    Ok(value) if value.is_object() => return Ok(value),
                    _ => eprintln!("{name}: {line}"),
                },
                Err(RecvTimeoutError::Timeout) => {
                    return Err("it gave no answer in the time that it had".into());
                }
                Err(RecvTimeoutError::Disconnected) => return Err("it has ended".into()),
            }
        }
    }

    /// Waits until the side accepts names of rows.
    fn ready(&mut self, deadline: Instant) -> AnyResult<()> {
        if self.start()?.ready {
            return Ok(());
        }
        loop {
            match self.line(deadline) {
                Ok(value) if value.get("ready").is_some() => {
                    println!("{value}");
                    break;
                }
                Ok(value) => println!("{value}"),
                Err(error) => {
                    self.off = Some(error.to_string());
                    self.running = None;
                    return Err(error);
                }
            }
        }
        self.start()?.ready = true;
        Ok(())
    }

    /// Runs one round of a row on this side, and adds the figures to `to`.
    fn run(&mut self, row: &str, round: usize, deadline: Instant, to: &mut Vec<Row>) -> AnyResult<()> {
        self.ready(deadline.min(Instant::now() + AGAIN))?;
        let result = self.answers(row, round, deadline, to);
        if let Err(RowError::Lost(why)) = result {
            // The side's present work, including its answer, is useless now.
            self.running = None;
            return Err(why.into());
        }
        result.map_err(|failed| match failed {
            RowError::Lost(why) | RowError::Row(why) => why.into(),
        })
    }

    fn answers(
        &mut self,
        row: &str,
        round: usize,
        deadline: Instant,
        to: &mut Vec<Row>,
    ) -> Result<(), RowError> {
        let lost = |error: &dyn std::fmt::Display| RowError::Lost(error.to_string());
        let running = self.start().map_err(|e| lost(&e))?;
        let input = running.input.as_mut().ok_or_else(|| lost(&"it was asked to end"))?;
        writeln!(input, "{row} {round}").map_err(|e| lost(&e))?;
        input.flush().map_err(|e| lost(&e))?;
        loop {
            let value = self.line(deadline).map_err(|e| lost(&e))?;
            if value.get("done").is_some() {
                return Ok(());
            }
            if value.get("failed").is_some() {
                let why = value.get("why").and_then(Value::as_str).unwrap_or("no reason was given");
                return Err(RowError::Row(why.to_owned()));
            }
            if let Ok(mut found) = serde_json::from_value::<Row>(value.clone()) {
                found.round = round;
                println!("{}", serde_json::to_string(&found).map_err(|e| lost(&e))?);
                to.push(found);
            } else {
                let text = value.get("note").and_then(Value::as_str);
                println!("  {}: {}", self.name, text.unwrap_or(&value.to_string()));
            }
        }
    }
}

enum RowError {
    /// The row failed. Contains the message that the side has printed.
    Row(String),
    /// The side no longer answers, and must be killed. Contains the reason.
    Lost(String),
}

/// Runs the requested rows.
pub(crate) fn run(options: &Options) -> AnyResult<bool> {
    let began = Instant::now();
    let end = began + options.limit;
    let this = std::env::current_exe()?.display().to_string();
    let mut words = vec![this, "--serve".to_owned()];
    words.extend(options.quick.then(|| "--quick".to_owned()));
    let mut sides = vec![Side::new("mp", words)];
    let wanted: Vec<(&str, usize)> = ROWS.iter().copied().filter(|(name, _)| options.wants(name)).collect();
    let rounds = |most: usize| if options.quick { most.min(2) } else { most };
    if let Some((python, script)) = &options.torch {
        let has = |name: &str| wanted.iter().any(|(row, _)| *row == name);
        let mut words = vec![python.clone(), script.clone(), "--serve".to_owned()];
        words.extend(options.quick.then(|| "--quick".to_owned()));
        words.extend(["--device".to_owned(), options.torch_device.clone()]);
        let pairs = if has("cold") { rounds(3) } else { 0 } + if has("killed") { 2 } else { 0 };
        words.extend(["--pairs".to_owned(), pairs.to_string()]);
        sides.push(Side::new("torch", words));
    }
    // The sides start at the same time, and are measured when both are ready.
    for side in &mut sides {
        if let Err(error) = side.start() {
            println!("{}: {error}", side.name);
        }
    }
    for side in &mut sides {
        if let Err(error) = side.ready(began + options.limit / 2) {
            println!("{}: {error}", side.name);
        }
    }
    println!("all are ready after {:.1} s", began.elapsed().as_secs_f64());
    let (mut rows, mut failures) = (Vec::new(), Vec::<String>::new());
    for (name, most) in wanted {
        let mut failed = vec![false; sides.len()];
        for round in 1..=rounds(most) {
            for (side, failed) in sides.iter_mut().zip(&mut failed) {
                // A failed row isn't tried again, since each try may take all of its time.
                if *failed || side.off.is_some() {
                    continue;
                }
                let most = if matches!(name, "killed" | "relay_memory") { 50 } else { 20 };
                let deadline = end.min(Instant::now() + Duration::from_secs(most));
                let result = if deadline <= Instant::now() {
                    Err("the time is over".into())
                } else {
                    side.run(name, round, deadline, &mut rows)
                };
                if let Err(why) = result {
                    *failed = true;
                    failures.push(format!("FAILED {name} (round {round}) of {}: {why}", side.name));
                    println!("{}", failures[failures.len() - 1]);
                }
            }
        }
        // Saved after each row, since the next row may end this program.
        save(options, &rows, &failures)?;
    }
    for side in &sides {
        let why = side.off.iter();
        failures.extend(why.map(|why| format!("FAILED: {} was not measured to the end: {why}", side.name)));
    }
    println!("\n{}\n{:.1} s in all", table(&rows), began.elapsed().as_secs_f64());
    failures.iter().for_each(|failure| println!("{failure}"));
    save(options, &rows, &failures)?;
    finish(sides.into_iter().filter_map(|side| side.running).collect());
    Ok(failures.is_empty())
}

/// Writes the requested file.
fn save(options: &Options, rows: &[Row], failures: &[String]) -> AnyResult<()> {
    let Some(path) = &options.json else { return Ok(()) };
    let all = serde_json::json!({
        "rows": rows, "failures": failures, "quick": options.quick,
        "table": table(rows).lines().collect::<Vec<_>>(),
    });
    std::fs::write(path, serde_json::to_string_pretty(&all)?).map_err(|e| format!("{path}: {e}"))?;
    Ok(())
}

/// Closes the servers' inputs, which ends them. After 4 s, remaining servers are killed.
fn finish(mut all: Vec<Running>) {
    all.iter_mut().for_each(|running| drop(running.input.take()));
    let deadline = Instant::now() + Duration::from_secs(4);
    for running in &mut all {
        while Instant::now() < deadline && matches!(running.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Combined rounds of one side in a row.
struct Figure {
    who: String,
    median: f64,
    p10: f64,
    p90: f64,
    /// Spread of the rounds' medians: (largest − smallest) / median.
    between: f64,
}

fn figures(rows: &[Row], name: &str) -> Vec<Figure> {
    let mut who: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.row == name) {
        if !who.contains(&row.who.as_str()) {
            who.push(&row.who);
        }
    }
    let figure = |who: &str| {
        let mine = || rows.iter().filter(|row| row.row == name && row.who == who);
        let of = |get: fn(&Row) -> f64| mine().map(get).collect::<Vec<f64>>();
        let medians = of(|row| row.median);
        let median = mp_bench::stats::median(&medians);
        let most = medians.iter().copied().fold(f64::MIN, f64::max);
        let least = medians.iter().copied().fold(f64::MAX, f64::min);
        // If each round has one sample, the rounds are the samples.
        let single = mine().all(|row| row.n == 1);
        let (low, high) =
            (mp_bench::stats::median(&of(|row| row.p10)), mp_bench::stats::median(&of(|row| row.p90)));
        Figure {
            who: who.to_owned(),
            median,
            p10: if single { least } else { low },
            p90: if single { most } else { high },
            between: if median == 0.0 { 0.0 } else { ((most - least) / median).abs() },
        }
    };
    who.into_iter().map(figure).collect()
}

fn short(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        ..10.0 => 2,
        ..1000.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// Formats a table with a line for each row: the figure of mp, the best figure of torch, their ratio, and all
/// other figures.
fn table(rows: &[Row]) -> String {
    let mut names: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        if !names.iter().any(|(name, _)| *name == row.row) {
            names.push((&row.row, &row.unit));
        }
    }
    let mut lines = vec![
        [
            "row", "unit", "mp", "p10..p90", "rounds", "torch", "p10..p90", "rounds", "setting", "torch/mp",
            "others",
        ]
        .map(str::to_owned),
    ];
    for (name, unit) in names {
        let all = figures(rows, name);
        let (ours, theirs): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|figure| !figure.who.starts_with("torch"));
        let more_is_better = unit == "1/s";
        let best = theirs.iter().min_by(|a, b| {
            let order = a.median.total_cmp(&b.median);
            if more_is_better { order.reverse() } else { order }
        });
        let mine = ours.iter().find(|figure| figure.who == "mp");
        let of =
            |figure: Option<&Figure>, get: &dyn Fn(&Figure) -> String| figure.map(get).unwrap_or_default();
        let middle = |figure: &Figure| short(figure.median);
        let width = |figure: &Figure| format!("{}..{}", short(figure.p10), short(figure.p90));
        let between = |figure: &Figure| format!("{:.0}%", 100.0 * figure.between);
        let ratio = match (mine, best) {
            (Some(mine), Some(best)) if mine.median != 0.0 => {
                let ratio =
                    if more_is_better { mine.median / best.median } else { best.median / mine.median };
                format!("{ratio:.2}")
            }
            _ => String::new(),
        };
        let mut others = String::new();
        for figure in ours.iter().filter(|figure| figure.who != "mp") {
            _ = write!(others, "{} {} ", figure.who, short(figure.median));
        }
        for figure in theirs.iter().filter(|figure| best.is_some_and(|best| best.who != figure.who)) {
            _ = write!(others, "{} {} ", figure.who, short(figure.median));
        }
        lines.push([
            name.to_owned(),
            unit.to_owned(),
            of(mine, &middle),
            of(mine, &width),
            of(mine, &between),
            of(best, &middle),
            of(best, &width),
            of(best, &between),
            of(best, &|figure| figure.who.clone()),
            ratio,
            others.trim_end().to_owned(),
        ]);
    }
    let mut text =
        "torch/mp: how many times as long torch takes; of 1/s, how many times as many are ours\n".to_owned();
    let widths: Vec<usize> =
        (0..lines[0].len()).map(|i| lines.iter().map(|line| line[i].len()).max().unwrap_or(0)).collect();
    for line in &lines {
        let mut one = String::new();
        for (i, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let left = matches!(i, 0 | 1 | 8 | 10);
            _ = if left { write!(one, "{cell:<width$}  ") } else { write!(one, "{cell:>width$}  ") };
        }
        _ = writeln!(text, "{}", one.trim_end());
    }
    text
}
