//! Finds the mutations in the sources.

use crate::tidy::Tree;

/// The macro's own file, which names some as examples.
const MACRO: &str = "mp-core/src/mutant.rs";

/// One mutation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Point {
    pub(super) name: String,
    pub(super) path: String,
    /// From 1.
    pub(super) line: usize,
}

/// All mutations, by name; an error if a name is there twice, or is no name.
pub(super) fn all(tree: &Tree) -> Result<Vec<Point>, String> {
    let mut points = Vec::new();
    let sources = tree
        .rust()
        .filter(|file| file.path.starts_with("mp-") && file.path.contains("/src/") && file.path != MACRO);
    for file in sources {
        for (number, (line, text)) in file.lines().iter().zip(file.text.lines()).enumerate() {
            // The code has blanks for what is in literals and comments, column for column.
            let columns: Vec<char> = text.chars().collect();
            for (at, word) in line.code.match_indices("mutant!(") {
                let from = line.code[..at + word.len()].chars().count();
                let name = literal(&columns[from.min(columns.len())..]);
                let place = format!("{}:{}", file.path, number + 1);
                let name = name.ok_or_else(|| format!("{place}: a mutation without a name on this line"))?;
                points.push(Point { name, path: file.path.clone(), line: number + 1 });
            }
        }
    }
    points.sort();
    for pair in points.windows(2) {
        let [a, b] = pair else { continue };
        if a.name == b.name {
            return Err(format!(
                "{} is there twice: {}:{} and {}:{}",
                a.name, a.path, a.line, b.path, b.line
            ));
        }
    }
    Ok(points)
}

/// The string that begins here, if it is a name: words in lower case, with dots and dashes between them.
fn literal(columns: &[char]) -> Option<String> {
    let [quote, rest @ ..] = columns else { return None };
    let end = rest.iter().position(|c| *c == '"')?;
    let name: String = rest[..end].iter().collect();
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    (*quote == '"' && name.contains('.') && name.chars().all(is_part)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_found_in_code_alone_and_once() {
        let code = "fn f() {\n    // mutant!(\"a.comment\")\n    let é = \"mutant!(x)\"; g(mutant!(\"b.two\"), mp_core::mutant!(\"a.one\"));\n}\n";
        let tree = Tree::of(&[("mp-x/src/lib.rs", code), ("tests/src/lib.rs", "mutant!(\"c.three\")\n")]);
        let names: Vec<_> = all(&tree).unwrap().into_iter().map(|p| (p.name, p.line)).collect();
        assert_eq!(names, [("a.one".to_owned(), 3), ("b.two".to_owned(), 3)]);
        let twice =
            Tree::of(&[("mp-x/src/a.rs", "mutant!(\"a.b\")\n"), ("mp-y/src/b.rs", "mutant!(\"a.b\")\n")]);
        assert!(all(&twice).unwrap_err().contains("twice"));
        for bad in ["mutant!(NAME)\n", "mutant!(\"A.b\")\n", "mutant!(\"ab\")\n", "mutant!(\n"] {
            assert!(all(&Tree::of(&[("mp-x/src/a.rs", bad)])).is_err(), "{bad}");
        }
    }
}
