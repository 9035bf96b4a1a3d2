//! Step `doc`: rustdoc has no warnings, the public paths equal `docs/api.txt`, and the book builds.
//!
//! A change of a public path is visible in review: `cargo xtask api` writes that file. The book in `docs`
//! needs mdBook. Without it, only links and summary are checked.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::layers::LAYERS;
use crate::session::{Outcome, Session};
use crate::tidy::{Tree, links};

const PAGE: &str = "docs/api.txt";
const HEAD: &str = concat!(
    "# @gen",
    "erated by `cargo xtask api`: every public path of every library crate, as the manual lists them.\n\n"
);

pub(crate) fn run(session: &mut Session) -> Outcome {
    book(session);
    if built(session) {
        match (paths(), fs::read_to_string(PAGE)) {
            (Ok(now), Ok(page)) => {
                for change in changes(&page, &now) {
                    session.fail(format!("{PAGE}: {change} (if that is meant: cargo xtask api)"));
                }
            }
            (Err(message), _) => session.fail(message),
            (_, Err(error)) => session.fail(format!("{PAGE}: {error}; `cargo xtask api` writes it")),
        }
    }
    session.outcome()
}

/// Runs the task `api`: writes the public paths to `docs/api.txt`.
pub(crate) fn write() -> Result<bool, String> {
    let mut session = Session::new();
    if !built(&mut session) {
        return Ok(false);
    }
    let text: String = paths()?.into_iter().map(|path| path + "\n").collect();
    fs::write(PAGE, format!("{HEAD}{text}")).map_err(|e| format!("{PAGE}: {e}"))?;
    Ok(true)
}

fn built(session: &mut Session) -> bool {
    let mut doc = session.cargo(&["doc", "--workspace", "--no-deps"]);
    session.run(doc.env("RUSTDOCFLAGS", "-D warnings")).ok
}

/// Checks the links of all pages, and builds the book if mdBook is installed.
fn book(session: &mut Session) {
    match Tree::load() {
        Ok(tree) => links::check(&tree).iter().for_each(|finding| session.fail(finding.to_string())),
        Err(message) => session.fail(message),
    }
    if Command::new("mdbook").arg("--version").output().is_err() {
        println!("the book is not built: mdbook is not installed (cargo install mdbook)");
        return;
    }
    match std::path::absolute(target().join("book")) {
        Ok(to) => _ = session.run(Command::new("mdbook").args(["build", "docs", "--dest-dir"]).arg(to)),
        Err(error) => session.fail(format!("the folder of the book: {error}")),
    }
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Returns the paths that rustdoc lists, with their kinds.
fn paths() -> Result<BTreeSet<String>, String> {
    let target = target();
    let mut all = BTreeSet::new();
    for (name, _) in LAYERS {
        let library = if *name == crate::layers::FACADE { "mp".to_owned() } else { name.replace('-', "_") };
        let page = target.join("doc").join(&library).join("all.html");
        let text = fs::read_to_string(&page).map_err(|e| format!("{}: {e}", page.display()))?;
        all.extend(listed(&library, &text));
    }
    Ok(all)
}

/// Returns the entries of a page `all.html`: `mp_queue::ring::Put struct`.
fn listed(library: &str, page: &str) -> Vec<String> {
    let links = page.split("<a href=\"").skip(1).filter_map(|rest| {
        let (link, rest) = rest.split_once("\">")?;
        let (path, _) = rest.split_once("</a>")?;
        let file = link.rsplit('/').next()?;
        let kind = file.strip_suffix(".html")?.split_once('.')?.0;
        Some(format!("{library}::{path} {kind}"))
    });
    links.collect()
}

/// Returns messages about public paths that the page lacks, and about lines of the page without a public
/// path.
fn changes(page: &str, now: &BTreeSet<String>) -> Vec<String> {
    let before: BTreeSet<&str> =
        page.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let new =
        now.iter().filter(|path| !before.contains(path.as_str())).map(|path| format!("`{path}` is new"));
    let gone = before.iter().filter(|path| !now.contains(**path)).map(|path| format!("`{path}` is gone"));
    new.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_paths_are_parsed_and_compared() {
        let html = r#"<h3 id="structs">Structs</h3><ul class="all-items">
            <li><a href="ring/struct.Put.html">ring::Put</a></li><li><a href="fn.pipe.html">pipe</a></li>
            </ul><a href="help.html">x</a>"#;
        let now: BTreeSet<String> = listed("mp_queue", html).into_iter().collect();
        assert_eq!(now.iter().collect::<Vec<_>>(), ["mp_queue::pipe fn", "mp_queue::ring::Put struct"]);
        let page = format!("{HEAD}mp_queue::pipe fn\nmp_queue::Old trait\n");
        assert_eq!(
            changes(&page, &now),
            ["`mp_queue::ring::Put struct` is new", "`mp_queue::Old trait` is gone"]
        );
    }
}
