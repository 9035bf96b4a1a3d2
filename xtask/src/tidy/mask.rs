//! Separates the code of a Rust file from its comments and literals, without a parser.

/// Line of a file with its columns preserved. Removed parts are blank.
#[derive(Clone, Default, Debug)]
pub(crate) struct Line {
    /// Code without comments and without the contents of strings and characters.
    pub(crate) code: String,
    /// Comments only, with their slashes.
    pub(crate) comment: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Returns the lines of a file.
pub(crate) fn lines(text: &str) -> Vec<Line> {
    let chars: Vec<char> = text.chars().collect();
    let mut lines = vec![Line::default()];
    let mut at = 0;
    while at < chars.len() {
        let in_word = at > 0 && is_word(chars[at - 1]);
        let (kind, length) = token(&chars[at..], in_word);
        for &c in &chars[at..at + length] {
            if c == '\n' {
                lines.push(Line::default());
                continue;
            }
            let line = lines.last_mut().expect("there is always a line");
            line.code.push(if kind == Kind::Code { c } else { ' ' });
            line.comment.push(if kind == Kind::Comment { c } else { ' ' });
        }
        at += length;
    }
    if text.ends_with('\n') {
        lines.pop();
    }
    lines
}

/// Returns the lines of a file in which test code is blank: items under `#[cfg(test)]`, or all lines of a
/// test file.
pub(crate) fn without_tests(path: &str, lines: &[Line]) -> Vec<Line> {
    let mut lines = lines.to_vec();
    let is_tests = |part: &str| part == "tests" || part.ends_with("_tests");
    if path.trim_end_matches(".rs").split('/').any(is_tests) {
        lines.fill(Line::default());
    }
    let mut at = 0;
    while at < lines.len() {
        if is_test_only(&lines[at].code) {
            let end = item_end(&lines, at);
            lines[at..end].fill(Line::default());
            at = end;
        } else {
            at += 1;
        }
    }
    lines
}

/// Returns `true` for an attribute whose item is compiled for tests only.
fn is_test_only(code: &str) -> bool {
    let code = code.trim();
    code.starts_with("#[cfg(")
        && has_word(code, "test")
        && !code.contains("not(test")
        && !code.contains("any(")
}

/// Returns the paths of the modules of tests that a file declares, without their endings.
pub(crate) fn modules_of_tests(path: &str, lines: &[Line]) -> Vec<String> {
    let folder = path.trim_end_matches(".rs").trim_end_matches("/mod").trim_end_matches("/lib");
    let declared = (1..lines.len()).filter(|at| is_test_only(&lines[at - 1].code));
    let names = declared.filter_map(|at| {
        let (before, name) = lines[at].code.trim().strip_suffix(';')?.split_once("mod ")?;
        (before.is_empty() || before.starts_with("pub")).then(|| format!("{folder}/{name}"))
    });
    names.collect()
}

/// Returns the line after an item that begins with attributes.
fn item_end(lines: &[Line], start: usize) -> usize {
    let mut depth = 0;
    for (at, line) in lines.iter().enumerate().skip(start) {
        let code = line.code.trim();
        for c in code.chars() {
            match c {
                '{' | '(' | '[' => depth += 1,
                '}' | ')' | ']' => depth -= 1,
                _ => {}
            }
        }
        if depth <= 0 && code.ends_with([';', '}', ',']) {
            return at + 1;
        }
    }
    lines.len()
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns `true` if `word` occurs in `text` as a whole word.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_word) && !text[at + word.len()..].starts_with(is_word))
}

/// Returns the kind of the first token and its length, which is at least 1.
fn token(rest: &[char], in_word: bool) -> (Kind, usize) {
    let second = rest.get(1).copied();
    match rest[0] {
        '/' if second == Some('/') => {
            (Kind::Comment, rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()))
        }
        '/' if second == Some('*') => (Kind::Comment, block_comment(rest)),
        '"' => (Kind::Literal, 1 + string(&rest[1..])),
        '\'' => character(rest),
        'r' | 'b' | 'c' if !in_word => prefixed(rest),
        _ => (Kind::Code, 1),
    }
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match (rest[at], rest.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(rest.len())
}

/// Returns the length of a string from the opening quote to the end of the closing quote.
fn string(rest: &[char]) -> usize {
    let mut at = 0;
    while at < rest.len() {
        match rest[at] {
            '"' => return at + 1,
            '\\' => at += 2,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Reads a character literal, or the quote of a lifetime or label.
fn character(rest: &[char]) -> (Kind, usize) {
    if rest.get(1) == Some(&'\\') {
        let end = rest.iter().skip(3).position(|c| *c == '\'').map_or(rest.len(), |at| at + 4);
        (Kind::Literal, end)
    } else if rest.get(2) == Some(&'\'') {
        (Kind::Literal, 3)
    } else {
        (Kind::Code, 1)
    }
}

/// Reads `b"…"`, `c"…"`, `r"…"`, `br#"…"#` and the like, or a letter of code.
fn prefixed(rest: &[char]) -> (Kind, usize) {
    let letters = rest.iter().take(2).take_while(|c| matches!(c, 'r' | 'b' | 'c')).count();
    let hashes = rest[letters..].iter().take_while(|c| **c == '#').count();
    let open = letters + hashes;
    if rest.get(open) != Some(&'"') {
        return (Kind::Code, 1);
    }
    if !rest[..letters].contains(&'r') {
        return if hashes == 0 {
            (Kind::Literal, open + 1 + string(&rest[open + 1..]))
        } else {
            (Kind::Code, 1)
        };
    }
    let mut close = vec!['"'];
    close.resize(1 + hashes, '#');
    let end = rest[open + 1..].windows(close.len()).position(|window| window == close);
    (Kind::Literal, end.map_or(rest.len(), |at| open + 1 + at + close.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let lines: Vec<String> = lines(text).iter().map(|line| line.code.trim_end().to_owned()).collect();
        lines.join("\n").split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn mask_blanks_comments_of_source_text() {
        assert_eq!(code("a // b\nc /* d /* e */ f */ g"), "a\nc g");
        let lines = lines("a // b\n/* c\nd */ e");
        let comments: Vec<&str> = lines.iter().map(|line| line.comment.trim()).collect();
        assert_eq!(comments, ["// b", "/* c", "d */"]);
    }

    #[test]
    fn mask_blanks_literals_of_source_text() {
        assert_eq!(code(r#"a "b // \" c" d"#), "a d");
        assert_eq!(code(r###"a r#"b " c"# d br"\" e"###), "a d e");
        assert_eq!(code(r"a 'b' '\'' '\u{1F600}' c"), "a c");
        assert_eq!(code("f('\"') g"), "f( ) g");
        assert_eq!(code("a \"b\nc\" d"), "a\n d");
    }

    #[test]
    fn mask_keeps_lifetimes_and_raw_identifiers() {
        assert_eq!(code("fn f<'a>(x: &'a str) r#type bar b c"), "fn f<'a>(x: &'a str) r#type bar b c");
    }

    #[test]
    fn mask_blanks_test_code() {
        let code = |path: &str, text: &str| {
            let lines = without_tests(path, &lines(text));
            lines.iter().map(|line| line.code.trim().to_owned()).collect::<Vec<_>>().join("|")
        };
        let text = "a\n#[cfg(test)]\nmod tests;\n#[cfg(all(test, unix))]\n#[b]\nmod x {\n    fn f() {}\n}\n\
                    c\n#[cfg(not(test))]\nd";
        assert_eq!(code("src/a.rs", text), "a||||||||c|#[cfg(not(test))]|d");
        assert_eq!(code("src/a_tests.rs", "a"), code("tests/b/a.rs", "a"));
        assert_eq!(code("src/tests.rs", "a"), "");
        assert_eq!(modules_of_tests("src/b/mod.rs", &lines(text)), ["src/b/tests"]);
        let text = "#[cfg(any(test, x))]
mod a;
#[cfg(all(test, not(x)))]
pub mod b;";
        assert_eq!(modules_of_tests("src/lib.rs", &lines(text)), ["src/b"]);
    }

    #[test]
    fn unterminated_literal_ends_with_its_source_file() {
        for text in ["\"a", "/* a", "r#\"a", "'\\", "b'", "\"\\", "'", "r"] {
            assert_eq!(lines(text).len(), 1);
        }
    }

    #[test]
    fn masked_words_match_at_boundaries_only() {
        assert!(has_word("unsafe{", "unsafe"));
        assert!(!has_word("unsafe_code, not_unsafe", "unsafe"));
    }
}
