//! Rule: texts avoid words for which the glossary (docs/reference/glossary.md) has better ones. Comments,
//! texts, pages, and names of tests and other items state the subject of an action: a process, thread, owner,
//! waiter, peer or caller. Names of fields and variables are not checked.

use super::mask::{Line, is_word};
use super::{File, Finding, Tree};

/// Words that texts don't contain. Each word is split, so that the check doesn't find it in this file.
const REFUSED: &[&str] = &[
    concat!("no", "body"),
    concat!("some", "body"),
    concat!("any", "body"),
    concat!("every", "body"),
    concat!("who", "ever"),
    concat!("whom", "ever"),
    concat!("one ", "who"),
    concat!("those ", "who"),
    concat!("who ", "waits"),
    concat!("the dead ", "one"),
    concat!("sees ", "to"),
    concat!("see ", "to it"),
    concat!("so ", "many"),
];

/// Words that names of items don't contain. Several words are joined by `_`.
const REFUSED_IN_NAMES: &[&str] = &[
    concat!("no", "body"),
    concat!("no", "bodys"),
    concat!("some", "body"),
    concat!("some", "bodys"),
    concat!("any", "body"),
    concat!("every", "body"),
    concat!("every", "bodys"),
    concat!("who", "ever"),
    concat!("whom", "ever"),
    concat!("who", "m"),
    concat!("one_", "who"),
    concat!("those_", "who"),
    concat!("who_", "waits"),
    concat!("the_", "dead"),
    concat!("dead_", "one"),
    concat!("dead_", "ones"),
    concat!("killed_", "one"),
    concat!("stopped_", "one"),
    concat!("living_", "one"),
    concat!("see_", "to"),
    concat!("sees_", "to"),
    concat!("seen_", "to"),
    concat!("me", "nd"),
    concat!("me", "nds"),
    concat!("me", "nded"),
    concat!("me", "nding"),
    concat!("pati", "ence"),
    concat!("pict", "ure"),
    concat!("va", "in"),
];

/// Prefix of test and function names without a subject.
const NO_SUBJECT: &str = concat!("who", "_");

/// Keywords with which items begin.
const ITEMS: &[&str] =
    &["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod", "macro_rules!"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Finding> {
    let lines: Vec<String> = if file.path.ends_with(".rs") {
        prose(&file.text, file.lines())
    } else if file.path.ends_with(".md") {
        file.text.lines().map(str::to_owned).collect()
    } else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let line = line.to_lowercase();
        for word in REFUSED.iter().filter(|word| has(&line, word)) {
            let message = format!("`{word}`: name the process, thread, owner, waiter, peer or caller");
            findings.push(Finding::new(&file.path, number + 1, message));
        }
    }
    if file.path.ends_with(".rs") {
        findings.extend(check_names(file));
    }
    findings
}

fn check_names(file: &File) -> impl Iterator<Item = Finding> + '_ {
    file.lines().iter().enumerate().flat_map(move |(number, line)| {
        let refused = items(&line.code).filter_map(|name| Some((name, refused_in(name)?)));
        refused.map(move |(name, word)| {
            let page = "docs/reference/glossary.md";
            let message = format!("`{word}` in `{name}`: name what acts, in the words of {page}");
            Finding::new(&file.path, number + 1, message)
        })
    })
}

/// Returns the names of the items that a line defines. A word that begins an indented line with a capital
/// letter counts as the name of an enum's variant.
fn items(code: &str) -> impl Iterator<Item = &str> {
    let words = || code.split(|c: char| !is_word(c) && c != '!').filter(|word| !word.is_empty());
    let pairs = words().zip(words().skip(1)).filter(|(kind, _)| ITEMS.contains(kind)).map(|(_, name)| name);
    let first = words().next().filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase()));
    pairs.chain(first.filter(|_| code.starts_with("    ") && !code.starts_with("     ")))
}

/// Returns the refused word of a name.
fn refused_in(name: &str) -> Option<&'static str> {
    let mut snake = String::new();
    for (i, c) in name.char_indices() {
        // `TheDead` and `THE_DEAD` both become `the_dead`.
        if c.is_ascii_uppercase() && name[..i].ends_with(|before: char| before.is_ascii_lowercase()) {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    if snake.starts_with(NO_SUBJECT) {
        return Some(NO_SUBJECT);
    }
    let padded = format!("_{snake}_");
    REFUSED_IN_NAMES.iter().copied().find(|word| padded.contains(&format!("_{word}_")))
}

/// Returns comments and literals of each line. Code is replaced by blanks.
fn prose(text: &str, lines: &[Line]) -> Vec<String> {
    let keep = |(raw, line): (&str, &Line)| {
        raw.chars().zip(line.code.chars()).map(|(c, code)| if code == ' ' { c } else { ' ' }).collect()
    };
    text.lines().zip(lines).map(keep).collect()
}

fn has(line: &str, word: &str) -> bool {
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        let file = File::new(path.to_owned(), text.to_owned());
        check_file(&file).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn glossary_checks_prose_without_variable_names() {
        let [none, ever] = [REFUSED[0], REFUSED[4]];
        let text =
            format!("let {none} = {{ Holder::{none} }};\n// {ever} waits\nlet text = \"{none} waits\";\n");
        assert_eq!(found("a.rs", &text), [2, 3]);
        assert_eq!(found("a.md", &format!("fine\nThere is {none}.\n`{none}_waits`\n")), [2]);
        assert_eq!(found("a.txt", none), [0; 0]);
    }

    #[test]
    fn glossary_checks_names_of_items() {
        let line = |text: &str| found("a/tests/b.rs", text);
        let refused = [
            "fn no^body_waits() {}",
            "async fn a_waiter_that_no^body_wakes_waits() {}",
            "fn wh^o_waits_is_woken() {}",
            "pub(crate) struct Some^body;",
            "const PATI^ENCE: u32 = 1;",
            "    fn sees_^to(&self) {}",
            "mod pict^ure;",
            "    Every^body,",
            "    Men^ding(u32),",
            "fn the_task_of_the_^dead_is_done() {}",
        ];
        for text in refused {
            assert_eq!(line(&text.replace('^', "")), [1], "{text}");
        }
        for text in [
            "fn a_waiter_is_woken() {}",
            "fn depend() {}",
            "struct Who;",
            "fn ones() {}",
            "    Holder::new(),",
        ] {
            assert_eq!(line(text), [0; 0], "{text}");
        }
    }
}
