//! Rules about crates. Each crate has a description and inherits the workspace's lints. A crate that is a
//! separate workspace sets its lints itself. The documentation marks items that need a feature.

use super::{Finding, Tree};

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in tree.files.iter().filter(|f| f.path == "Cargo.toml" || f.path.ends_with("/Cargo.toml")) {
        if !has(&manifest.text, "[package]") {
            continue;
        }
        let apart = manifest.path != "Cargo.toml" && has(&manifest.text, "[workspace]");
        let states_lints = inherits_lints(&manifest.text) || apart && has(&manifest.text, "[lints.rust]");
        if !states_lints {
            let message = "the crate does not inherit the lints: add `[lints]` with `workspace = true`";
            findings.push(Finding::new(&manifest.path, 1, message));
        }
        let folder = manifest.path.trim_end_matches("Cargo.toml");
        // A crate that is not published has no page on docs.rs.
        let has_manual = has(&manifest.text, "[features]") && !has(&manifest.text, "publish = false");
        if let Some(root) = tree.get(&format!("{folder}src/lib.rs")).filter(|_| has_manual) {
            if !has(&manifest.text, "[package.metadata.docs.rs]") {
                let message = "docs.rs is not told to show all features: add `[package.metadata.docs.rs]`";
                findings.push(Finding::new(&manifest.path, 1, message));
            }
            if !has(&root.text, "#![cfg_attr(docsrs, feature(doc_cfg))]") {
                let message =
                    "the manual does not mark what needs a feature: `#![cfg_attr(docsrs, feature(doc_cfg))]`";
                findings.push(Finding::new(&root.path, 1, message));
            }
        }
        let roots = ["lib", "main"].map(|name| format!("{folder}src/{name}.rs"));
        for root in roots.iter().filter_map(|path| tree.get(path)) {
            let documented = |line: &super::Line| {
                line.comment.trim_start().starts_with("//!") || line.code.trim_start().starts_with("#![doc")
            };
            if !root.lines().iter().any(documented) {
                let message = "the crate does not say what it is: open it with `//!`";
                findings.push(Finding::new(&root.path, 1, message));
            }
        }
    }
    findings
}

fn has(manifest: &str, section: &str) -> bool {
    manifest.lines().any(|line| line.trim() == section)
}

fn inherits_lints(manifest: &str) -> bool {
    let mut section = "";
    manifest.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).any(|line| {
        if line.starts_with('[') {
            section = line;
        }
        let setting: String = line.split_whitespace().collect();
        setting == if section == "[lints]" { "workspace=true" } else { "lints.workspace=true" }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINTS: &str = "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n";

    #[test]
    fn crates_without_a_description_are_reported() {
        assert!(check(&Tree::of(&[("a/Cargo.toml", LINTS), ("a/src/lib.rs", "//! A.\n")])).is_empty());
        assert!(check(&Tree::of(&[("Cargo.toml", LINTS), ("src/lib.rs", "#![doc = \"A\"]\n")])).is_empty());
        assert_eq!(check(&Tree::of(&[("a/Cargo.toml", LINTS), ("a/src/main.rs", "// A.\n")])).len(), 1);
    }

    #[test]
    fn missing_feature_labels_are_reported() {
        let manifest = format!("{LINTS}[features]\n");
        let root = "//! A.\n#![cfg_attr(docsrs, feature(doc_cfg))]\n";
        let reported = format!("{manifest}[package.metadata.docs.rs]\n");
        assert_eq!(check(&Tree::of(&[("a/Cargo.toml", &manifest), ("a/src/lib.rs", root)])).len(), 1);
        assert_eq!(check(&Tree::of(&[("a/Cargo.toml", &reported), ("a/src/lib.rs", "//! A.\n")])).len(), 1);
        assert!(check(&Tree::of(&[("a/Cargo.toml", &reported), ("a/src/lib.rs", root)])).is_empty());
        let private = manifest.replace("[package]\n", "[package]\npublish = false\n");
        assert!(check(&Tree::of(&[("a/Cargo.toml", &private), ("a/src/lib.rs", "//! A.\n")])).is_empty());
    }

    #[test]
    fn crates_without_inherited_lints_are_reported() {
        let own = "[package]\nversion.workspace = true\n[dependencies]\na = { workspace = true }\n[lints]\n";
        assert_eq!(check(&Tree::of(&[("a/Cargo.toml", own)])).len(), 1);
        assert!(check(&Tree::of(&[("a/Cargo.toml", "[workspace]\n")])).is_empty());
        let apart = "[workspace]\n[package]\n[lints.rust]\n";
        assert!(check(&Tree::of(&[("benches/Cargo.toml", apart)])).is_empty());
        assert_eq!(check(&Tree::of(&[("Cargo.toml", apart)])).len(), 1);
    }
}
