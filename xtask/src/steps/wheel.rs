//! Step `wheel`: the Python package is built, installed and tested.
//!
//! The interpreter is the first `python3` of the path. A folder of its own in `target/wheel` gets the
//! packages that building and testing need, by pip. Without an interpreter, or without an answer of PyPI,
//! the step is skipped. torch is some gigabytes, so `.ci/run` begins with that (`--prepare`) while other
//! steps run; a lock keeps the two apart.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};

use crate::args::Args;
use crate::session::{Outcome, Session};

/// Oldest minor version of CPython 3 that the package supports.
const OLDEST: u32 = 11;

/// Packages without which the step is skipped.
const NEEDED: [&str; 6] = ["maturin>=1.9,<2", "pytest", "pytest-timeout", "numpy", "cloudpickle", "mypy"];

const CRATE: &str = "mp-python/Cargo.toml";

/// Extension with a dataset in Rust, which tests load.
const EXTENSION: &str = "examples/python/rust_dataset/Cargo.toml";

/// Program that tests exchange messages with.
const PROGRAM: &str = "examples/python/rust_to_python/Cargo.toml";

pub(crate) fn run(session: &mut Session) -> Outcome {
    build_and_test(session, &["--profile", "dev"])
}

/// Runs the task `wheel`. With `--prepare`, installs the packages alone.
pub(crate) fn task(args: &mut Args) -> Result<bool, String> {
    let (prepare, strict) = (args.flag("--prepare"), args.flag("--strict"));
    args.finish()?;
    if prepare {
        return environment().map(|environment| environment.is_ok());
    }
    let mut session = Session::new();
    match build_and_test(&mut session, &["--release"]) {
        Outcome::Ok => Ok(!strict || session.tally.skipped.is_empty()),
        Outcome::Failed(reason) => Err(reason),
        Outcome::Skipped(reason) => {
            println!("SKIPPED: {reason}");
            Ok(!strict)
        }
    }
}

/// Folder of everything that the step makes.
fn folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from).join("wheel")
}

/// Returns the interpreter of a virtual environment with the needed packages, and torch where it can be had.
/// The inner error is the reason why there is none.
fn environment() -> Result<Result<PathBuf, String>, String> {
    let folder = folder();
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let lock = File::create(folder.join("lock")).map_err(|e| format!("the lock: {e}"))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| format!("the lock: {e}"))?;
    let python = folder.join("env/bin/python");
    let (complete, with_torch) = (folder.join("complete"), folder.join("complete-with-torch"));
    if !complete.exists() {
        let version = "import sys; sys.exit(sys.version_info[0] != 3 or sys.version_info[1] < MINOR)";
        let version = version.replace("MINOR", &OLDEST.to_string());
        if !succeeds(Command::new("python3").args(["-c", &version])) {
            return Ok(Err(format!("there is no python3 of version 3.{OLDEST} or later")));
        }
        let made = succeeds(Command::new("python3").args(["-m", "venv"]).arg(folder.join("env")));
        if !made || !install(&python, &NEEDED) {
            return Ok(Err("pip can't install what the build needs".to_owned()));
        }
        fs::write(&complete, "").map_err(|e| format!("{}: {e}", complete.display()))?;
    }
    // Half of an installation is completed by the next run.
    if !with_torch.exists() && install(&python, &["torch"]) {
        fs::write(&with_torch, "").map_err(|e| format!("{}: {e}", with_torch.display()))?;
    }
    Ok(Ok(python))
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stdin(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn install(python: &Path, packages: &[&str]) -> bool {
    let options = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir"];
    succeeds(Command::new(python).args(options).args(packages))
}

/// Has cargo build `mp-python` anew. maturin builds the shared library alone, and cargo would take that for
/// the Rust library which the other extension needs.
fn forget_extension(target: &Path) {
    for profile in ["debug", "release"] {
        let built = fs::read_dir(target.join(profile).join(".fingerprint"));
        for entry in built.into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("mp-python-") {
                _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn build_and_test(session: &mut Session, profile: &[&str]) -> Outcome {
    let python = match environment() {
        Ok(Ok(python)) => python,
        Ok(Err(reason)) => return Outcome::Skipped(reason),
        Err(message) => return Outcome::Failed(message),
    };
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // One build of the dependencies serves clippy and the wheels.
    let (python, target) = (absolute(&python), absolute(&folder().join("build")));
    for (manifest, wheels) in [(CRATE, "dist"), (EXTENSION, "dist-extension")] {
        let wheels = absolute(&folder().join(wheels));
        _ = fs::remove_dir_all(&wheels);
        forget_extension(&target);
        let mut build = Command::new(&python);
        build.args(["-m", "maturin", "build", "--locked", "--manifest-path", manifest, "--out"]).arg(&wheels);
        build.args(["--interpreter"]).arg(&python).args(profile);
        if !session.run(build.env("CARGO_TARGET_DIR", &target)).ok {
            return session.outcome();
        }
        let wheel = fs::read_dir(&wheels).ok().and_then(|mut all| all.next()).and_then(Result::ok);
        let Some(wheel) = wheel.map(|entry| entry.path()) else {
            return Outcome::Failed(format!("maturin made no wheel of {manifest}"));
        };
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]);
        if !session.run(install.arg("--force-reinstall").arg(&wheel)).ok {
            return session.outcome();
        }
    }
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--locked", "--manifest-path", PROGRAM]).args(profile);
    if !session.run(build.env("CARGO_TARGET_DIR", &target)).ok {
        return session.outcome();
    }
    let program = if profile.contains(&"--release") { "release" } else { "debug" };
    let program = target.join(program).join("rust_to_python");
    // From another folder: the sources must not be imported instead of what is installed.
    let tests = absolute(Path::new("mp-python/tests"));
    let mut pytest = Command::new(&python);
    pytest.current_dir(&tests).args(["-m", "pytest", "-p", "libtest_report", "-q", "-p", "no:cacheprovider"]);
    pytest.env("PYTHONPATH", &tests).env("PYTHONDONTWRITEBYTECODE", "1").env("RUST_TO_PYTHON", program);
    session.tell_tests(&mut pytest);
    session.run(&mut pytest);
    let mut stubs = Command::new(&python);
    stubs.current_dir(folder()).args(["-m", "mypy.stubtest", "multiproc", "--mypy-config-file"]);
    stubs.arg(tests.join("stubtest.ini"));
    let allowed = tests.join("stubtest-allowed.txt");
    if allowed.exists() {
        stubs.arg("--allowlist").arg(&allowed);
    }
    session.run(&mut stubs);
    session.outcome()
}
