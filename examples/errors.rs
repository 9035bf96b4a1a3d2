//! Every failure of a process, as reported to its parent.
//!
//! `cargo run --example errors`

use std::process::{abort, exit};

use mp::process::Stdio;
use mp::{SpawnOptions, start_processes};

/// Description of a failure, and function that fails in this way.
type Way = (&'static str, fn() -> mp::AnyResult<()>);

const WAYS: &[Way] = &[
    ("returns an error", || Err(std::fs::read("/no/such/data").map_err(Unreadable).unwrap_err().into())),
    ("panics", || panic!("the loss is not a number")),
    ("panics while it panics", || {
        struct Clumsy;
        impl Drop for Clumsy {
            fn drop(&mut self) {
                panic!("and so does its destructor");
            }
        }
        let _clumsy = Clumsy;
        panic!("the first panic");
    }),
    ("exits", || exit(42)),
    ("aborts", || {
        eprintln!("what it wrote last");
        abort()
    }),
    ("uses up its stack", || {
        #[allow(unconditional_recursion)]
        fn deeper(n: u64) -> u64 {
            deeper(n + 1) + std::hint::black_box(n)
        }
        deeper(0);
        Ok(())
    }),
    ("is killed", || {
        let me = std::process::id().to_string();
        std::process::Command::new("kill").args(["-KILL", &me]).status()?;
        unreachable!("it is dead")
    }),
];

#[derive(Debug)]
struct Unreadable(std::io::Error);

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the training data can't be read")
    }
}

impl std::error::Error for Unreadable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

fn fail(rank: usize, (): ()) -> mp::AnyResult<()> {
    (WAYS[rank].1)()
}

fn main() -> mp::AnyResult<()> {
    // One process for each failure. A failed process does not end the others, because `results` is used.
    let options = SpawnOptions::nprocs(WAYS.len()).stderr(Stdio::Capture);
    let results = start_processes(fail, (), options)?.results()?;
    for ((way, _), result) in WAYS.iter().zip(results) {
        let error = result.expect_err("each of them fails");
        println!("── a process that {way}\n{error}\n");
    }
    // A process that can't start: nothing is started, and the error has the reason.
    let nowhere = start_processes(fail, (), SpawnOptions::nprocs(1).executable("/no/such/program"));
    println!("── a process that can't be started\n{}", nowhere.expect_err("there is no such program"));
    Ok(())
}
