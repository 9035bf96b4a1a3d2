//! Step `wheel`: the Python package is built, installed and tested. Tests also run the examples of its guide.
//!
//! The interpreter is the first `python3` of the path. pip installs the packages that building and testing
//! need into a separate folder in `target/wheel`. Without an interpreter, or if PyPI can't be reached, the
//! step is skipped. torch has some gigabytes, so `.ci/run` starts the installation (`--prepare`) while other
//! steps run. A lock serializes the two.
//!
//! A second wheel is built and tested for a free-threaded interpreter, if one is installed. A new machine
//! can't install one from a package, so `--strict` allows skipping this part.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};

use super::Claims;
use crate::args::Args;
use crate::session::{Outcome, Session};

/// A wheel, and the interpreter that tests it.
struct Wheel {
    /// Interpreter in the path.
    program: &'static str,
    /// Environment variable that names another interpreter.
    variable: Option<&'static str>,
    /// Requirement on the interpreter, in words.
    required: &'static str,
    /// Requirement on the interpreter, as an expression of Python.
    is_required: &'static str,
    /// Expression of Python that is true after the import.
    after_import: &'static str,
    /// Folder in `target/wheel` for the environment and the wheels.
    folder: &'static str,
    /// End of the binary interface's name, in the name of the wheel.
    interface: &'static str,
}

/// Wheel `cp311-abi3`.
const STABLE: Wheel = Wheel {
    program: "python3",
    variable: None,
    required: "python3 of version 3.11 or later, with a GIL",
    is_required: "sys.version_info >= (3, 11) and not sysconfig.get_config_var('Py_GIL_DISABLED')",
    after_import: "True",
    folder: "",
    interface: "abi3",
};

/// Wheel `cp314-cp314t`.
const FREE_THREADED: Wheel = Wheel {
    program: "python3.14t",
    variable: Some("MP_PYTHON_FREE_THREADED"),
    required: "python3.14t (MP_PYTHON_FREE_THREADED can name one)",
    is_required: "sys.version_info >= (3, 14) and sysconfig.get_config_var('Py_GIL_DISABLED')",
    after_import: "not sys._is_gil_enabled()",
    folder: "free-threaded",
    interface: "t",
};

/// Packages without which the step is skipped.
const NEEDED: [&str; 6] = ["maturin>=1.9,<2", "pytest", "pytest-timeout", "numpy", "cloudpickle", "mypy"];

pub(super) const CRATE: &str = "mp-python/Cargo.toml";

/// Extension with a dataset in Rust, which tests load.
const EXTENSION: &str = "examples/python/rust_dataset/Cargo.toml";

/// Program that tests exchange messages with, in the same workspace.
const PROGRAM: &str = "rust_to_python";

pub(crate) fn run(session: &mut Session) -> Outcome {
    build_and_test(session, &["--profile", "dev"])
}

/// Runs the task `wheel`. With `--prepare`, installs the packages alone.
pub(crate) fn task(args: &mut Args) -> Result<bool, String> {
    let (prepare, strict) = (args.flag("--prepare"), args.flag("--strict"));
    args.finish()?;
    if prepare {
        let stable = environment(&STABLE)?;
        return environment(&FREE_THREADED).map(|_| stable.is_ok());
    }
    let mut session = Session::new();
    match build_and_test(&mut session, &["--release"]) {
        Outcome::Ok => Ok(!strict || session.tally.disallowed() == 0),
        Outcome::Failed(reason) => Err(reason),
        Outcome::Skipped(reason) => {
            println!("SKIPPED: {reason}");
            Ok(!strict)
        }
    }
}

/// Folder of all files that the step creates.
fn folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from).join("wheel")
}

/// Returns the interpreter of a virtual environment with the needed packages, and with torch if it can be
/// installed. The inner error is the reason why the environment is missing.
fn environment(wheel: &Wheel) -> Result<Result<PathBuf, String>, String> {
    let folder = folder().join(wheel.folder);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let lock = File::create(folder.join("lock")).map_err(|e| format!("the lock: {e}"))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| format!("the lock: {e}"))?;
    let python = folder.join("env/bin/python");
    let (complete, with_torch) = (folder.join("complete"), folder.join("complete-with-torch"));
    // The interpreter of an older environment may be gone.
    if !complete.exists() || !python.exists() {
        let program = wheel.variable.and_then(std::env::var_os).unwrap_or_else(|| wheel.program.into());
        let check = format!("import sys, sysconfig; sys.exit(not ({}))", wheel.is_required);
        if !succeeds(Command::new(&program).args(["-c", &check])) {
            return Ok(Err(format!("there is no {}", wheel.required)));
        }
        let made = succeeds(Command::new(&program).args(["-m", "venv"]).arg(folder.join("env")));
        if !made || !install(&python, &NEEDED) {
            return Ok(Err("pip can't install what the build needs".to_owned()));
        }
        fs::write(&complete, "").map_err(|e| format!("{}: {e}", complete.display()))?;
    }
    // The next run completes a partial installation.
    if !with_torch.exists() && install(&python, &["torch"]) {
        fs::write(&with_torch, "").map_err(|e| format!("{}: {e}", with_torch.display()))?;
    }
    Ok(Ok(absolute(&python)))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the folder of all builds of mp-python. One build of the dependencies serves clippy and the wheels.
pub(super) fn build_folder() -> PathBuf {
    absolute(&folder().join("build"))
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stdin(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn install(python: &Path, packages: &[&str]) -> bool {
    let options = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir"];
    succeeds(Command::new(python).args(options).args(packages))
}

fn build_and_test(session: &mut Session, profile: &[&str]) -> Outcome {
    let python = match environment(&STABLE) {
        Ok(Ok(python)) => python,
        Ok(Err(reason)) => return Outcome::Skipped(reason),
        Err(message) => return Outcome::Failed(message),
    };
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The whole workspace: otherwise the libraries would have fewer features than those of the extensions.
    build
        .args(["build", "--locked", "--manifest-path", CRATE, "--workspace", "--bin", PROGRAM])
        .args(profile);
    if !session.run(build.env("CARGO_TARGET_DIR", build_folder())).ok
        || !build_and_install(session, &STABLE, &python, profile)
    {
        return session.outcome();
    }
    test(session, &STABLE, &python, profile);
    compare_stubs(session, &python);
    test_bare(session, &STABLE, &python);

    let skipped_before = session.tally.skipped.len();
    match environment(&FREE_THREADED) {
        Ok(Ok(python)) => {
            if build_and_install(session, &FREE_THREADED, &python, profile) {
                test(session, &FREE_THREADED, &python, profile);
            }
        }
        Ok(Err(reason)) => {
            println!("SKIPPED: the free-threaded wheel: {reason}");
            session.tally.skipped.push(format!("the free-threaded wheel: {reason}"));
        }
        Err(message) => session.fail(message),
    }
    session.tally.allowed += session.tally.skipped.len() - skipped_before;
    session.outcome()
}

/// Builds the wheels of package and example, and installs both. Returns `true` on success.
fn build_and_install(session: &mut Session, wheel: &Wheel, python: &Path, profile: &[&str]) -> bool {
    // The extension first: its build makes all kinds of libraries of the package. The build of the package's
    // wheel alone makes the shared library, and cargo would mistake it for the Rust library.
    for (manifest, wheels) in [(EXTENSION, "dist-extension"), (CRATE, "dist")] {
        let wheels = absolute(&folder().join(wheel.folder).join(wheels));
        _ = fs::remove_dir_all(&wheels);
        let mut build = Command::new(python);
        build.args(["-m", "maturin", "build", "--locked", "--manifest-path", manifest, "--out"]).arg(&wheels);
        build.args(["--interpreter"]).arg(python).args(profile);
        if !session.run(build.env("CARGO_TARGET_DIR", build_folder())).ok {
            return false;
        }
        let Some(made) = built(wheel, &wheels) else {
            session.fail(format!("maturin made no wheel of {manifest} for {}", wheel.required));
            return false;
        };
        let mut install = Command::new(python);
        install.args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]);
        if !session.run(install.arg("--force-reinstall").arg(&made)).ok {
            return false;
        }
    }
    true
}

/// Returns the file of a wheel in a folder.
fn built(wheel: &Wheel, folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    files.into_iter().find(|file| interface(file).ends_with(wheel.interface))
}

/// Returns the binary interface in the name of a wheel: `name-version-python-interface-platform.whl`.
fn interface(wheel: &Path) -> &str {
    wheel.file_name().and_then(|name| name.to_str()?.split('-').nth(3)).unwrap_or_default()
}

/// Imports the installed package, with warnings as errors, and runs the tests.
fn test(session: &mut Session, wheel: &Wheel, python: &Path, profile: &[&str]) {
    // Runs in another folder, so that Python imports the installed package and not the sources.
    let tests = absolute(Path::new("mp-python/tests"));
    let import = format!("import sys, multiproc, digits; sys.exit(not ({}))", wheel.after_import);
    let mut check = Command::new(python);
    session.run(check.current_dir(&tests).args(["-W", "error", "-c", &import]));
    let program = if profile.contains(&"--release") { "release" } else { "debug" };
    let program = build_folder().join(program).join(PROGRAM);
    let claims = match Claims::new() {
        Ok(claims) => claims,
        Err(message) => return session.fail(message),
    };
    // Two runs share the files of tests: most tests wait for processes, one by one.
    let [mut one, mut other] = [(); 2].map(|()| {
        let mut pytest = Command::new(python);
        pytest.current_dir(&tests).args(["-m", "pytest", "-p", "libtest_report", "-q"]);
        pytest.args(["-p", "no:cacheprovider"]).env("MP_CLAIMS", &claims.0);
        pytest.env("PYTHONPATH", &tests).env("PYTHONDONTWRITEBYTECODE", "1").env("RUST_TO_PYTHON", &program);
        session.tell_tests(&mut pytest);
        pytest
    });
    session.run_in_parallel(std::slice::from_mut(&mut other), |session| _ = session.run(&mut one));
}

/// Installs the package as a new user does, into an environment without other packages, and runs a program.
fn test_bare(session: &mut Session, wheel: &Wheel, python: &Path) {
    let folder = absolute(&folder().join(wheel.folder));
    let Some(made) = built(wheel, &folder.join("dist")) else {
        return session.fail(format!("{} has no wheel to install", folder.display()));
    };
    let bare = folder.join("bare");
    let mut create = Command::new(python);
    create.args(["-m", "venv", "--clear"]).arg(&bare);
    let python = bare.join("bin/python");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet"]).arg(&made);
    let mut program = Command::new(&python);
    program.args(["-W", "error"]).arg(absolute(Path::new("mp-python/tests/bare_program.py")));
    _ = session.run(&mut create).ok && session.run(&mut install).ok && session.run(&mut program).ok;
}

/// Compares the stubs with the installed package.
fn compare_stubs(session: &mut Session, python: &Path) {
    let tests = absolute(Path::new("mp-python/tests"));
    let mut stubs = Command::new(python);
    stubs.current_dir(folder()).args(["-m", "mypy.stubtest", "multiproc", "--mypy-config-file"]);
    stubs.arg(tests.join("stubtest.ini"));
    let allowed = tests.join("stubtest-allowed.txt");
    if allowed.exists() {
        stubs.arg("--allowlist").arg(&allowed);
    }
    session.run(&mut stubs);
}
