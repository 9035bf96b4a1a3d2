//! The table of mutations, `xtask/mutations/*.diff`: replacements in a copy of the sources.
//!
//! ```text
//! --- mp-queue/src/ring/put.rs
//! @@ ring.put.intent-skipped
//!  line of context
//! -line as it is in the sources
//! +line with `mutant!("ring.put.intent-skipped")` in it
//! ```
//!
//! A row applies where its context lines and removed lines occur in the file. They must occur exactly once.
//! So rows need no line numbers, and a change of these lines fails `tidy` until the row is adapted. Several
//! rows may belong to one mutation. A row without a name belongs to all mutations.

use std::collections::BTreeMap;

use crate::tidy::{Finding, Tree};

const FOLDER: &str = "xtask/mutations/";
/// Folder of the files that the copy has in addition to the files of the sources.
pub(super) const EXTRA: &str = "xtask/mutations/tree/";

/// Replacement of some lines of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Row {
    /// Names of the mutations that need this replacement. Empty if all do.
    names: Vec<String>,
    /// Lines that identify the place: context and removed lines.
    old: Vec<String>,
    /// The lines that replace `old`.
    new: Vec<String>,
    /// Number of lines of context at the beginning, and at the end.
    context: (usize, usize),
    /// Location of the row in the files of the table, for messages.
    table: String,
    line: usize,
}

impl Row {
    fn finding(&self, what: &str) -> Finding {
        Finding::new(&self.table, self.line, format!("{}: {what}", self.names.join(" ")))
    }
}

/// All mutations.
#[derive(Debug, Default)]
pub(super) struct Table {
    files: BTreeMap<String, Vec<Row>>,
    /// Switches in files that exist only in the copy of the tree, with their locations.
    extra: Vec<(String, String)>,
}

impl Table {
    /// Reads all tables.
    pub(super) fn load(tree: &Tree) -> Result<Self, String> {
        let mut table = Self::default();
        for path in tree.paths().filter(|path| path.starts_with(FOLDER) && path.ends_with(".diff")) {
            table.read(path, tree.text(path).unwrap_or_default())?;
        }
        for path in tree.paths().filter(|path| path.starts_with(EXTRA)) {
            let names = switches_in(tree.text(path).unwrap_or_default());
            table.extra.extend(names.map(|name| (name.to_owned(), path.to_owned())));
        }
        Ok(table)
    }

    fn read(&mut self, table: &str, text: &str) -> Result<(), String> {
        let mut path = None;
        for (line, text) in (1..).zip(text.lines()) {
            let error = |what: &str| format!("{table}:{line}: {what}");
            if let Some(file) = text.strip_prefix("--- ") {
                path = Some(file.to_owned());
                continue;
            }
            let path = path.as_ref().ok_or_else(|| error("a row before the first `--- path`"))?;
            let rows = self.files.entry(path.clone()).or_default();
            if let Some(names) = text.strip_prefix("@@") {
                let names: Vec<_> = names.split_whitespace().map(str::to_owned).collect();
                if let Some(bad) = names.iter().find(|name| !is_name(name)) {
                    return Err(error(&format!(
                        "{bad} is no name: words in lower case, with dots and dashes"
                    )));
                }
                rows.push(Row { names, table: table.to_owned(), line, ..Row::default() });
                continue;
            }
            let row = rows.last_mut().ok_or_else(|| error("a line before the first `@@ names`"))?;
            let (sign, text) = text.split_at_checked(1).unwrap_or((" ", ""));
            if sign == " " || sign == "-" {
                row.old.push(text.to_owned());
            }
            if sign == " " || sign == "+" {
                row.new.push(text.to_owned());
            }
            match sign {
                " " if row.old.len() == row.new.len() && row.old.len() == row.context.0 + 1 => {
                    row.context.0 += 1
                }
                " " => row.context.1 += 1,
                "-" | "+" => row.context.1 = 0,
                _ => return Err(error("a line that begins with none of ` `, `-` and `+`")),
            }
        }
        Ok(())
    }

    /// Returns the place of each switch in the table, by name.
    pub(super) fn switches(&self) -> Result<BTreeMap<&str, String>, String> {
        let mut all = BTreeMap::new();
        let mut add = |name, place: String| match all.insert(name, place.clone()) {
            Some(other) => Err(format!("{place}: {name} is a switch at {other} as well")),
            None => Ok(()),
        };
        self.extra.iter().try_for_each(|(name, place)| add(name.as_str(), place.clone()))?;
        for row in self.files.values().flatten() {
            let (place, text) = (format!("{}:{}", row.table, row.line), row.new.join("\n"));
            for name in switches_in(&text) {
                let Some(name) = row.names.iter().find(|own| *own == name) else {
                    return Err(format!("{place}: the row does not name {name}"));
                };
                add(name, place.clone())?;
            }
        }
        let rows = self.files.values().flatten();
        for (row, name) in rows.flat_map(|row| row.names.iter().map(move |name| (row, name))) {
            if !all.contains_key(name.as_str()) {
                return Err(format!("{}:{}: no row has the switch {name}", row.table, row.line));
            }
        }
        Ok(all)
    }

    /// Returns findings for rows that don't fit the sources.
    pub(super) fn check(&self, tree: &Tree) -> Vec<Finding> {
        let check = |(path, rows): (&String, &Vec<Row>)| match tree.text(path) {
            Some(text) => self.apply(path, text).err(),
            None => rows.first().map(|row| row.finding(&format!("there is no {path}"))),
        };
        self.files.iter().filter_map(check).collect()
    }

    /// Returns the text of a file with its mutations, or `None` if the table has no mutations of the file.
    pub(super) fn apply(&self, path: &str, text: &str) -> Result<Option<String>, Finding> {
        let Some(rows) = self.files.get(path) else { return Ok(None) };
        let lines: Vec<&str> = text.lines().collect();
        let mut places = Vec::new();
        for row in rows {
            let wrong = |what| Err(row.finding(&format!("{path} {what}")));
            let at = match occurrences(&lines, &row.old).as_slice() {
                [at] => *at,
                [] => return wrong("has no such lines: adapt the row, or remove it"),
                _ => return wrong("has these lines more than once: add lines of context"),
            };
            places.push((at + row.context.0, at + row.old.len() - row.context.1, row));
        }
        places.sort_by_key(|(from, to, _)| (*from, *to));
        let mut result = String::new();
        let mut push = |line: &str| {
            result.push_str(line);
            result.push('\n');
        };
        let mut done = 0;
        for (from, to, row) in places {
            if from < done {
                return Err(row.finding(&format!("overlaps another row of {path}: join them")));
            }
            lines[done..from].iter().for_each(|line| push(line));
            row.new[row.context.0..row.new.len() - row.context.1].iter().for_each(|line| push(line));
            done = to;
        }
        lines[done..].iter().for_each(|line| push(line));
        Ok(Some(result))
    }
}

/// Returns the names of the switches in a text.
fn switches_in(text: &str) -> impl Iterator<Item = &str> {
    text.split("mutant!(").skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
}

/// Returns the positions at which a sequence of lines occurs.
fn occurrences(lines: &[&str], block: &[String]) -> Vec<usize> {
    if block.is_empty() {
        return Vec::new();
    }
    (0..(lines.len() + 1).saturating_sub(block.len()))
        .filter(|at| lines[*at..].iter().zip(block).all(|(line, wanted)| line == wanted))
        .collect()
}

/// Returns `true` for words in lower case, with dots and dashes between them.
fn is_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    name.contains('.') && name.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "fn f() {\n    a();\n    b();\n    b();\n}\n";

    fn table(text: &str) -> Result<Table, String> {
        Table::load(&Tree::of(&[("xtask/mutations/mp-x.diff", text)]))
    }

    fn applied(text: &str) -> Result<String, String> {
        let applied =
            table(text)?.apply("mp-x/src/a.rs", SOURCE).map_err(|finding| format!("{finding:?}"))?;
        applied.ok_or_else(|| "no row".to_owned())
    }

    #[test]
    fn mutation_rows_replace_and_insert_lines() {
        let text = "--- mp-x/src/a.rs\n@@ x.one\n-    a();\n\
                    +    if !mutant!(\"x.one\") {\n+        a();\n+    }\n\
                    @@ x.two\n     b();\n+    if mutant!(\"x.two\") { c(); }\n }\n";
        let replaced = "    if !mutant!(\"x.one\") {\n        a();\n    }\n";
        let inserted = "    if mutant!(\"x.two\") { c(); }\n";
        let wanted = format!("fn f() {{\n{replaced}    b();\n    b();\n{inserted}}}\n");
        assert_eq!(applied(text), Ok(wanted));
        let table = table(text).unwrap();
        assert_eq!(table.switches().unwrap().into_keys().collect::<Vec<_>>(), ["x.one", "x.two"]);
    }

    #[test]
    fn mutation_row_without_unique_place_is_refused() {
        let row = |old: &str| format!("--- mp-x/src/a.rs\n@@ x.one\n{old}+    mutant!(\"x.one\");\n");
        assert!(applied(&row("-    c();\n")).unwrap_err().contains("no such lines"));
        assert!(applied(&row("-    b();\n")).unwrap_err().contains("more than once"));
        assert!(applied(&row("")).unwrap_err().contains("no such lines"));
        let twice = row("-    a();\n") + "@@ x.two\n-    a();\n+    mutant!(\"x.two\");\n";
        assert!(applied(&twice).unwrap_err().contains("overlaps"));
    }

    #[test]
    fn mutation_switches_are_unique_and_match_their_rows() {
        let wrong = |rows: &str| {
            table(&format!("--- mp-x/src/a.rs\n{rows}")).and_then(|t| t.switches().map(drop)).unwrap_err()
        };
        assert!(wrong("@@ x.one\n-    a();\n+    mutant!(\"x.two\");\n").contains("does not name x.two"));
        assert!(wrong("@@ x.one\n-    a();\n").contains("no row has the switch x.one"));
        assert!(wrong("@@ X.one\n").contains("X.one is no name"));
        let one = "@@ x.one\n-    a();\n+    mutant!(\"x.one\");\n";
        assert!(wrong(&one.repeat(2)).contains("as well"));
        assert!(table("@@ x.one\n").unwrap_err().contains("before the first"));
    }
}
