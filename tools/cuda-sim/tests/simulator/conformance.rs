//! Log of the conformance program with the simulator's results, for comparison with the log of a GPU.

use std::path::Path;

use crate::support::{Client, kinds, setup};

#[path = "../../examples/conformance/log.rs"]
mod log;

pub(crate) use log::log;

/// Returns the lines in which the stored log differs from the new log.
fn difference(kept: &str, now: &str) -> Vec<String> {
    let (mut kept, mut now) = (kept.lines(), now.lines());
    let mut differ = Vec::new();
    loop {
        match (kept.next(), now.next()) {
            (None, None) => return differ,
            (a, b) if a == b => {}
            (a, b) => differ.push(format!("kept {a:?}, now {b:?}")),
        }
    }
}

#[test]
fn conformance_log_matches_the_golden_file() {
    let session = setup().start().unwrap();
    let now = Client::bare(Some(&session), &[]).call("conformance", &[], &[]).bytes;
    let now = String::from_utf8(now).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance.txt");
    if std::env::var_os("MP_WRITE").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap();
    assert_eq!(difference(&kept, &now), [""; 0], "MP_WRITE=1 writes it anew");
    // The program tests the result of a second release on purpose, and its last part causes a fault.
    let mut kinds = kinds(&session);
    kinds.dedup();
    assert_eq!(kinds, ["fault", "refused"]);
}
