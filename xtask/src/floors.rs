//! Part of step `layers`: inside a crate, imports between its folders (and the files in `src`) make no cycle.
//!
//! A module's floor is the first part of its path: `mp-spawn/src/parent/start.rs` is on the floor `parent`.
//! The root, `lib.rs`, has no floor: it exports items of all floors. Unit tests may import anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::tidy::{mask, uses};

/// Imports between floors, with one example of each: file, line, path.
type Imports = BTreeMap<(String, String), (String, usize, String)>;

/// Returns the problems of the crate in `folder`.
pub(crate) fn check(name: &str, folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    collect(&folder.join("src"), &mut files);
    let sources: Vec<(String, String)> = files
        .into_iter()
        .filter_map(|path| {
            Some((path.strip_prefix(folder).ok()?.to_str()?.to_owned(), fs::read_to_string(&path).ok()?))
        })
        .collect();
    circles(&imports(&sources)).into_iter().map(|circle| format!("{name}: {circle}")).collect()
}

fn collect(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
}

/// Returns the path of a module of `src` without the crate: `src/a/mod.rs` is `["a"]`.
fn module(file: &str) -> Vec<String> {
    let inner = file.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
    inner.split('/').filter(|part| !matches!(*part, "lib" | "main")).map(str::to_owned).collect()
}

/// Returns all imports between floors in these files, given by path and text.
fn imports(sources: &[(String, String)]) -> Imports {
    let floors: BTreeSet<String> =
        sources.iter().filter_map(|(file, _)| module(file).first().cloned()).collect();
    let mut found = Imports::new();
    for (file, text) in sources {
        let here = module(file);
        let Some(floor) = here.first() else { continue };
        if here.iter().any(|part| part == "tests" || part.ends_with("_tests")) {
            continue;
        }
        let mut lines = mask::lines(text);
        if let Some(tests) = tests_at(&lines) {
            lines.truncate(tests);
        }
        let used = uses::paths(&lines);
        let named = lines
            .iter()
            .enumerate()
            .flat_map(|(i, line)| paths_in(&line.code).into_iter().map(move |p| (i + 1, p)));
        for (line, path) in used.into_iter().chain(named) {
            let Some(to) = target(&here, &path).filter(|to| to != floor && floors.contains(to)) else {
                continue;
            };
            found.entry((floor.clone(), to)).or_insert_with(|| (file.clone(), line, path));
        }
    }
    found
}

/// Returns the line at which the unit tests of a file begin.
fn tests_at(lines: &[mask::Line]) -> Option<usize> {
    let attribute = |line: &mask::Line| {
        let code = line.code.trim();
        code.starts_with("#[cfg(") && mask::has_word(code, "test") && !mask::has_word(code, "not")
    };
    (1..lines.len()).find(|&i| attribute(&lines[i - 1]) && mask::has_word(&lines[i].code, "mod"))
}

/// Returns the paths in a line that begin with `crate::` or `super::`.
fn paths_in(code: &str) -> Vec<String> {
    let begins = |at: usize| !code[..at].ends_with(|c| mask::is_word(c) || c == ':' || c == '$');
    let starts = ["crate::", "super::"].iter().flat_map(|start| code.match_indices(start).map(|(at, _)| at));
    let whole = |at: usize| {
        let rest = &code[at..];
        let end = rest.find(|c| !mask::is_word(c) && c != ':').unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    starts.filter(|&at| begins(at)).map(whole).collect()
}

/// Returns the floor of a path used in a module.
fn target(here: &[String], path: &str) -> Option<String> {
    let mut parts = path.split("::").map(|part| part.split_whitespace().next().unwrap_or(""));
    let mut above = here.to_vec();
    loop {
        match parts.next()? {
            "crate" => above.clear(),
            "super" => _ = above.pop(),
            "self" => {}
            part if path.starts_with("crate::")
                || path.starts_with("super::")
                || path.starts_with("self::") =>
            {
                above.push(part.to_owned());
                return above.into_iter().next();
            }
            _ => return None,
        }
    }
}

/// Returns each cycle once, with an import for each of its edges.
fn circles(imports: &Imports) -> Vec<String> {
    let next = |from: &str| {
        imports.keys().filter(move |(a, _)| a == from).map(|(_, b)| b.clone()).collect::<Vec<_>>()
    };
    let floors: BTreeSet<&String> = imports.keys().map(|(from, _)| from).collect();
    let mut told: BTreeSet<String> = BTreeSet::new();
    let mut problems = Vec::new();
    for start in floors {
        // Finds the shortest way back by a breadth-first search.
        let mut ways: Vec<Vec<String>> = vec![vec![start.clone()]];
        let mut seen = BTreeSet::new();
        let mut circle = None;
        while circle.is_none() && !ways.is_empty() {
            let mut longer = Vec::new();
            for way in &ways {
                for to in way.last().map(|last| next(last)).unwrap_or_default() {
                    if to == *start {
                        circle.get_or_insert_with(|| way.clone());
                    } else if seen.insert(to.clone()) {
                        longer.push([way.as_slice(), &[to]].concat());
                    }
                }
            }
            ways = longer;
        }
        let Some(circle) = circle.filter(|circle| !circle.iter().any(|floor| told.contains(floor))) else {
            continue;
        };
        told.extend(circle.iter().cloned());
        let arrows = (0..circle.len()).map(|i| {
            let (from, to) = (&circle[i], &circle[(i + 1) % circle.len()]);
            let (file, line, path) = &imports[&(from.clone(), to.clone())];
            format!("{from} imports {to} ({file}:{line}: {path})")
        });
        let arrows: Vec<_> = arrows.collect();
        problems.push(format!(
            "imports in a circle: {}; move what both need to a lower floor",
            arrows.join(", ")
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(file, text)| (file.to_string(), text.to_string())).collect();
        circles(&imports(&files))
    }

    #[test]
    fn a_circle_is_told_with_its_imports() {
        let told = found(&[
            ("src/lib.rs", "mod a; mod b; mod c;\npub use a::A;"),
            ("src/a/mod.rs", "use crate::b::{self, B};"),
            ("src/b/x.rs", "fn f() { super::super::c::g() }"),
            ("src/c.rs", "use crate::a::A;"),
        ]);
        assert_eq!(
            told,
            [
                "imports in a circle: a imports b (src/a/mod.rs:1: crate::b::self), b imports c (src/b/x.rs:1: super::super::c::g), \
              c imports a (src/c.rs:1: crate::a::A); move what both need to a lower floor"
            ]
        );
    }

    #[test]
    fn imports_of_one_floor_of_the_root_and_of_tests_are_none() {
        let fine = [
            ("src/lib.rs", "mod a; mod b;"),
            ("src/a/x.rs", "use super::y::Y; use crate::Z; use std::b::C;"),
            ("src/a/y.rs", "use crate::a::x; use crate::b::B; // crate::c"),
            ("src/b.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::x;\n}"),
            ("src/b/tests.rs", "use crate::a::x;"),
        ];
        assert_eq!(found(&fine), [""; 0]);
    }
}
