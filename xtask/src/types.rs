//! Part of step `layers`: names of types, and the size of `Arena`.
//!
//! A type's name is a noun, and only one library crate defines it. Test code, and code that a macro writes,
//! is exempt. `Arena` is a handle: most operations are methods of other types.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::{File, Finding, Line, mask};

/// Names that several crates may define: each crate's error and result, the documentation of its README, and
/// the program counters of its state machines.
const COMMON: [&str; 4] = ["Error", "Result", "Readme", "Pc"];

/// Participles, pronouns, adverbs and prepositions, which are not names of things. The list lacks the
/// adjectives with which Rust names types: `Borrowed`, `Owned`, `Pinned`, `Sealed`, `Shared` and the like.
const WORDS: &str = "
    About After Again All Alone Apart Around As At Back Before Behind Beside Besides Between Beyond Both By
    Each Either Else Ever For From Here His How If In Inside Into It Its Itself Later Like Many Mine More
    Most Much My Myself Never Nothing Now Of Off Often On Onward Other Others Out Over Own Same Since So
    Some Such Than That The Their Then There These They This Those Through Thus Till To Too Under Until Up
    Upon We What When Where Whether Which While Who Whose Why With Within Without Yet You
    Able Acted Acting Arrived Arriving Asked Awaited Begun Bound Broken Brought Called Chosen Counted Cut
    Deserted Doing Done Ended Ending Failed Finished Found Given Giving Gone Got Getting Has Have Heard Held
    Hidden Joined Kept Known Lacking Leaving Left Lent Looked Looking Lost Made Making Meant Meets Met
    Missed Moved Named Needed Noted Notified Opened Paid Ran Reached Received Refused Returned Said Seen
    Sent Settled Shown Skipped Stays Submitted Taken Taking Thought Told Took Tried Uses Unmet Unsent Untold
    Used Visited Visiting Waited Wanted Wanting Woken Written";

/// Maximum number of files with methods of `Arena`.
const ARENA_FILES: usize = 2;
/// Maximum number of methods of `Arena`.
const ARENA_METHODS: usize = 30;

/// Returns the types that a file defines, without test code: line numbers from 1, and names.
fn defined(file: &File) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    // Depth of brackets, and the depth at which a macro that writes code began.
    let (mut depth, mut template): (usize, Option<usize>) = (0, None);
    for (number, line) in (1..).zip(mask::without_tests(&file.path, file.lines())) {
        let code = line.code.as_str();
        let writes = ["macro_rules!", "quote!", "quote_spanned!", "parse_quote!"];
        if template.is_none() && writes.iter().any(|name| code.contains(name)) {
            template = Some(depth);
        }
        if template.is_none() {
            found.extend(name(code).map(|name| (number, name)));
        }
        depth = (depth + opening(code)).saturating_sub(closing(code));
        if template.is_some_and(|began| depth <= began) && opening(code) + closing(code) > 0 {
            template = None;
        }
    }
    found
}

fn opening(code: &str) -> usize {
    code.matches(['{', '(', '[']).count()
}

fn closing(code: &str) -> usize {
    code.matches(['}', ')', ']']).count()
}

/// Returns the name of the type that a line defines. An alias with indentation belongs to a trait.
fn name(code: &str) -> Option<String> {
    let (before, word, after) = ["struct", "enum", "union", "trait", "type"].iter().find_map(|word| {
        let at = code.find(&format!("{word} "))?;
        Some((&code[..at], *word, &code[at + word.len()..]))
    })?;
    let visibility = before.trim().trim_end_matches("unsafe").trim_end();
    let is_item =
        matches!(visibility, "" | "pub") || (visibility.starts_with("pub(") && visibility.ends_with(')'));
    let is_inner = word == "type" && code.starts_with(char::is_whitespace);
    let name: String = after.trim_start().chars().take_while(|c| mask::is_word(*c)).collect();
    (is_item && !is_inner && name.starts_with(char::is_uppercase)).then_some(name)
}

/// Returns a finding for each type name that several of these crates define, at its first definition in each
/// crate.
pub(crate) fn shared(crates: &[(&str, Vec<&File>)]) -> Vec<Finding> {
    let mut all: BTreeMap<String, BTreeMap<&str, Finding>> = BTreeMap::new();
    for (krate, files) in crates {
        for file in files {
            for (line, name) in defined(file) {
                let place = Finding::new(&file.path, line, "");
                all.entry(name).or_default().entry(krate).or_insert(place);
            }
        }
    }
    let mut found = Vec::new();
    for (name, places) in
        all.into_iter().filter(|(name, places)| places.len() > 1 && !COMMON.contains(&name.as_str()))
    {
        let crates: BTreeSet<&str> = places.keys().copied().collect();
        for (krate, mut place) in places {
            let others: Vec<&str> = crates.iter().filter(|other| **other != krate).copied().collect();
            place.message = format!("`{name}` is also a type of {}: rename one", others.join(", "));
            found.push(place);
        }
    }
    found
}

/// Returns the types of a file whose names are words of [`WORDS`].
pub(crate) fn words(file: &File) -> Vec<Finding> {
    let bad = defined(file).into_iter().filter(|(_, name)| WORDS.split_whitespace().any(|word| word == name));
    bad.map(|(line, name)| Finding::new(&file.path, line, format!("`{name}` names no thing: use a noun")))
        .collect()
}

/// Returns the files with methods of `Arena` after the first [`ARENA_FILES`].
pub(crate) fn arena_files(files: &[&File]) -> Vec<Finding> {
    let found = files.iter().filter_map(|file| {
        let line = arena_blocks(&mask::without_tests(&file.path, file.lines())).first()?.0;
        Some(Finding::new(&file.path, line, "`impl Arena` outside the files of `Arena`"))
    });
    found.skip(ARENA_FILES).collect()
}

/// Returns the methods of `Arena` after the first [`ARENA_METHODS`].
pub(crate) fn arena_methods(files: &[&File]) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in files {
        let lines = mask::without_tests(&file.path, file.lines());
        for (first, end) in arena_blocks(&lines) {
            for (number, line) in (first..end).zip(&lines[first - 1..]) {
                if mask::has_word(&line.code, "fn")
                    && indentation(&line.code) == indentation(&lines[first - 1].code) + 4
                {
                    found.push(Finding::new(
                        &file.path,
                        number,
                        "a method of `Arena`: move it to another type",
                    ));
                }
            }
        }
    }
    found.into_iter().skip(ARENA_METHODS).collect()
}

fn indentation(code: &str) -> usize {
    code.len() - code.trim_start().len()
}

/// Returns the first line of each block `impl Arena`, from 1, and the line after it.
fn arena_blocks(lines: &[Line]) -> Vec<(usize, usize)> {
    let is_block = |code: &str| {
        let Some(of) = code.trim().strip_prefix("impl ") else { return false };
        of.trim_end_matches('{').trim().rsplit("::").next() == Some("Arena") && !of.contains(" for ")
    };
    let end = |first: usize| {
        let depth = indentation(&lines[first].code);
        let closes = |line: &Line| indentation(&line.code) == depth && line.code.trim() == "}";
        (first..lines.len()).find(|at| closes(&lines[*at])).unwrap_or(lines.len()) + 1
    };
    (0..lines.len()).filter(|at| is_block(&lines[*at].code)).map(|at| (at + 1, end(at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File::new(path.to_owned(), text.to_owned())
    }

    fn names(path: &str, text: &str) -> String {
        let names: Vec<String> =
            defined(&file(path, text)).into_iter().map(|(line, name)| format!("{line}{name}")).collect();
        names.join(" ")
    }

    #[test]
    fn types_are_found_outside_of_templates_and_tests() {
        let text = "pub struct A<T>(T);\npub(crate) enum B {}\nunsafe trait C {}\ntype D = u8;\n\
                    pub unsafe trait E {}\ntrait F {\n    type G;\n}\nfn f() {\n    struct H;\n}\n\
                    // struct I;\npub use a::J;\n";
        assert_eq!(names("mp-a/src/a.rs", text), "1A 2B 3C 4D 5E 6F 10H");
        let templates = "macro_rules! a {\n    () => {\n        struct A;\n    };\n}\n\
                         let b = quote! {\n    struct B;\n};\nstruct C;\n";
        assert_eq!(names("mp-a/src/a.rs", templates), "9C");
        assert_eq!(names("mp-a/src/a.rs", "#[cfg(test)]\nmod tests {\n    struct A;\n}\nstruct B;"), "5B");
        assert_eq!(names("mp-a/tests/a.rs", "struct A;"), "");
    }

    #[test]
    fn type_defined_in_two_crates_is_reported() {
        let found = |a: &'static str, b: &'static str| {
            let (a, b) = (file("mp-a/src/x.rs", a), file("mp-b/src/y.rs", b));
            let crates = [("mp-a", vec![&a]), ("mp-b", vec![&b])];
            shared(&crates).into_iter().map(|place| place.message).collect::<Vec<_>>()
        };
        assert_eq!(
            found("struct Twice;\nenum Twice {}", "\ntrait Twice {}"),
            ["`Twice` is also a type of mp-b: rename one", "`Twice` is also a type of mp-a: rename one"]
        );
        assert!(found("struct Twice;", "pub use mp_a::Twice;").is_empty());
        assert!(found("struct Error;\nenum Pc {}", "enum Error {}\nenum Pc {}").is_empty());
        assert!(found("struct Twice;\nstruct Twice;", "struct Other;").is_empty());
    }

    #[test]
    fn type_names_other_than_nouns_are_reported() {
        let found = |text| {
            words(&file("mp-a/src/a.rs", text)).into_iter().map(|place| place.line).collect::<Vec<_>>()
        };
        assert_eq!(
            found("struct Given;\nstruct GivenUp;\nenum Shared {}\ntype How = u8;\ntrait At {}"),
            [1, 4, 5]
        );
    }

    #[test]
    fn arena_methods_and_files_are_limited() {
        let block = "impl Arena {\n    pub fn a(&self) {}\n    fn b() {\n        fn inner() {}\n    }\n}\n\
                     impl Drop for Arena {\n    fn drop(&mut self) {}\n}\n";
        let text = block.repeat(8);
        let (a, b) = (file("a.rs", &text), file("b.rs", &text));
        assert!(arena_files(&[&a, &b]).is_empty());
        assert_eq!(arena_methods(&[&a, &b]).len(), 32 - ARENA_METHODS);
        let others = file(
            "c.rs",
            "impl super::Arena {\n    fn c() {}\n}\nimpl<T> Arena<T> {}\n\
             impl Drop for super::Arena {\n    fn d() {}\n}\n",
        );
        assert_eq!(arena_files(&[&a, &b, &others]).len(), 1);
        assert_eq!(arena_methods(&[&a, &b, &others]).len(), 33 - ARENA_METHODS);
        assert_eq!(arena_files(&[&a, &b, &file("c.rs", "impl Arenas {\n}\n")]).len(), 0);
    }
}
