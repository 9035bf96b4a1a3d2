//! Part of step `layers`: inside each folder of a crate, imports between its files and subfolders have no
//! cycle.
//!
//! A module's floor in a folder is the part of its path after the folder: in `mp-spawn/src`, the file
//! `parent/start/rank.rs` is on the floor `parent`, and in `mp-spawn/src/parent` on the floor `start`. An
//! import connects two floors of one folder: the last common folder of the importer's and the definition's
//! paths. The file of the folder itself, `lib.rs` or `mod.rs`, has no floor, and an item that it re-exports
//! is on the floor of its definition. Unit tests may import anything.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::{File, Finding, Line, mask, uses};

/// Path of a module without the crate: `src/a/mod.rs` is `["a"]`.
type Path = Vec<String>;
/// Imports between the floors of a folder. The value for a pair of floors is the first import that was found.
type Imports = BTreeMap<(String, String), Import>;

/// Maximum number of re-exports that are followed from an import to a definition.
const HOPS: usize = 16;

struct Import {
    file: String,
    line: usize,
    path: String,
}

struct Module {
    file: String,
    lines: Vec<Line>,
    /// Path of the module that each line belongs to. In an inline module, the path is longer than the file's.
    modules: Vec<Path>,
    /// Paths that `use` items name, with their lines.
    uses: Vec<(usize, String)>,
    /// Names of the items that the file defines.
    items: BTreeSet<String>,
}

/// Returns each file and subfolder that is part of a cycle in its folder, for the files of a crate.
pub(crate) fn cycles(files: &[&File]) -> Vec<Finding> {
    let modules: BTreeMap<Path, Module> = files.iter().filter_map(|file| read(file)).collect();
    let paths: BTreeSet<Path> =
        modules.keys().flat_map(|path| (0..=path.len()).map(|end| path[..end].to_vec())).collect();
    let mut found: Vec<Finding> = imports(&modules, &paths)
        .into_iter()
        .flat_map(|(folder, imports)| in_cycles(&folder, &imports))
        .collect();
    found.sort();
    found
}

/// Returns the path and the contents of a module, except for test code.
fn read(file: &File) -> Option<(Path, Module)> {
    let inner = file.path.strip_prefix("src/").or_else(|| Some(file.path.split_once("/src/")?.1))?;
    let inner = inner.trim_end_matches(".rs").trim_end_matches("/mod");
    let path: Path =
        inner.split('/').filter(|part| !matches!(*part, "lib" | "main" | "mod")).map(str::to_owned).collect();
    let lines = mask::without_tests(&file.path, file.lines());
    let modules = inline_modules(&path, &lines);
    let items = lines.iter().filter_map(|line| item(&line.code)).collect();
    let uses = uses::paths(&lines);
    Some((path, Module { file: file.path.clone(), lines, modules, uses, items }))
}

/// Returns the module of each line of a file.
fn inline_modules(file: &[String], lines: &[Line]) -> Vec<Path> {
    let (mut depth, mut open): (usize, Vec<usize>) = (0, Vec::new());
    let mut here = file.to_vec();
    let mut modules = Vec::new();
    for line in lines {
        let code = line.code.trim_end();
        if let (Some((before, name)), true) = (code.split_once("mod "), code.ends_with('{'))
            && (before.trim().is_empty() || before.trim_start().starts_with("pub"))
        {
            open.push(depth);
            here.push(name.trim_end_matches('{').trim().to_owned());
        }
        modules.push(here.clone());
        for c in code.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        if code.contains('}') && open.last().is_some_and(|opened| depth <= *opened) {
            open.pop();
            here.pop();
        }
    }
    modules
}

/// Returns the name of the item whose definition begins on this line. Items with indentation don't count.
fn item(code: &str) -> Option<String> {
    const WORDS: [&str; 9] =
        ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules!"];
    if code.starts_with(char::is_whitespace) {
        return None;
    }
    let mut words =
        code.split(|c: char| c.is_whitespace() || "(<:;={".contains(c)).skip_while(|w| !WORDS.contains(w));
    let mut name = words.next().and_then(|_| words.next())?;
    while WORDS.contains(&name) || name == "unsafe" || name == "mut" {
        name = words.next()?;
    }
    Some(name.to_owned())
}

/// Returns all imports between floors, by folder.
fn imports(modules: &BTreeMap<Path, Module>, paths: &BTreeSet<Path>) -> BTreeMap<String, Imports> {
    let mut all: BTreeMap<String, Imports> = BTreeMap::new();
    for (floor, module) in modules {
        let named = module.lines.iter().enumerate();
        let named =
            named.flat_map(|(i, line)| paths_in(&line.code).into_iter().map(move |path| (i + 1, path)));
        for (line, path) in module.uses.iter().cloned().chain(named) {
            let here = &module.modules[line - 1];
            let Some(to) = absolute(here, &path, paths).map(|to| definition(to, modules, paths, HOPS)) else {
                continue;
            };
            let common = floor.iter().zip(&to).take_while(|(a, b)| a == b).count();
            // The file of a folder has no floor in it.
            let (Some(from), Some(to)) = (floor.get(common), to.get(common)) else { continue };
            let (root, _) = module.file.split_once("src/").unwrap_or_default();
            let folder = [&[format!("{root}src")], &floor[..common]].concat().join("/");
            let import = Import { file: module.file.clone(), line, path };
            all.entry(folder).or_default().entry((from.clone(), to.clone())).or_insert(import);
        }
    }
    all
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

/// Returns the absolute path of a path used in a module, if the path belongs to this crate.
fn absolute(here: &[String], path: &str, paths: &BTreeSet<Path>) -> Option<Path> {
    let path = path.split_whitespace().next()?.trim_end_matches("::");
    let mut above = here.to_vec();
    let mut parts = path.split("::").peekable();
    match *parts.peek()? {
        "crate" => above.clear(),
        "super" | "self" => {}
        first if paths.contains(&[here, &[first.to_owned()]].concat()) => {}
        _ => return None,
    }
    for part in parts {
        match part {
            "super" => _ = above.pop(),
            "crate" | "self" => {}
            part => above.push(part.to_owned()),
        }
    }
    Some(above)
}

/// Returns the module that defines an item, or the module that a path names. Follows re-exports.
fn definition(item: Path, modules: &BTreeMap<Path, Module>, paths: &BTreeSet<Path>, hops: usize) -> Path {
    let inside = (0..=item.len()).rev().find(|end| paths.contains(&item[..*end])).unwrap_or(0);
    let (module, rest) = item.split_at(inside);
    let (Some(name), Some(file), true) = (rest.first(), modules.get(module), hops > 0) else {
        return module.to_vec();
    };
    if file.items.contains(name) {
        return module.to_vec();
    }
    let follow = |to: Path| definition([&to[..], &rest[1..]].concat(), modules, paths, hops - 1);
    for (line, path) in &file.uses {
        let at = path.split(" as ").next().unwrap_or_default();
        let known = path.rsplit_once(" as ").map_or_else(
            || at.trim_end_matches("::self").rsplit("::").next().unwrap_or_default(),
            |(_, alias)| alias,
        );
        // A `use` of an inline module doesn't name anything in the file's module.
        if file.modules[line - 1] != module {
            continue;
        }
        if known == name && at != name {
            return absolute(module, at, paths).map_or_else(|| module.to_vec(), follow);
        }
        if let (Some(folder), "*") = (at.strip_suffix("::*"), known)
            && let Some(folder) = absolute(module, folder, paths)
            && folder.len() > module.len()
        {
            let to = definition([&folder[..], &rest[..1]].concat(), modules, paths, hops - 1);
            if modules.get(&to).is_some_and(|file| file.items.contains(name)) {
                return follow([&to[..], &rest[..1]].concat());
            }
        }
    }
    module.to_vec()
}

/// Returns the floors of a folder that import each other in a cycle, each with an import of its shortest
/// cycle.
fn in_cycles(folder: &str, imports: &Imports) -> Vec<Finding> {
    let mut next: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
    imports.keys().for_each(|(from, to)| next.entry(from).or_default().push(to));
    let mut found = Vec::new();
    for &start in next.keys() {
        let mut ways = vec![vec![start]];
        let (mut reached, mut cycle) = (BTreeSet::new(), None);
        while cycle.is_none() && !ways.is_empty() {
            let mut longer = Vec::new();
            for way in &ways {
                for &to in next.get(way[way.len() - 1]).into_iter().flatten() {
                    if to == start {
                        cycle.get_or_insert_with(|| way.clone());
                    } else if reached.insert(to) {
                        longer.push([way.as_slice(), &[to]].concat());
                    }
                }
            }
            ways = longer;
        }
        let Some(cycle) = cycle else { continue };
        let Import { file, line, path } =
            &imports[&(start.clone(), cycle.get(1).unwrap_or(&start).to_string())];
        let names: Vec<&str> = cycle.iter().chain([&start]).map(|floor| floor.as_str()).collect();
        found.push(Finding::new(
            file,
            *line,
            format!(
                "`{path}` closes a cycle of imports in {folder}: {}; move what both need to a lower floor",
                names.join(" > ")
            ),
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let what = |place: Finding| {
            format!("{}:{} {}", place.path, place.line, place.message.split(';').next().unwrap_or_default())
        };
        let files: Vec<File> =
            files.iter().map(|(path, text)| File::new((*path).to_owned(), (*text).to_owned())).collect();
        cycles(&files.iter().collect::<Vec<_>>()).into_iter().map(what).collect()
    }

    #[test]
    fn import_cycles_are_reported_with_their_imports() {
        let files = [
            ("m/src/lib.rs", "mod a; mod b; mod c;\npub use a::A;"),
            ("m/src/a/mod.rs", "use crate::b::{self, B};"),
            ("m/src/b/x.rs", "fn f() { super::super::c::g() }"),
            ("m/src/c.rs", "use crate::a::A;"),
        ];
        assert_eq!(
            found(&files),
            [
                "m/src/a/mod.rs:1 `crate::b::self` closes a cycle of imports in m/src: a > b > c > a",
                "m/src/b/x.rs:1 `super::super::c::g` closes a cycle of imports in m/src: b > c > a > b",
                "m/src/c.rs:1 `crate::a::A` closes a cycle of imports in m/src: c > a > b > c",
            ]
        );
    }

    #[test]
    fn import_cycles_within_folders_are_reported() {
        let files = [
            ("m/src/a/mod.rs", "mod x; mod y;"),
            ("m/src/a/x/one.rs", "use super::super::y;"),
            ("m/src/a/x/two.rs", "use super::one::One;"),
            ("m/src/a/y.rs", "fn f() { crate::a::x::one::g() }"),
        ];
        assert_eq!(
            found(&files),
            [
                "m/src/a/x/one.rs:1 `super::super::y` closes a cycle of imports in m/src/a: x > y > x",
                "m/src/a/y.rs:1 `crate::a::x::one::g` closes a cycle of imports in m/src/a: y > x > y",
            ]
        );
    }

    #[test]
    fn re_exports_are_followed_to_the_definition() {
        let by_name = [
            ("m/src/lib.rs", "pub use a::Name as Other;"),
            ("m/src/a/mod.rs", "mod x; mod y;\npub(crate) use x::Name;"),
            ("m/src/a/x.rs", "use super::y::Y;\npub struct Name;"),
            ("m/src/a/y.rs", "use crate::Other;"),
        ];
        assert_eq!(found(&by_name).len(), 2);
        let by_glob = [
            ("m/src/a/mod.rs", "pub use x::*;\npub use y::*;"),
            ("m/src/a/x.rs", "use super::Y;\npub(crate) fn f() {}"),
            ("m/src/a/y.rs", "use super::{self, f};\npub struct Y;"),
        ];
        assert_eq!(found(&by_glob).len(), 2);
    }

    #[test]
    fn inline_modules_have_the_layer_floor_of_their_file() {
        let files = [
            ("m/src/a/mod.rs", "mod x; mod y;"),
            ("m/src/a/x.rs", "mod inner {\n    use super::y::Y;\n}\nuse inner::y;"),
            ("m/src/a/y.rs", "use super::x::X;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn imports_within_a_floor_and_in_tests_are_no_cycle() {
        let files = [
            ("m/src/lib.rs", "mod a; mod b;"),
            ("m/src/a/x.rs", "use super::y::Y; use crate::Z; use std::b::C;"),
            ("m/src/a/y.rs", "use crate::b::B; // crate::c"),
            ("m/src/b.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::x;\n}"),
            ("m/src/b/tests.rs", "use crate::a::x;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }
}
