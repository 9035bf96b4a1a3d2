//! `cargo xtask mutate`: switches on one mutation of the protocol code after the other, and finds a test that
//! fails.
//!
//! The sources have no mutations. A table ([`table`]) lists the lines to replace, and a copy of the tree
//! ([`copy`]) is built once with all replacements. The environment variable `MP_MUTANT` switches one of them
//! on by its name. The list `docs/mutations.tsv` names the test that finds each mutation. That test is tried
//! first, then all tests of its area ([`areas`]). A mutation that no test finds needs a reason on the page
//! `docs/verification.md`. `tidy` compares table, list and page with the sources.

mod areas;
mod copy;
mod page;
mod programs;
mod table;
mod trial;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::session::{Outcome, Session};
use crate::tidy::{Finding, Tree};
use page::Page;
use programs::{Programs, Run};
use table::Table;
use trial::{End, Limit};

/// Minimum number of mutations, and minimum percentage of mutations that tests find.
const LEAST: usize = 150;
const PERCENT: usize = 95;

/// Returns differences between areas, page, table, and the sources.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let areas: Vec<Run> = areas::all().collect();
    [page::check(tree), page::gone(tree, areas.iter())].concat()
}

/// Arguments of one call.
struct Options {
    /// Prefixes of the mutations to try. Empty for all.
    only: Vec<String>,
    /// Prefixes of the suites to run. Empty for all.
    suites: Vec<String>,
    /// `true` if all tests of a mutation's area run, even if the page names a test for the mutation.
    anew: bool,
    /// `true` if mutations that have a reason for surviving are tried, too.
    survivors: bool,
    /// `true` if only mutations that are missing on the page are tried.
    untried: bool,
    /// `true` if the page is written.
    write: bool,
    /// Multiple of a test's time without a mutation after which the test counts as hanging.
    slower: u32,
    /// Number of mutations tried at once.
    jobs: usize,
    /// Time limit for a test without a mutation. Tests that exceed it are left out.
    most: Duration,
}

/// Values of n for the tests of [`KILLING`], which kill a process at every n-th access. The larger n is
/// first.
const EVERY: [u32; 2] = [13, 1];

/// Prefix of the suites whose tests kill at every access.
const KILLING: &str = "mp-tests/";

/// Default of [`Options::most`].
const MOST: Duration = Duration::from_secs(600);

/// Runs the task.
pub(crate) fn run(args: &mut Args) -> Result<bool, String> {
    let slower = args.value("--slower")?.map_or(Ok(3), |n| n.parse());
    let jobs = args.value("--jobs")?.map_or(Ok(jobs()), |n| n.parse());
    let most = args.value("--most")?.map_or(Ok(MOST), |n| n.parse().map(Duration::from_secs));
    let wanted = Options {
        only: args.list("--only")?,
        suites: args.list("--suites")?,
        anew: args.flag("--anew"),
        survivors: args.flag("--survivors"),
        untried: args.flag("--untried"),
        write: args.flag("--write"),
        slower: slower.map_err(|e| format!("--slower: {e}"))?,
        jobs: jobs.map_err(|e| format!("--jobs: {e}"))?,
        most: most.map_err(|e| format!("--most: {e}"))?,
    };
    let list = args.flag("--list");
    args.finish()?;
    if list {
        let table = Table::load(&Tree::load()?)?;
        let switches = table.switches()?;
        switches.iter().for_each(|(name, place)| println!("{name}  {place}"));
        println!("{} mutations", switches.len());
        return Ok(true);
    }
    let mut session = Session::new();
    perform(&mut session, &wanted)?;
    Ok(session.outcome() == Outcome::Ok)
}

/// Runs the step of `ci --long`.
pub(crate) fn step(session: &mut Session) -> Outcome {
    let all = Options {
        only: Vec::new(),
        suites: Vec::new(),
        anew: false,
        survivors: false,
        untried: false,
        write: false,
        slower: 3,
        jobs: jobs(),
        most: MOST,
    };
    match perform(session, &all) {
        Ok(()) => session.outcome(),
        Err(message) => Outcome::Failed(message),
    }
}

/// Returns the default number of mutations that are tried at once. Most tests wait for processes.
fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) * 3 / 2
}

fn perform(session: &mut Session, wanted: &Options) -> Result<(), String> {
    let tree = Tree::load()?;
    let (table, mut page) = (Table::load(&tree)?, Page::load(&tree)?);
    let switches = table.switches()?;
    let is_wanted =
        |name: &str| wanted.only.is_empty() || wanted.only.iter().any(|begin| name.starts_with(begin));
    let names: Vec<&str> = switches
        .keys()
        .copied()
        .filter(|name| is_wanted(name) && (wanted.survivors || !page.survivors.contains_key(*name)))
        .filter(|name| !wanted.untried || !page.found.contains_key(*name))
        .collect();
    let mut plans = Vec::new();
    for &name in &names {
        let recorded = page.found.get(name).filter(|_| !wanted.anew).cloned();
        let is_recorded = recorded.is_some();
        let of_area = areas::runs(name)?;
        let likely = page.found_others_like(name);
        let likely = likely.into_iter().filter(|run| of_area.iter().any(|of| of.suite == run.suite));
        let mut runs: Vec<_> = recorded.into_iter().chain(likely).chain(of_area.iter().cloned()).collect();
        runs.retain(|run| wanted.suites.is_empty() || wanted.suites.iter().any(|s| run.suite.starts_with(s)));
        plans.push((name, is_recorded, runs));
    }
    let folder = copy::make(&tree, &table)?;
    if wanted.only.is_empty() && wanted.suites.is_empty() && !wanted.untried {
        planted(session, &folder);
    }
    let used = plans.iter().flat_map(|(.., runs)| runs);
    let programs = Programs::build(session, &folder, used.map(|run| run.suite.clone()).collect())?;

    let lab = Lab { programs, usual: Mutex::default(), slower: wanted.slower, most: wanted.most };
    let started = Instant::now();
    let queue = Mutex::new(plans.iter());
    let found = Mutex::new(BTreeMap::new());
    let problems = Mutex::new(Vec::new());
    let work = || {
        while let Some((name, recorded, runs)) = { queue.lock().ok().and_then(|mut queue| queue.next()) } {
            let end = lab.find(name, *recorded, runs);
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
        (0..wanted.jobs.max(1)).for_each(|_| _ = scope.spawn(work));
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
    page.found.retain(|name, _| switches.contains_key(name.as_str()));
    let (all, known) = (switches.len(), page.found.len());
    println!("{known} of {all} mutations are found; this took {} s", started.elapsed().as_secs());
    let to_find = all - page.harmless();
    if all < LEAST || known * 100 < to_find * PERCENT {
        session
            .fail(format!("{known} of {to_find}: there have to be {LEAST}, and {PERCENT} % of them found"));
    }
    if wanted.write {
        page.write(all)?;
    }
    Ok(())
}

/// Runs the tests that enable mutations themselves: tests of the torture, the simulated GPU and the fuzzer.
/// Builds without mutations ignore these tests.
fn planted(session: &mut Session, folder: &Path) {
    let fuzz =
        ["run", "--quiet", "--release", "--manifest-path", "tools/fuzz/Cargo.toml", "--bin", "mp-fuzz"];
    let runs: [&[&str]; 4] = [
        &["build", "-p", "mp-cuda-sim"],
        &["test", "-p", "mp-torture", "--test", "planted", "--", "--include-ignored"],
        &["test", "-p", "mp-cuda-sim", "--test", "processes", "--", "--ignored", "planted::"],
        &[&fuzz[..], &["--", "--planted"]].concat(),
    ];
    for words in runs {
        let mut command = session.cargo(words);
        session.run(command.current_dir(folder).env_remove("CARGO_TARGET_DIR"));
    }
}

/// Programs with which mutations are tried.
struct Lab {
    programs: Programs,
    /// Time of each run without a mutation.
    usual: Mutex<HashMap<(Run, u32), Duration>>,
    slower: u32,
    most: Duration,
}

impl Lab {
    /// Returns the first run of a single test that finds the mutation, and the kind of the failure. Returns
    /// `None` if no test finds it.
    fn find(&self, name: &str, recorded: bool, runs: &[Run]) -> Result<Option<(Run, &'static str)>, String> {
        let tests: Vec<_> = runs.iter().flat_map(|run| self.tests(run)).collect::<Result<_, _>>()?;
        // First, the first test kills at some accesses, and at every access if the page names it for this
        // mutation. Then all tests kill at some accesses, and then the others at every access.
        let on_page = tests.first().filter(|_| recorded).map(|run| (run, EVERY[1]));
        let first_looks = tests.iter().map(|run| (run, EVERY[0]));
        let rest = tests.iter().filter(|run| run.suite.starts_with(KILLING)).map(|run| (run, EVERY[1]));
        let (mut tried, mut problem) = (HashSet::new(), None);
        for (run, every) in first_looks.clone().take(1).chain(on_page).chain(first_looks).chain(rest) {
            if !tried.insert((run, every)) {
                continue;
            }
            match self.try_one(name, run, every) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                // Another test may still find the mutation.
                Err(message) => _ = problem.get_or_insert(message),
            }
        }
        problem.map_or(Ok(None), Err)
    }

    fn try_one(&self, name: &str, run: &Run, every: u32) -> Result<Option<(Run, &'static str)>, String> {
        let usual = self.usual(run, every)?;
        if usual >= self.most {
            return Ok(None);
        }
        let time = usual * self.slower + Duration::from_secs(10);
        match trial::run(&self.programs, run, Some(name), every, Limit::of(time))? {
            End::Passed(_) => Ok(None),
            End::Failed(test) => Ok(Some((run.of(test), "found"))),
            // A busy machine may need as long for the test without the mutation.
            End::TimedOut(test) => match trial::run(&self.programs, run, None, every, Limit::of(time))? {
                End::Passed(_) => Ok(Some((run.of(test), "found (it hangs)"))),
                End::Failed(_) | End::TimedOut(_) => {
                    Err(format!("{run}: the machine is too busy to tell whether {name} makes it hang"))
                }
            },
        }
    }

    /// Returns the tests of a run, each as a run by itself.
    fn tests(&self, run: &Run) -> Vec<Result<Run, String>> {
        match self.programs.tests(run) {
            Ok(tests) if tests.is_empty() => vec![Err(format!("{run}: there is no such test"))],
            Ok(tests) => tests.into_iter().map(Ok).collect(),
            Err(message) => vec![Err(message)],
        }
    }

    fn usual(&self, run: &Run, every: u32) -> Result<Duration, String> {
        let key = (run.clone(), every);
        let known = |all: &Mutex<HashMap<_, Duration>>| all.lock().ok()?.get(&key).copied();
        if let Some(usual) = known(&self.usual) {
            return Ok(usual);
        }
        let started = Instant::now();
        let usual = match trial::run(&self.programs, run, None, every, Limit::of(self.most))? {
            End::Passed(0) => return Err(format!("{run}: there is no such test")),
            End::Passed(_) => started.elapsed(),
            End::TimedOut(_) if self.most < MOST => self.most,
            End::Failed(test) | End::TimedOut(test) => {
                return Err(format!("{run}: {test} fails without a mutation"));
            }
        };
        _ = self.usual.lock().map(|mut all| all.insert((run.clone(), every), usual));
        Ok(usual)
    }
}
