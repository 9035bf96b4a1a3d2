//! Rules about links. A relative link of a page targets an existing file and heading. `docs/SUMMARY.md` lists
//! each page of the book exactly once. A page that a source file names exists.

use std::collections::{HashMap, HashSet};

use super::{File, Finding, Tree};

const BOOK: &str = "docs/";
const SUMMARY: &str = "docs/SUMMARY.md";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let pages = || tree.files.iter().filter(|file| file.path.ends_with(".md"));
    let mut findings: Vec<Finding> = pages().flat_map(|page| broken(tree, page)).collect();
    findings.extend(tree.text(SUMMARY).into_iter().flat_map(|summary| unlisted(tree, summary)));
    findings.extend(tree.files.iter().flat_map(|file| missing_pages(tree, file)));
    findings
}

/// Returns line and target of each relative link of a page. Code has no links.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let line: String = line.split('`').step_by(2).collect::<Vec<_>>().join("code");
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
        let relative = targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"));
        found.extend(relative.map(|target| (number, target.to_owned())));
    }
    found
}

/// Returns the lines of a page outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        inside ^= is_fence;
        !inside && !is_fence
    })
}

fn broken(tree: &Tree, page: &File) -> Vec<Finding> {
    let complain = |(line, target): &(usize, String)| {
        let why = complaint(tree, page, target)?;
        Some(Finding::new(&page.path, *line, format!("the link `{target}` is broken: {why}")))
    };
    links(&page.text).iter().filter_map(complain).collect()
}

fn complaint(tree: &Tree, page: &File, target: &str) -> Option<String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { page.path.clone() } else { resolve(&page.path, path) };
    let Some(file) = tree.get(&path) else {
        let is_folder = tree.files.iter().any(|file| file.path.starts_with(&format!("{path}/")));
        return (!is_folder).then(|| format!("`{path}` does not exist"));
    };
    let exists = anchor.is_empty() || anchors(&file.text).contains(anchor);
    (!exists).then(|| format!("`{path}` has no heading `#{anchor}`"))
}

/// Returns the path from the repository's root of a path that is relative to a file.
fn resolve(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> HashSet<String> {
    let (mut anchors, mut times) = (HashSet::new(), HashMap::new());
    for (_, line) in prose(text) {
        let words = line.trim_start_matches('#');
        if line.starts_with('#') && words.starts_with(' ') {
            let anchor = slug(words.trim());
            let before = times.entry(anchor.clone()).and_modify(|times| *times += 1).or_insert(0);
            anchors.insert(if *before == 0 { anchor } else { format!("{anchor}-{before}") });
        }
    }
    anchors
}

fn slug(heading: &str) -> String {
    let kept = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || matches!(c, '-' | '_') => Some(c.to_ascii_lowercase()),
        _ => None,
    };
    heading.chars().filter_map(kept).collect()
}

/// Returns a complaint for each page that the summary lists never, or more than once.
fn unlisted(tree: &Tree, summary: &str) -> Vec<Finding> {
    let listed: Vec<String> = links(summary)
        .iter()
        .map(|(_, target)| resolve(SUMMARY, target.split('#').next().unwrap_or_default()))
        .collect();
    let pages = tree.files.iter().map(|file| file.path.as_str());
    let pages = pages.filter(|path| path.starts_with(BOOK) && path.ends_with(".md") && *path != SUMMARY);
    let complain = |page: &str| match listed.iter().filter(|path| *path == page).count() {
        1 => None,
        0 => Some(Finding::new(SUMMARY, 1, format!("`{page}` is not listed: add it to its part"))),
        times => Some(Finding::new(SUMMARY, 1, format!("`{page}` is listed {times} times: keep one"))),
    };
    pages.filter_map(complain).collect()
}

/// Returns a complaint for each page of the book that a file names, and that does not exist.
fn missing_pages(tree: &Tree, file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Tests of these checks name pages that do not exist.
    if file.path.starts_with("xtask/") || !(file.path.ends_with(".rs") || file.path.ends_with(".toml")) {
        return findings;
    }
    for (number, line) in (1..).zip(file.text.lines()) {
        for (at, _) in line.match_indices(BOOK) {
            let is_path = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
            let path = line[at..].split(|c| !is_path(c)).next().unwrap_or_default();
            let page = path.split_inclusive(".md").next().filter(|page| page.ends_with(".md"));
            if let Some(page) = page.filter(|page| !line[..at].ends_with(is_path) && tree.get(page).is_none())
            {
                findings.push(Finding::new(&file.path, number, format!("the page `{page}` does not exist")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        check(&Tree::of(files)).into_iter().map(|f| (f.path.clone(), f.line)).collect()
    }

    #[test]
    fn broken_links_are_reported() {
        let page = "# A page\n\n## The `end`, again\n\n## The end again\n";
        let links =
            "[a](docs/b.md) [b](docs/b.md#the-end-again-1)\n[c](#top) [d](https://x.y/z) `[e](f)`\n# Top\n";
        assert!(found(&[("a.md", links), ("docs/b.md", page)]).is_empty());
        let links = "[a](docs/c.md)\n[b](docs/b.md#end)\n```text\n[c](d.md)\n```\n[d](../e.rs) [e](docs)\n";
        let expected = [1, 2, 6].map(|line| ("a.md".to_owned(), line));
        assert_eq!(found(&[("a.md", links), ("docs/b.md", page)]), expected);
    }

    #[test]
    fn summary_lists_each_page_once() {
        let pages = [("docs/a.md", ""), ("docs/b/c.md", ""), ("README.md", "")];
        let count = |summary: &str| {
            found(&[&pages[..], &[(SUMMARY, summary)]].concat())
                .into_iter()
                .filter(|(path, _)| path == SUMMARY)
                .count()
        };
        assert_eq!(count("- [A](a.md)\n  - [C](b/c.md)\n"), 0);
        assert_eq!(count("- [A](a.md)\n"), 1);
        assert_eq!(count("- [A](a.md)\n- [A](a.md)\n- [C](b/c.md)\n"), 1);
    }

    #[test]
    fn pages_named_in_sources_exist() {
        let source = "//! See docs/a.md, and `docs/b.md#x`.\n// target/docs/c.md\n";
        assert_eq!(found(&[("src/lib.rs", source), ("docs/a.md", "")]), [("src/lib.rs".to_owned(), 1)]);
    }
}
