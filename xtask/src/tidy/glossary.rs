//! Words that the glossary has better ones for (docs/glossary.md): comments, texts and pages name the process, thread, owner,
//! waiter, peer or caller that acts. Names in code are not looked at.

use super::mask::{Line, is_word};
use super::{File, Finding, Tree};

/// In two parts where one would be found here.
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
    findings
}

/// Comments and literals of each line; blanks stand for code.
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
    use std::sync::OnceLock;

    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        let file = File { path: path.to_owned(), text: text.to_owned(), lines: OnceLock::new() };
        check_file(&file).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn prose_is_read_and_names_are_not() {
        let [none, ever] = [REFUSED[0], REFUSED[4]];
        let text = format!(
            "fn {none}_waits() {{ Holder::{none} }}\n// {ever} waits\nlet text = \"{none} waits\";\n"
        );
        assert_eq!(found("a.rs", &text), [2, 3]);
        assert_eq!(found("a.md", &format!("fine\nThere is {none}.\n`{none}_waits`\n")), [2]);
        assert_eq!(found("a.txt", none), [0; 0]);
    }
}
