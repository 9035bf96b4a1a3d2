//! Copy of the tree with all mutations compiled in.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::table::{EXTRA, Table};
use crate::tidy::Tree;

/// Makes or updates the copy, and returns its folder. Unchanged files are not written, so that cargo rebuilds
/// only changed files.
pub(super) fn make(tree: &Tree, table: &Table) -> Result<PathBuf, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = Path::new(&target).join("mutations");
    let folder = std::path::absolute(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut written = BTreeSet::new();
    for path in tree.paths().filter(|path| !path.starts_with(EXTRA)) {
        let text = tree.text(path).map_or(Ok(None), |text| table.apply(path, text));
        let text = text.map_err(|finding| finding.to_string())?;
        put(&folder.join(path), Path::new(path), text.as_deref()).map_err(|e| format!("{path}: {e}"))?;
        written.insert(folder.join(path));
    }
    for path in tree.paths() {
        let Some(place) = path.strip_prefix(EXTRA) else { continue };
        put(&folder.join(place), Path::new(path), None).map_err(|e| format!("{path}: {e}"))?;
        written.insert(folder.join(place));
    }
    remove_others(&folder, &written).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

/// Writes `text`, or the file at `source`, to `place` if the contents differ.
fn put(place: &Path, source: &Path, text: Option<&str>) -> io::Result<()> {
    let wanted = text.map_or_else(|| fs::read(source), |text| Ok(text.as_bytes().to_vec()))?;
    if fs::read(place).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent)?;
    }
    // The copy keeps the permissions: some files are executable.
    fs::copy(source, place)?;
    text.map_or(Ok(()), |text| fs::write(place, text))
}

/// Removes the files of the copy that are not in `written`, which the sources no longer have.
fn remove_others(folder: &Path, written: &BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_name() == "target" || entry.file_name() == "Cargo.lock" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            remove_others(&path, written)?;
        } else if !written.contains(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_files_of_a_tree_copy_are_not_rewritten() {
        let folder = std::env::temp_dir().join(format!("mp-xtask-copy-{}", std::process::id()));
        fs::create_dir_all(folder.join("old")).unwrap();
        let (source, place, stale) = (folder.join("source"), folder.join("a/copy"), folder.join("old/stale"));
        fs::write(&source, "text").unwrap();
        fs::write(&stale, "text").unwrap();
        put(&place, &source, Some("changed")).unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "changed");
        let written = fs::metadata(&place).unwrap().modified().unwrap();
        put(&place, &source, Some("changed")).unwrap();
        assert_eq!(fs::metadata(&place).unwrap().modified().unwrap(), written);
        put(&place, &source, None).unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "text");
        remove_others(&folder, &[place.clone(), source.clone()].into()).unwrap();
        assert!(place.exists() && source.exists() && !stale.exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
