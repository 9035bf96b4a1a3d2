//! Rule: static variables of the libraries belong to one process.
//!
//! A forked child begins with the values of its parent's variables, and with locks as other threads held
//! them. So a static variable is a `PerProcess` or plain data, or a comment `// fork: …`, on its line or
//! above it, states why a child may share it.

use super::mask::is_word;
use super::{File, Finding, Tree};

/// Words of types whose values never change.
const PLAIN: &[&str] = &[
    "static", "str", "bool", "char", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64",
    "i128", "isize", "f32", "f64", "Option", "fn", "Duration", "Path", "CStr", "OsStr",
];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| is_library(file)) {
        for variable in variables(file) {
            if variable.is_plain() || variable.is_safe_in_copies() || is_argued(file, variable.line) {
                continue;
            }
            let message = format!(
                "the static `{}` would be shared by copies of the process: make it a `PerProcess<…>`, or say \
                 in `// fork: …` why it may be",
                variable.name
            );
            findings.push(Finding::new(&file.path, variable.line, message));
        }
    }
    findings
}

/// Returns `true` for sources of crates that users link.
fn is_library(file: &File) -> bool {
    let mut folders = file.path.split('/');
    match (folders.next(), folders.next()) {
        (Some("src"), Some(_)) => true,
        (Some(krate), Some("src")) => krate.starts_with("mp-"),
        _ => false,
    }
}

struct Variable {
    /// Number of the line with the variable's name, from 1.
    line: usize,
    name: String,
    /// Type, joined into one line.
    ty: String,
    mutable: bool,
}

impl Variable {
    /// Returns `true` for types that are safe in a forked copy: values that each process has separately, and
    /// objects of Python's interpreter, which is copied as well.
    fn is_safe_in_copies(&self) -> bool {
        self.ty.starts_with("PerProcess<") || self.ty.starts_with("PyOnceLock<")
    }

    fn is_plain(&self) -> bool {
        let number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
        let constant =
            |word: &str| word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        let plain = |word: &str| PLAIN.contains(&word) || number(word) || constant(word);
        !self.mutable && self.ty.split(|c| !is_word(c)).filter(|word| !word.is_empty()).all(plain)
    }
}

/// Returns the static variables of a file, except thread-local variables and variables of unit tests.
fn variables(file: &File) -> Vec<Variable> {
    let mut found = Vec::new();
    // Depth of the braces, and the depths at which `thread_local!` and unit tests began.
    let (mut depth, mut skipped, mut skip_next): (usize, Option<usize>, bool) = (0, None, false);
    for (number, line) in file.lines().iter().enumerate() {
        let code = line.code.as_str();
        skip_next |= code.contains("thread_local!") || code.contains("#[cfg(test)]");
        if skipped.is_none() && !skip_next {
            found.extend(variable(file, number));
        }
        for c in code.chars() {
            match c {
                '{' | '(' => {
                    depth += 1;
                    if skip_next && (c == '{' || code.contains("thread_local!(")) {
                        (skipped, skip_next) = (skipped.or(Some(depth)), false);
                    }
                }
                '}' | ')' => {
                    if skipped == Some(depth) {
                        skipped = None;
                    }
                    depth = depth.saturating_sub(1);
                }
                // The item of the attribute ends without braces.
                ';' if skipped.is_none() => skip_next = false,
                _ => {}
            }
        }
    }
    found
}

/// Returns the variable whose definition begins in this line.
fn variable(file: &File, number: usize) -> Option<Variable> {
    let lines = file.lines();
    let code = lines[number].code.as_str();
    let begin = code.match_indices("static").find(|(at, word)| {
        let (before, after) = (&code[..*at], &code[at + word.len()..]);
        // The word is neither a lifetime nor a part of a name.
        after.starts_with(' ') && !before.ends_with(|c: char| is_word(c) || c == '\'')
    });
    let mut rest = code[begin?.0 + "static".len()..].trim_start();
    let mutable = rest.starts_with("mut ");
    rest = rest.strip_prefix("mut ").unwrap_or(rest);
    let (name, ty) = rest.split_once(':')?;
    if !name.trim().chars().all(is_word) {
        return None;
    }
    let mut ty = ty.to_owned();
    for line in &lines[number + 1..] {
        if ends(&ty) {
            break;
        }
        ty.push_str(&line.code);
    }
    let end = end(&ty);
    let ty = ty[..end].split_whitespace().collect::<Vec<_>>().join(" ");
    Some(Variable { line: number + 1, name: name.trim().to_owned(), ty, mutable })
}

/// Returns the end of a variable's type: the start of its value, or the end of its definition. `;` also
/// occurs within arrays.
fn end(ty: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in ty.char_indices() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            '=' | ';' if depth == 0 => return at,
            _ => {}
        }
    }
    ty.len()
}

fn ends(ty: &str) -> bool {
    end(ty) < ty.len()
}

/// Returns `true` if a comment on the line, or above it and its attributes, states why a forked child may
/// share the variable.
fn is_argued(file: &File, line: usize) -> bool {
    let lines = file.lines();
    let argued =
        |comment: &str| comment.split_once("// fork:").is_some_and(|(_, why)| !why.trim().is_empty());
    let above = lines[..line - 1].iter().rev();
    let above = above.take_while(|line| {
        let code = line.code.trim();
        (code.is_empty() && !line.comment.trim().is_empty()) || code.starts_with("#[")
    });
    argued(&lines[line - 1].comment) || above.into_iter().any(|line| argued(&line.comment))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    fn lines(text: &str) -> Vec<usize> {
        found("mp-a/src/a.rs", text)
    }

    #[test]
    fn process_wide_statics_are_reported() {
        assert_eq!(lines("static A: Mutex<u8> = Mutex::new(0);\n"), [1]);
        assert_eq!(lines("fn f() {\n    static A:\n        OnceLock<u8> = OnceLock::new();\n}\n"), [2]);
        assert_eq!(lines("pub(crate) static mut A: u8 = 0;\nstatic B: Pool = Pool::new();\n"), [1, 2]);
        assert_eq!(lines("static A: [AtomicU8; 2] = [AtomicU8::new(0), AtomicU8::new(1)];\n"), [1]);
        let own = "static A: PerProcess<Mutex<u8>> =\n    \
                   PerProcess::new([const { Mutex::new(0) }; GENERATIONS]);\n";
        assert!(lines(own).is_empty());
        assert_eq!(lines("static A: Arc<PerProcess<Mutex<u8>>> = f();\n"), [1]);
    }

    #[test]
    fn statics_of_plain_data_are_accepted() {
        let plain = "static A: &[(&'static str, [u8; 3])] = &[];\nstatic B: [Option<Duration>; MOST] = C;\n";
        assert!(lines(plain).is_empty());
        assert!(lines("fn f(a: &'static str) -> &'static Mutex<u8> { g::<Static>() }\n").is_empty());
        assert!(lines("// static A: Mutex<u8> = 0;\nconst S: &str = \"static A: Mutex<u8>\";\n").is_empty());
    }

    #[test]
    fn static_with_a_reason_at_the_variable_is_accepted() {
        let variable = "static A: Mutex<u8> = Mutex::new(0);";
        assert!(lines(&format!("{variable} // fork: it is only read\n")).is_empty());
        assert!(lines(&format!("// fork: it is only\n// read\n/// A.\n#[used]\n{variable}\n")).is_empty());
        assert_eq!(lines(&format!("{variable} // fork:\n")), [1]);
        assert_eq!(lines(&format!("// fork: another one's\nstatic B: u8 = 1;\n{variable}\n")), [3]);
        assert_eq!(lines(&format!("// fork: too far away\n\n{variable}\n")), [3]);
    }

    #[test]
    fn thread_locals_and_test_statics_are_accepted() {
        let variable = "static A: Mutex<u8> = Mutex::new(0);";
        assert!(lines(&format!("thread_local! {{\n    {variable}\n}}\n")).is_empty());
        assert!(lines(&format!("thread_local!({variable});\n")).is_empty());
        assert_eq!(lines(&format!("thread_local! {{\n    {variable}\n}}\n{variable}\n")), [4]);
        assert!(
            lines(&format!("#[cfg(test)]\nmod tests {{\n    fn f() {{\n        {variable}\n    }}\n}}\n"))
                .is_empty()
        );
        assert_eq!(lines(&format!("#[cfg(test)]\nmod tests;\n{variable}\n")), [3]);
        for path in ["mp-a/tests/a.rs", "xtask/src/a.rs", "tests/tests/a.rs", "examples/a.rs"] {
            assert!(found(path, variable).is_empty(), "{path}");
        }
        assert_eq!(found("src/lib.rs", variable), [1]);
    }
}
