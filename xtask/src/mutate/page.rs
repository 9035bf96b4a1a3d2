//! Page about mutations, and list of the tests that find them. This module reads both, compares them with the
//! sources, and writes them.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use super::programs::Run;
use super::table::Table;
use crate::tidy::{Finding, Tree};

pub(super) const PAGE: &str = "docs/verification.md";

/// List of mutations and the tests that find them, one per line.
const LIST: &str = "docs/mutations.tsv";
const FOUND: &str = "mutation\tfound by\ttest";
const SURVIVORS: &str = "| mutation | why no test finds it |";
/// First words of a reason for a mutation that is not proved to be harmless.
const HARD_TO_FIND: &str = "not harmless";
const FIGURE: &str = "Mutations: ";

/// Contents of the page.
pub(super) struct Page {
    text: String,
    pub(super) found: BTreeMap<String, Run>,
    /// Reasons why no test finds a mutation, by the mutation's name.
    pub(super) survivors: BTreeMap<String, String>,
}

impl Page {
    pub(super) fn load(tree: &Tree) -> Result<Self, String> {
        let text = |path| tree.text(path).ok_or_else(|| format!("{path} is missing"));
        Self::read(text(PAGE)?, text(LIST)?)
    }

    fn read(text: &str, list: &str) -> Result<Self, String> {
        let mut page = Self { text: text.to_owned(), found: BTreeMap::new(), survivors: BTreeMap::new() };
        for line in list.lines().skip(1) {
            let [name, suite, test] = *line.split('\t').collect::<Vec<_>>() else {
                return Err(format!("{LIST}: no name, suite and test: {line}"));
            };
            page.found.insert(name.to_owned(), Run::new(suite, "").of(test.to_owned()));
        }
        for cells in rows(text, SURVIVORS)? {
            if let [name, why] = cells.as_slice()
                && !why.is_empty()
            {
                page.survivors.insert(bare(name), why.clone());
            } else {
                return Err(format!("{PAGE}: a mutation that no test finds, without a reason"));
            }
        }
        Ok(page)
    }

    /// Returns the tests that found mutations whose names begin like `name`. Tests of mutations that have a
    /// longer prefix in common come first, and then tests that found more mutations.
    pub(super) fn found_others_like(&self, name: &str) -> Vec<Run> {
        let words = |name: &str| name.split(['.', '-']).map(str::to_owned).collect::<Vec<_>>();
        let own = words(name);
        let mut likely = HashMap::new();
        for (other, run) in self.found.iter().filter(|(other, _)| *other != name) {
            let common = own.iter().zip(words(other)).take_while(|(a, b)| **a == *b).count();
            if common > 0 {
                let (most, times) = likely.entry(run).or_insert((0, 0));
                *most = common.max(*most);
                *times += 1;
            }
        }
        let mut likely: Vec<_> = likely.into_iter().map(|(run, rank)| (rank, run.clone())).collect();
        likely.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.filter.cmp(&b.1.filter)));
        likely.into_iter().map(|(_, run)| run).collect()
    }

    /// Writes page and list with the current results.
    pub(super) fn write(&self, all: usize) -> Result<(), String> {
        let write = |path, text| fs::write(path, text).map_err(|e| format!("{path}: {e}"));
        write(PAGE, self.render(all))?;
        write(LIST, self.list())
    }

    /// Returns the number of mutations with a proof that no process can notice them.
    pub(super) fn harmless(&self) -> usize {
        self.survivors.values().filter(|why| !why.starts_with(HARD_TO_FIND)).count()
    }

    fn figure(&self, all: usize) -> String {
        let (found, survivors) = (self.found.len(), self.survivors.len());
        let left = all.saturating_sub(found + survivors);
        format!(
            "{FIGURE}{all}; {found} are found, {survivors} have a reason below, {left} were not tried yet.\n"
        )
    }

    fn render(&self, all: usize) -> String {
        let line = |line: &str| {
            if line.starts_with(FIGURE) { self.figure(all) } else { format!("{line}\n") }
        };
        self.text.lines().map(line).collect()
    }

    fn list(&self) -> String {
        let line = |(name, run): (&String, &Run)| format!("{name}\t{}\t{}\n", run.suite, run.filter);
        format!("{FOUND}\n{}", self.found.iter().map(line).collect::<String>())
    }
}

/// Returns the rows of the table with this heading.
fn rows(text: &str, heading: &str) -> Result<Vec<Vec<String>>, String> {
    let mut lines = text.lines().skip_while(|line| *line != heading).peekable();
    if lines.peek().is_none() {
        return Err(format!("{PAGE} has no table `{heading}`"));
    }
    let rows = lines.skip(2).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    Ok(rows.map(cells).collect())
}

fn bare(cell: &str) -> String {
    cell.trim_matches('`').to_owned()
}

/// Returns differences between the page, the table of mutations, and the sources.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let found = |line, message: String| Finding::new(PAGE, line, message);
    let read = Table::load(tree).and_then(|table| Ok((table, Page::load(tree)?)));
    let (table, page) = match read {
        Ok(both) => both,
        Err(message) => return vec![found(1, message)],
    };
    let switches = match table.switches() {
        Ok(switches) => switches,
        Err(message) => return vec![found(1, message)],
    };
    let (mut findings, mut untried) = (table.check(tree), Vec::new());
    for name in switches.keys().copied() {
        let (is_found, survives) = (page.found.contains_key(name), page.survivors.contains_key(name));
        if !is_found && !survives {
            untried.push(name);
        } else if is_found && survives {
            findings.push(found(1, format!("{name} is found, and has a reason why it is not")));
        }
    }
    if let [first, ..] = untried.as_slice() {
        let message =
            format!("{} mutations were not tried yet, {first} is one: `cargo xtask mutate`", untried.len());
        findings.push(Finding { warning: true, ..Finding::new(PAGE, 1, message) });
    }
    for name in page.found.keys().chain(page.survivors.keys()) {
        if !switches.contains_key(name.as_str()) {
            findings.push(found(1, format!("there is no mutation {name}: take it off")));
        }
    }
    for (name, run) in page.found.iter().filter(|(_, run)| !run.is_program()) {
        // A macro may generate several tests from one function, in a module of its name.
        if !run.filter.rsplit("::").take(2).any(|name| tree.has_function(name)) {
            findings.push(Finding::new(LIST, 1, format!("{name}: there is no test {}", run.filter)));
        }
    }
    findings.extend(gone(tree, page.found.values().filter(|run| !run.is_program())));
    if !page.text.contains(&page.figure(switches.len())) {
        findings.push(found(1, "its figures are old: `cargo xtask mutate --only none --write`".to_owned()));
    }
    findings
}

/// Returns findings for runs whose modules don't exist.
pub(super) fn gone<'r>(tree: &Tree, runs: impl Iterator<Item = &'r Run>) -> Vec<Finding> {
    let modules = tree.modules();
    let is_gone = |name: &&str| !modules.contains(name) && !tree.has_function(name);
    let complain = |run: &Run| {
        let name = run.filter.rsplit("::").skip(1).find(is_gone)?;
        Some(Finding::new(LIST, 1, format!("{run}: there is no module {name}")))
    };
    runs.filter_map(complain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Page\n\nMutations: 0; none.\n\nText.\n\n\
                        | mutation | why no test finds it |\n|---|---|\n| `a.c` | no need |\n";
    const FOUND_ONE: &str = "mutation\tfound by\ttest\na.old\tmp-x/t\tit_holds\n";

    #[test]
    fn found_mutations_are_updated_and_others_kept() {
        let mut page = Page::read(TEXT, FOUND_ONE).unwrap();
        assert_eq!(page.survivors["a.c"], "no need");
        assert_eq!(page.list(), FOUND_ONE);
        page.found.clear();
        page.found.insert("a.b".to_owned(), Run::new("mp-x/lib", "").of("m::it".to_owned()));
        let (text, list) = (page.render(3), page.list());
        assert!(list.ends_with("test\na.b\tmp-x/lib\tm::it\n"), "{list}");
        let figure = "Mutations: 3; 1 are found, 1 have a reason below, 1 were not tried yet.\n";
        assert_eq!(text, TEXT.replace("Mutations: 0; none.\n", figure));
        assert_eq!(Page::read(&text, &list).unwrap().found, page.found);
        assert!(Page::read(TEXT, "head\na.b mp-x/lib\n").is_err());
    }

    #[test]
    fn tests_that_found_similar_mutations_run_first() {
        let mut page = Page::read(TEXT, FOUND_ONE).unwrap();
        page.found.clear();
        for (name, test) in
            [("a.b.c", "near"), ("a.c", "often"), ("a.d", "often"), ("a.e", "once"), ("x.y", "far")]
        {
            page.found.insert(name.to_owned(), Run::new("mp-x/lib", "").of(test.to_owned()));
        }
        let order: Vec<_> = page.found_others_like("a.b.d").into_iter().map(|run| run.filter).collect();
        assert_eq!(order, ["near", "often", "once"]);
    }

    #[test]
    fn mutation_runs_of_missing_modules_are_reported() {
        let tree = Tree::of(&[("mp-x/tests/a/b.rs", "mod inner {\n    fn f() {}\n}\n")]);
        let found = |filter: &str| gone(&tree, [Run::new("mp-x/a", filter)].iter()).len();
        assert_eq!(["", "f", "b::", "b::inner::f", "a::"].map(found), [0; 5]);
        assert_eq!(["kept::", "kept::f", "b::kept::f"].map(found), [1; 3]);
    }

    #[test]
    fn mutation_page_is_compared_with_the_sources() {
        let rows = "--- mp-x/src/lib.rs\n@@ a.b a.c\n-fn it_holds() {}\n\
                    +fn it_holds() { mutant!(\"a.b\"); mutant!(\"a.c\"); }\n";
        let files = [(PAGE, TEXT), (LIST, FOUND_ONE), ("xtask/mutations/mp-x.diff", rows)];
        let findings = check(&Tree::of(&[&files[..], &[("mp-x/src/lib.rs", "fn it_holds() {}\n")]].concat()));
        let all = format!("{findings:?}");
        for said in ["1 mutations were not tried yet, a.b is one", "no mutation a.old", "figures are old"] {
            assert!(all.contains(said), "{said}: {all}");
        }
        assert_eq!(findings.len(), 3, "{all}");
    }
}
