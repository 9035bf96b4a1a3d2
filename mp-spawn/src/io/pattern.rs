//! Patterns in names of output files: `{rank}` and `{name}` in the last part of a path are replaced with
//! the rank and the name of the process.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Returns the path for the process with this number and name. Directories, and bytes that are not UTF-8, are
/// unchanged.
pub(crate) fn expand(path: &Path, number: usize, name: &str) -> io::Result<PathBuf> {
    let bytes = path.as_os_str().as_bytes();
    let at = bytes.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (directory, mut rest) = bytes.split_at(at);
    let mut expanded = directory.to_vec();
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        match first {
            b'{' | b'}' if others.first() == Some(first) => {
                expanded.push(*first);
                rest = &others[1..];
            }
            b'{' => {
                let end = others.iter().position(|byte| *byte == b'}').unwrap_or(others.len());
                match &others[..end] {
                    _ if end == others.len() => return Err(invalid("`{` without `}`")),
                    b"rank" => expanded.extend(number.to_string().bytes()),
                    b"name" if name.contains('/') => {
                        return Err(invalid(&format!("`{{name}}`, and the process is called {name:?}")));
                    }
                    b"name" => expanded.extend(name.bytes()),
                    unknown => {
                        let unknown = String::from_utf8_lossy(unknown);
                        return Err(invalid(&format!("the unknown pattern `{{{unknown}}}`")));
                    }
                }
                rest = &others[end + 1..];
            }
            b'}' => return Err(invalid("`}` without `{`")),
            byte => expanded.push(*byte),
        }
    }
    Ok(OsString::from_vec(expanded).into())
}

fn invalid(what: &str) -> io::Error {
    let why = format!(
        "the file name has {what}: it may have `{{rank}}` and `{{name}}`, whose process has no `/` in its \
         name, and `{{{{` and `}}}}` for braces"
    );
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(path: &[u8]) -> Result<Vec<u8>, String> {
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        let expanded = expand(&path, 3, "reader-3").map_err(|error| error.to_string())?;
        Ok(expanded.into_os_string().into_vec())
    }

    #[test]
    fn patterns_expand_rank_and_name() {
        for (path, file) in [
            (&b"logs/{rank}-{name}.txt"[..], &b"logs/3-reader-3.txt"[..]),
            (b"{rank}", b"3"),
            (b"/a/plain.txt", b"/a/plain.txt"),
            (b"{{rank}}{rank}}}", b"{rank}3}"),
        ] {
            assert_eq!(expanded(path).unwrap(), file);
        }
    }

    #[test]
    fn patterns_in_directories_are_not_expanded() {
        assert_eq!(expanded(b"/a{b}/{rank}/{/{rank}.txt").unwrap(), b"/a{b}/{rank}/{/3.txt");
    }

    #[test]
    fn paths_may_be_invalid_utf8() {
        assert_eq!(expanded(b"\xff\xfe/{rank}-\xff.txt").unwrap(), b"\xff\xfe/3-\xff.txt");
    }

    #[test]
    fn unknown_patterns_are_errors() {
        for (path, part) in [
            (&b"{ranks}.txt"[..], "`{ranks}`"),
            (b"{}.txt", "`{}`"),
            (b"{rank.txt", "`{` without `}`"),
            (b"rank}.txt", "`}` without `{`"),
        ] {
            let error = expanded(path).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let error = expand("{name}".as_ref(), 0, "a/b").unwrap_err().to_string();
        assert!(error.contains("\"a/b\""), "{error}");
    }
}
