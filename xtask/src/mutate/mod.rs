//! `cargo xtask mutate`: switches on one mutation of the protocol code after the other, and sees which test finds it.
//!
//! A mutation is a `mutant!("area.what")` in the sources of a library. The page `docs/verification.md` lists which test finds
//! which; that test is tried first, then all tests of its area ([`areas`]). A mutation that no test finds needs a reason on
//! that page. `tidy` holds the page against the sources.

mod areas;
mod page;
mod points;
mod programs;
mod trial;

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub(crate) use page::check;

use crate::args::Args;
use crate::session::{Outcome, Session};
use crate::tidy::Tree;
use page::Page;
use programs::{Programs, Run};
use trial::{End, Limit};

/// How many mutations there have to be, and how many of a hundred have to be found.
const LEAST: usize = 150;
const PERCENT: usize = 95;

/// What is wanted of one call.
struct Wanted {
    /// Mutations whose names begin with one of these; all, if there are none.
    only: Vec<String>,
    /// Suites whose names begin with one of these; all, if there are none.
    suites: Vec<String>,
    /// The tests of their areas, also for those that have one on the page.
    anew: bool,
    /// Also those that have a reason for surviving.
    survivors: bool,
    /// The page is written.
    write: bool,
    /// What a test takes without a mutation, times this, is its time.
    patience: u32,
}

/// The task.
pub(crate) fn run(args: &mut Args) -> Result<bool, String> {
    let patience = args.value("--patience")?.map_or(Ok(3), |n| n.parse());
    let wanted = Wanted {
        only: args.list("--only")?,
        suites: args.list("--suites")?,
        anew: args.flag("--anew"),
        survivors: args.flag("--survivors"),
        write: args.flag("--write"),
        patience: patience.map_err(|e| format!("--patience: {e}"))?,
    };
    let list = args.flag("--list");
    args.finish()?;
    if list {
        let points = points::all(&Tree::load()?)?;
        points.iter().for_each(|point| println!("{}  {}:{}", point.name, point.path, point.line));
        println!("{} mutations", points.len());
        return Ok(true);
    }
    let mut session = Session::new();
    perform(&mut session, &wanted)?;
    Ok(session.outcome() == Outcome::Ok)
}

/// The step of `ci --long`.
pub(crate) fn step(session: &mut Session) -> Outcome {
    let all = Wanted {
        only: Vec::new(),
        suites: Vec::new(),
        anew: false,
        survivors: false,
        write: false,
        patience: 3,
    };
    match perform(session, &all) {
        Ok(()) => session.outcome(),
        Err(message) => Outcome::Failed(message),
    }
}

fn perform(session: &mut Session, wanted: &Wanted) -> Result<(), String> {
    let tree = Tree::load()?;
    let (points, mut page) = (points::all(&tree)?, Page::load(&tree)?);
    let is_wanted =
        |name: &str| wanted.only.is_empty() || wanted.only.iter().any(|begin| name.starts_with(begin));
    let names: Vec<&str> = points
        .iter()
        .map(|point| point.name.as_str())
        .filter(|name| is_wanted(name) && (wanted.survivors || !page.survivors.contains_key(*name)))
        .collect();
    let mut plans = Vec::new();
    for &name in &names {
        let recorded = page.found.get(name).filter(|_| !wanted.anew).cloned();
        let mut runs: Vec<_> = recorded.into_iter().chain(areas::runs(name)?).collect();
        runs.retain(|run| wanted.suites.is_empty() || wanted.suites.iter().any(|s| run.suite.starts_with(s)));
        plans.push((name, runs));
    }
    if wanted.only.is_empty() {
        is_absent_by_default(session)?;
    }
    let used = plans.iter().flat_map(|(_, runs)| runs);
    let programs = Programs::build(session, used.map(|run| run.suite.clone()).collect())?;

    let lab = Lab { programs, usual: Mutex::default(), patience: wanted.patience };
    let started = Instant::now();
    let queue = Mutex::new(plans.iter());
    let found = Mutex::new(BTreeMap::new());
    let problems = Mutex::new(Vec::new());
    let work = || {
        while let Some((name, runs)) = { queue.lock().ok().and_then(|mut queue| queue.next()) } {
            let end = lab.find(name, runs);
            match &end {
                Ok(Some((run, how))) => println!("{name}: {how} by {run}"),
                Ok(None) => println!("{name}: SURVIVED"),
                Err(message) => println!("{name}: {message}"),
            }
            match end {
                Ok(end) => _ = found.lock().map(|mut found| found.insert(*name, end.map(|(run, _)| run))),
                Err(message) => _ = problems.lock().map(|mut all| all.push(message)),
            }
        }
    };
    std::thread::scope(|scope| {
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        (0..jobs).for_each(|_| _ = scope.spawn(work));
    });
    let found = found.into_inner().map_err(|e| e.to_string())?;
    problems.into_inner().map_err(|e| e.to_string())?.into_iter().for_each(|problem| session.fail(problem));

    for (name, run) in &found {
        match run {
            Some(run) => _ = page.found.insert((*name).to_owned(), run.clone()),
            None => {
                page.found.remove(*name);
                if !page.survivors.contains_key(*name) {
                    session.fail(format!("no test finds {name}: write one, or a reason into {}", page::PAGE));
                }
            }
        }
        if run.is_some() && page.survivors.contains_key(*name) {
            session.fail(format!("{name} is found by now: take its reason off {}", page::PAGE));
        }
    }
    page.found.retain(|name, _| points.iter().any(|point| point.name == *name));
    let (all, known) = (points.len(), page.found.len());
    println!("{known} of {all} mutations are found; this took {} s", started.elapsed().as_secs());
    if all < LEAST || known * 100 < all * PERCENT {
        session.fail(format!("{known} of {all}: there have to be {LEAST}, and {PERCENT} % of them found"));
    }
    if wanted.write {
        page.write(all)?;
    }
    Ok(())
}

/// Programs as users build them have no mutations: none of their names is in one.
fn is_absent_by_default(session: &mut Session) -> Result<(), String> {
    let mut build = session.cargo(&["build", "--quiet", "--release", "-p", "mp-torture"]);
    if !session.run(&mut build).ok {
        return Ok(());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let program = std::path::Path::new(&target).join("release/mp-torture");
    let bytes = std::fs::read(&program).map_err(|e| format!("{}: {e}", program.display()))?;
    for name in ["MP_MUTANT", "ring.put.", "steps.take."] {
        if bytes.windows(name.len()).any(|window| window == name.as_bytes()) {
            session.fail(format!("`{name}` is in a program that was built without the feature `inject`"));
        }
    }
    Ok(())
}

/// Where mutations are tried.
struct Lab {
    programs: Programs,
    /// How long each run takes without a mutation.
    usual: Mutex<HashMap<Run, Duration>>,
    patience: u32,
}

impl Lab {
    /// The first of these runs that finds the mutation, and how; naming the test that did.
    fn find(&self, name: &str, runs: &[Run]) -> Result<Option<(Run, &'static str)>, String> {
        for run in runs.iter().flat_map(|run| self.tests(run)) {
            let run = &run?;
            let usual = self.usual(run)?;
            let time = usual * self.patience + Duration::from_secs(10);
            match trial::run(&self.programs, run, Some(name), Limit::of(time))? {
                End::Passed(_) => {}
                End::Failed(test) => return Ok(Some((run.of(test), "found"))),
                // Unless the machine is so busy that the test takes as long without it.
                End::TimedOut(test) => match trial::run(&self.programs, run, None, Limit::of(time))? {
                    End::Passed(_) => return Ok(Some((run.of(test), "found (it hangs)"))),
                    End::Failed(_) | End::TimedOut(_) => {
                        return Err(format!(
                            "{run}: the machine is too busy to tell whether {name} makes it hang"
                        ));
                    }
                },
            }
        }
        Ok(None)
    }

    /// The tests of a run, each by itself.
    fn tests(&self, run: &Run) -> Vec<Result<Run, String>> {
        match self.programs.tests(run) {
            Ok(tests) if tests.is_empty() => vec![Err(format!("{run}: there is no such test"))],
            Ok(tests) => tests.into_iter().map(Ok).collect(),
            Err(message) => vec![Err(message)],
        }
    }

    fn usual(&self, run: &Run) -> Result<Duration, String> {
        let known = |all: &Mutex<HashMap<Run, Duration>>| all.lock().ok()?.get(run).copied();
        if let Some(usual) = known(&self.usual) {
            return Ok(usual);
        }
        let started = Instant::now();
        match trial::run(&self.programs, run, None, Limit::of(Duration::from_secs(600)))? {
            End::Passed(0) => Err(format!("{run}: there is no such test")),
            End::Passed(_) => {
                let usual = started.elapsed();
                _ = self.usual.lock().map(|mut all| all.insert(run.clone(), usual));
                Ok(usual)
            }
            End::Failed(test) | End::TimedOut(test) => Err(format!("{run}: {test} fails without a mutation")),
        }
    }
}
