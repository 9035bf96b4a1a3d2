//! Rules about Rust code: unsafe code, atomics, system calls, the wall clock, and leftovers of debugging.

use super::mask::{has_word, is_word};
use super::{File, Finding, Tree, uses};

/// List of the files that may contain unsafe code.
const LIST: &str = "xtask/unsafe-files.txt";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = unsafety(tree);
    for file in tree.rust() {
        atomics(file, &mut findings);
        system_calls(file, &mut findings);
        leftovers(file, &mut findings);
        sleeps(file, &mut findings);
        ignored(file, &mut findings);
        wall_clocks(file, &mut findings);
    }
    findings
}

fn unsafety(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut listed = Vec::new();
    let list = tree.get(LIST).map_or("", |file| file.text.as_str());
    for (number, line) in list.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let (path, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if path.starts_with('#') {
            continue;
        }
        let mut found = |message: &str| findings.push(Finding::new(LIST, number + 1, message));
        if reason.trim().is_empty() {
            found("say after the path why the file needs unsafe code");
        }
        match tree.get(path) {
            None => found(&format!("{path} is not there: take the line out")),
            Some(file) if !file.lines().iter().any(|line| has_word(&line.code, "unsafe")) => {
                found(&format!("{path} has no unsafe code any more: take the line out"));
            }
            Some(_) => {}
        }
        listed.push(path);
    }
    // Tests provoke crashes, each with its own `SAFETY` comment. No crate depends on them.
    for file in tree.rust().filter(|file| !file.under("tests")) {
        let Some(first) = file.lines().iter().position(|line| has_word(&line.code, "unsafe")) else {
            continue;
        };
        let mut found = |line, message: String| findings.push(Finding::new(&file.path, line, message));
        if !listed.contains(&file.path.as_str()) {
            found(first + 1, format!("unsafe code outside the files in {LIST}: move it to one of them"));
        }
        let header =
            |comment: &str| comment.trim().strip_prefix("//!").is_some_and(|doc| doc.contains("Safety"));
        if !file.lines().iter().any(|line| header(&line.comment)) {
            found(
                1,
                "a file with unsafe code argues it in its header: add a section `//! # Safety`".to_owned(),
            );
        }
    }
    findings
}

fn atomics(file: &File, findings: &mut Vec<Finding>) {
    let free = ["tests", "benches", "fuzz", "xtask"].iter().any(|folder| file.under(folder));
    if free || file.path.ends_with("/src/sync.rs") {
        return;
    }
    let mut found = |line, what: &str| {
        let mend = "take it from the crate's src/sync.rs, so that loom sees it";
        findings.push(Finding::new(&file.path, line, format!("{what} outside the facade: {mend}")));
    };
    for (number, line) in file.lines().iter().enumerate() {
        if has_path(&line.code, "std::sync::atomic") || has_path(&line.code, "core::sync::atomic") {
            found(number + 1, "a raw atomic");
        }
        if has_path(&line.code, "loom::") {
            found(number + 1, "loom");
        }
    }
    for (line, path) in uses::paths(file.lines()) {
        let (path, alias) = path.split_once(" as ").map_or((path.as_str(), false), |(path, _)| (path, true));
        let parts: Vec<&str> =
            path.trim_start_matches("::").split("::").filter(|part| *part != "self").collect();
        match parts.as_slice() {
            ["std" | "core", "sync", "atomic", ..] => found(line, "a raw atomic"),
            ["loom", ..] => found(line, "loom"),
            // A glob import could import raw atomics.
            ["std" | "core", "sync", "*"] | ["std" | "core", "*"] => {
                found(line, "a glob that holds raw atomics")
            }
            ["std" | "core"] | ["std" | "core", "sync"] if alias || parts.len() == 2 => {
                found(line, "a short name for raw atomics");
            }
            _ => {}
        }
    }
}

fn system_calls(file: &File, findings: &mut Vec<Finding>) {
    if !file.path.starts_with("mp-core/src/") || file.path.starts_with("mp-core/src/sys/") {
        return;
    }
    let mut found = |line, name: &str| {
        let mend = "wrap the call in mp-core/src/sys/ and call that";
        findings.push(Finding::new(&file.path, line, format!("`{name}` outside sys: {mend}")));
    };
    for name in ["libc", "rustix", "memfd"] {
        for (number, line) in file.lines().iter().enumerate() {
            if has_path(&line.code, &format!("{name}::")) {
                found(number + 1, name);
            }
        }
        for (line, path) in uses::paths(file.lines()) {
            let path = path.trim_start_matches("::");
            if path.split([':', ' ']).next() == Some(name) {
                found(line, name);
            }
        }
    }
}

fn leftovers(file: &File, findings: &mut Vec<Finding>) {
    let macros = ["todo", "unimplemented", "dbg"];
    for (number, line) in file.lines().iter().enumerate() {
        for name in macros.iter().filter(|name| has_word(&line.code, &format!("{name}!"))) {
            findings.push(Finding::new(&file.path, number + 1, format!("`{name}!` is left over: finish it")));
        }
    }
}

fn sleeps(file: &File, findings: &mut Vec<Finding>) {
    if !file.under("tests") {
        return;
    }
    let reason =
        |comment: &str| comment.split_once("// sleep:").is_some_and(|(_, why)| !why.trim().is_empty());
    let lines = file.lines();
    let imports = uses::paths(lines).into_iter().filter(|(_, path)| path.starts_with("std::thread::sleep"));
    let mut at: Vec<usize> = imports.map(|(line, _)| line).collect();
    let calls = |code: &str| has_word(code, "thread::sleep") || has_word(code, "thread::sleep_ms");
    at.extend((1..=lines.len()).filter(|number| calls(&lines[number - 1].code)));
    for number in at {
        let above =
            number >= 2 && lines[number - 2].code.trim().is_empty() && reason(&lines[number - 2].comment);
        if !above && !reason(&lines[number - 1].comment) {
            let message = "a sleep in a test: wait for the event itself, or say why not in `// sleep: …`";
            findings.push(Finding::new(&file.path, number, message));
        }
    }
}

fn ignored(file: &File, findings: &mut Vec<Finding>) {
    for (number, (line, raw)) in file.lines().iter().zip(file.text.lines()).enumerate() {
        let code: String = line.code.split_whitespace().collect();
        let empty = code.contains("#[ignore=]") && raw.contains("\"\"");
        if code.contains("#[ignore]") || empty {
            let message = "an ignored test: give the reason, `#[ignore = \"…\"]`";
            findings.push(Finding::new(&file.path, number + 1, message));
        }
    }
}

/// Finds uses of the wall clock: setting the clock must not lose members or end waits.
fn wall_clocks(file: &File, findings: &mut Vec<Finding>) {
    if !file.path.starts_with("mp-net/src/") {
        return;
    }
    for (number, line) in file.lines().iter().enumerate() {
        if ["SystemTime", "UNIX_EPOCH"].iter().any(|name| has_word(&line.code, name)) {
            let message = "a clock that can be set, in the network layer: use `Instant`";
            findings.push(Finding::new(&file.path, number + 1, message));
        }
    }
}

/// Returns `true` if `path` occurs in `code` as the start of a path: `loom::` doesn't in `crate::loom::`.
fn has_path(code: &str, path: &str) -> bool {
    code.match_indices(path).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + path.len()..]);
        let inner = before.strip_suffix("::").is_some_and(|b| b.ends_with(|c| is_word(c) || c == '>'));
        let ends = path.ends_with(':') || !after.starts_with(is_word);
        !before.ends_with(is_word) && !inner && ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats findings as `line: message`, with the message cut at its colon.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let mut findings = check(&Tree::of(files));
        findings.sort();
        findings.dedup();
        let short = |f: &Finding| format!("{} {}", f.line, f.message.split(':').next().unwrap_or_default());
        findings.iter().map(short).collect()
    }

    #[test]
    fn unsafe_code_requires_a_listed_file_and_a_proof() {
        let listed = (LIST, "# why\na.rs maps memory\n");
        let good = "//! Maps.\n//!\n//! # Safety\n\nunsafe fn f() {}\n";
        assert!(found(&[listed, ("a.rs", good)]).is_empty());
        assert_eq!(found(&[listed, ("a.rs", good), ("b.rs", good)]).len(), 1);
        assert_eq!(found(&[listed, ("a.rs", "unsafe fn f() {}\n")]).len(), 1);
        assert_eq!(found(&[listed, ("a.rs", "// unsafe\n")]), ["2 a.rs has no unsafe code any more"]);
        assert_eq!(found(&[listed]), ["2 a.rs is not there"]);
        assert_eq!(
            found(&[(LIST, "a.rs\n"), ("a.rs", good)]),
            ["1 say after the path why the file needs unsafe code"]
        );
        assert!(
            found(&[("c.rs", "#![deny(unsafe_code)]\nconst A: &str = \"unsafe\"; // unsafe\n")]).is_empty()
        );
    }

    #[test]
    fn atomics_outside_of_the_facade_are_reported() {
        let raw = "use std::sync::atomic::AtomicBool;\n";
        assert_eq!(found(&[("mp-core/src/a.rs", raw)]).len(), 1);
        for free in ["mp-core/src/sync.rs", "mp-core/tests/a.rs", "tests/tests/a.rs", "benches/src/main.rs"] {
            assert!(found(&[(free, raw)]).is_empty(), "{free}");
        }
        let bad = [
            "use std::sync::{Arc, atomic::AtomicBool};\n",
            "use core::{\n    sync::atomic as a,\n};\n",
            "use std::sync as s;\n",
            "use std::sync::*;\n",
            "use loom::thread;\n",
            "fn f(x: &::core::sync::atomic::AtomicU8) {}\n",
            "fn f() { loom::model(|| ()) }\n",
        ];
        bad.iter().for_each(|text| assert_eq!(found(&[("mp-core/src/a.rs", text)]).len(), 1, "{text}"));
        let good = "use crate::sync::atomic::AtomicU8;\nuse std::sync::{self, Arc};\n\
                    fn f() { crate::loom::model() }\n";
        assert_eq!(
            found(&[("mp-core/src/a.rs", good)]),
            ["2 a short name for raw atomics outside the facade"]
        );
        assert!(found(&[("mp-core/src/a.rs", "use std::sync::Arc;\nuse std::{io, thread};\n")]).is_empty());
    }

    #[test]
    fn system_calls_outside_of_sys_are_reported() {
        let raw = "use rustix::mm;\nfn f() { libc::getpid(); }\nuse {memfd as m};\n";
        assert_eq!(found(&[("mp-core/src/a.rs", raw)]).len(), 3);
        assert!(found(&[("mp-core/src/sys/a.rs", raw), ("mp-spawn/src/a.rs", raw)]).is_empty());
        assert!(
            found(&[("mp-core/src/a.rs", "use crate::sys::memfd;\nfn f() { sys::memfd::create() }\n")])
                .is_empty()
        );
    }

    #[test]
    fn unfinished_macros_are_reported() {
        let text = "fn f() { todo!() }\nfn g() { dbg!(1); unimplemented!(); } // todo!\n";
        assert_eq!(found(&[("a.rs", text)]).len(), 3);
    }

    #[test]
    fn sleeps_without_a_reason_are_reported() {
        let plain = "fn f() { std::thread::sleep(D); }\n";
        assert_eq!(found(&[("tests/tests/a.rs", plain)]).len(), 1);
        assert!(found(&[("mp-core/src/a.rs", plain)]).is_empty());
        assert!(
            found(&[("tests/a.rs", "    thread::sleep(D); // sleep: the kernel gives no event\n")])
                .is_empty()
        );
        assert!(
            found(&[("tests/a.rs", "    // sleep: the kernel gives no event\n    thread::sleep(D);\n")])
                .is_empty()
        );
        assert_eq!(found(&[("tests/a.rs", "thread::sleep(D); // sleep:\n")]).len(), 1);
        assert_eq!(found(&[("tests/a.rs", "use std::thread::{self, sleep};\n")]).len(), 1);
    }

    #[test]
    fn wall_clocks_of_the_network_are_reported() {
        let text = "fn f() { std::time::SystemTime::now(); }\n";
        assert_eq!(found(&[("mp-net/src/a.rs", text)]).len(), 1);
        assert!(found(&[("mp-core/src/a.rs", text), ("mp-net/tests/a.rs", text)]).is_empty());
    }

    #[test]
    fn ignored_test_without_a_reason_is_reported() {
        assert_eq!(found(&[("a.rs", "#[ignore]\n#[ignore = \"\"]\n#[ignore = \"slow\"]\n")]).len(), 2);
    }
}
