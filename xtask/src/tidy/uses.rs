//! Paths that `use` items name, with groups expanded.

use super::mask::{Line, is_word};

/// Returns each path that a `use` item names, with its line from 1. `use a::{b, c as d};` gives `a::b` and
/// `a::c as d`.
pub(crate) fn paths(lines: &[Line]) -> Vec<(usize, String)> {
    let mut text = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        text.extend(line.code.chars().chain(['\n']).map(|c| (number + 1, c)));
    }
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let before = if at == 0 { ' ' } else { text[at - 1].1 };
        let is_use = text[at..].iter().map(|(_, c)| *c).take(3).eq("use".chars());
        if is_use
            && !is_word(before)
            && before != '#'
            && text.get(at + 3).is_some_and(|(_, c)| c.is_whitespace())
        {
            at += 4;
            expand(&text, &mut at, "", &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one group, or one whole item, up to its end.
fn expand(text: &[(usize, char)], at: &mut usize, prefix: &str, found: &mut Vec<(usize, String)>) {
    let (mut path, mut line, mut done) = (prefix.to_owned(), 0, false);
    while let Some(&(number, c)) = text.get(*at) {
        *at += 1;
        match c {
            '{' => {
                expand(text, at, &path, found);
                done = true;
            }
            ',' | '}' | ';' => {
                if !done && path != prefix {
                    found.push((line, path.trim_end().to_owned()));
                }
                (path, done) = (prefix.to_owned(), false);
                if c != ',' {
                    return;
                }
            }
            c if c.is_whitespace() => {
                if path != prefix && !path.ends_with([' ', ':']) {
                    path.push(' ');
                }
            }
            c => (path, line) = (path + c.encode_utf8(&mut [0; 4]), number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mask;
    use super::*;

    fn of(text: &str) -> Vec<String> {
        paths(&mask::lines(text)).into_iter().map(|(line, path)| format!("{line} {path}")).collect()
    }

    #[test]
    fn grouped_imports_are_expanded() {
        assert_eq!(of("use a::b;\npub(crate) use c as d;"), ["1 a::b", "2 c as d"]);
        assert_eq!(
            of("use std::{\n    io, sync::{Arc, atomic::{self, AtomicU8 as A}},\n};\nfn f() {}"),
            [
                "2 std::io",
                "2 std::sync::Arc",
                "2 std::sync::atomic::self",
                "2 std::sync::atomic::AtomicU8 as A"
            ]
        );
    }

    #[test]
    fn other_uses_of_the_word_use_are_ignored() {
        assert_eq!(of("fn f<'a>() -> impl Sized + use<'a> {} let reuse = r#use ;"), [""; 0]);
    }
}
