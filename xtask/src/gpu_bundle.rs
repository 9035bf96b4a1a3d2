//! `cargo xtask gpu-bundle DIR`: programs for a machine with a GPU but without a compiler, and a script that
//! runs them there.
//!
//! This task runs the script on the simulator first. So a later failure on the other machine is specific to
//! its GPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::args::Args;
use crate::session::Session;

const SCRIPT: &str = include_str!("gpu_bundle.sh");
const EXAMPLES: [&str; 3] = ["cuda_broadcast", "cuda_event", "cuda_pipeline"];
const CONFORMANCE: &str = "tools/cuda-sim/tests/conformance.txt";
/// Benchmark scripts for torch.
const PEERS: [&str; 2] = ["benches/cuda/torch_cuda.py", "benches/cuda/torch_cuda_jobs.py"];

pub(crate) fn run(args: &mut Args) -> Result<bool, String> {
    let folder = args.word().ok_or("gpu-bundle needs a folder")?;
    args.finish()?;
    let folder = PathBuf::from(folder);
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).map_err(|e| format!("{}: {e}", bin.display()))?;
    let mut session = Session::new();
    let strip = |session: &Session, words: &[&str]| {
        let mut command = session.cargo(words);
        command.env("CARGO_PROFILE_RELEASE_STRIP", "true");
        command
    };
    let mut examples = strip(&session, &["build", "--release", "-p", "multiproc", "--features", "cuda"]);
    EXAMPLES.iter().for_each(|name| _ = examples.args(["--example", name]));
    let simulator = ["build", "--release", "-p", "mp-cuda-sim", "--lib", "--bins", "--examples"];
    let mut simulator = strip(&session, &simulator);
    let bench = ["build", "--release", "--manifest-path", "benches/Cargo.toml", "--features", "cuda"];
    let mut bench = strip(&session, &bench);
    // The benchmarks are a separate workspace with a folder of their own.
    bench.args(["--bin", "cuda", "--target-dir", "benches/target"]);
    let built = [&mut examples, &mut simulator, &mut bench].into_iter().all(|one| session.run(one).ok);
    if !built {
        return Ok(false);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let release = target.join("release");
    for name in EXAMPLES.iter().chain(&["conformance"]) {
        copy(&release.join("examples").join(name), &bin.join(name))?;
    }
    copy(Path::new("benches/target/release/cuda"), &bin.join("cuda_bench"))?;
    for peer in PEERS.map(Path::new) {
        let name = peer.file_name().ok_or("a peer without a name")?;
        copy(peer, &folder.join(name))?;
    }
    let test = [
        "test",
        "--release",
        "-p",
        "mp-cuda-sim",
        "--test",
        "processes",
        "--no-run",
        "--message-format=json",
    ];
    let test = strip(&session, &test).output().map_err(|e| format!("cargo test: {e}"))?;
    let program = test_program(&String::from_utf8_lossy(&test.stdout)).ok_or("the tests were not built")?;
    copy(Path::new(&program), &bin.join("cuda_tests"))?;
    copy(Path::new(CONFORMANCE), &folder.join("conformance.txt"))?;
    let script = folder.join("run.sh");
    fs::write(&script, SCRIPT).map_err(|e| format!("{}: {e}", script.display()))?;
    let runner =
        fs::canonicalize(release.join("mp-cuda-sim-run")).map_err(|e| format!("the simulator: {e}"))?;
    println!("{} is written; now it runs on the simulator", folder.display());
    let mut rehearsal = Command::new("sh");
    rehearsal.arg(&script).env("MP_RUNNER", runner).env("MP_CUDA_SIM_PROFILE", "two-gpus");
    Ok(session.run(&mut rehearsal).ok)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))
}

/// Returns the path of the last executable in the JSON messages of cargo.
fn test_program(lines: &str) -> Option<String> {
    let name =
        |line: &str| serde_json::from_str::<Value>(line).ok()?["executable"].as_str().map(str::to_owned);
    lines.lines().filter_map(name).next_back()
}
