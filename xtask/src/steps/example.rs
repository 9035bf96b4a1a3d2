//! Step `example`: runs all examples, some of them with arguments that shorten the run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::session::{Outcome, Session};

/// Arguments that make an example short, and words that its last line must contain. Other examples run
/// without arguments.
const SHORT: [(&str, &[&str], &str); 11] = [
    ("ctrl_c", &["--press"], "nothing lost"),
    ("cuda_broadcast", &[], "3 processes read"),
    ("cuda_event", &[], "20 turns of two processes"),
    ("cuda_pipeline", &[], "through three processes"),
    ("hogwild", &["--workers", "2", "--epochs", "3"], "test accuracy"),
    ("invited", &[], "328350"),
    ("million_tensors", &["20000"], ""),
    ("send_socket", &["1000"], "a second"),
    ("service", &["--check"], "0 failed"),
    ("streaming", &["--samples", "2000"], "the same after a killed worker and a resume"),
    ("supervised", &[], "13 is set aside"),
];

/// Example that runs several times and must end with the same weights each time.
const DATA_LOADER: &str = "data_loader";

/// Prefix of the examples that need a GPU. They run on the simulator.
const CUDA: &str = "cuda_";
const SIMULATOR: &str = "mp-cuda-sim";

/// Folders of the examples.
const FOLDERS: [&str; 2] = ["examples", "mp-queue/examples"];
pub(crate) fn run(session: &mut Session) -> Outcome {
    session.run(&mut super::programs(session));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    for folder in FOLDERS {
        let names = match names(Path::new(folder)) {
            Ok(names) if !names.is_empty() => names,
            Ok(_) => return Outcome::Failed(format!("there is no example in {folder}")),
            Err(e) => return Outcome::Failed(format!("{folder}: {e}")),
        };
        for name in &names {
            if name == DATA_LOADER {
                data_loader(session, &target.join("debug/examples").join(name));
                continue;
            }
            let (_, args, words) = SHORT.into_iter().find(|(n, ..)| n == name).unwrap_or(("", &[], ""));
            let program = target.join("debug/examples").join(name);
            let mut command = match name.starts_with(CUDA) {
                true => Command::new(target.join("debug").join(format!("{SIMULATOR}-run"))),
                false => Command::new(&program),
            };
            if name.starts_with(CUDA) {
                command.arg(&program);
            }
            let ran = session.run(command.args(args));
            if ran.ok && !ran.last_line.contains(words) {
                session
                    .fail(format!("the last line of {name} must say `{words}`; it says `{}`", ran.last_line));
            }
        }
    }
    session.outcome()
}

/// Arguments for the amount of training.
const SIZES: [&str; 4] = ["--images", "1500", "--epochs", "5"];

/// Trains undisturbed, with a killed worker, and with the trainer stopped, interrupted or killed and then
/// resumed.
fn data_loader(session: &mut Session, program: &Path) {
    let state = std::env::temp_dir().join(format!("data-loader-{}.json", std::process::id()));
    let file = state.to_string_lossy();
    let mut train = |args: &[&str]| {
        let ran = session.run(Command::new(program).args(SIZES).args(args));
        (ran.ok, ran.last_line)
    };
    let lines = [
        train(&[]),
        train(&["--kill-one"]),
        train(&["--save", &*file, "--stop-after", "100"]),
        train(&["--resume", &*file, "--workers", "1"]),
    ];
    _ = std::fs::remove_file(&state);
    // Ctrl-C during an epoch, and SIGKILL after the first epoch.
    train(&["--save", &*file, "--press-after", "70"]);
    let (pressed_ok, pressed) = train(&["--resume", &*file]);
    _ = std::fs::remove_file(&state);
    let killed = kill_when_saved(program, &SIZES, &state);
    let (resumed_ok, resumed_after_kill) = train(&["--resume", &*file]);
    _ = std::fs::remove_file(&state);
    if let Err(why) = killed {
        session.fail(format!("{DATA_LOADER}, which is killed: {why}"));
    }
    // An interrupted run must not leak.
    let folder = std::env::temp_dir().join(format!("data-loader-interrupted-{}", std::process::id()));
    let left = std::fs::create_dir(&folder).and_then(|()| {
        session.run(Command::new(program).env("TMPDIR", &folder).args([
            "--images",
            "300",
            "--press-after",
            "5",
        ]));
        std::fs::remove_dir(&folder)
    });
    if let Err(e) = left {
        session.fail(format!("{DATA_LOADER}, after Ctrl-C: {}: {e}", folder.display()));
    }
    if lines.iter().all(|(ok, _)| *ok) && pressed_ok && resumed_ok {
        let [plain, killed, stopped, resumed] = lines.map(|(_, line)| line);
        for resumed in [resumed, pressed, resumed_after_kill] {
            if let Err(why) = trained(&plain, &killed, &stopped, &resumed) {
                session.fail(format!("{DATA_LOADER}: {why}"));
            }
        }
    }
}

/// Starts a training and kills it as soon as it has saved its state.
fn kill_when_saved(program: &Path, sizes: &[&str], state: &Path) -> std::io::Result<()> {
    // Folder for files that a killed process can't remove.
    let folder = std::env::temp_dir().join(format!("data-loader-killed-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let mut command = Command::new(program);
    command.args(sizes).arg("--save").arg(state).env("TMPDIR", &folder);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let until = Instant::now() + Duration::from_secs(60);
    let mut ended = None;
    while ended.is_none() && !state.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
        ended = child.try_wait()?;
    }
    // Fails only if the program has ended.
    _ = child.kill();
    let ended = ended.or(Some(child.wait()?).filter(|status| status.code().is_some()));
    // The program may have been killed during the next save.
    _ = std::fs::remove_file(state.with_extension("part"));
    std::fs::remove_dir_all(&folder)?;
    match ended {
        Some(status) => Err(std::io::Error::other(format!("it ended by itself: {status}"))),
        None if !state.exists() => Err(std::io::Error::other("it saved nothing within 60 s")),
        None => Ok(()),
    }
}

/// Checks the last lines of the four runs.
fn trained(plain: &str, killed: &str, stopped: &str, resumed: &str) -> Result<(), String> {
    let word = |line: &str, before: &str| {
        let word = line.split_once(before)?.1.split([',', ' ']).next()?;
        Some(word.to_owned())
    };
    let weights = word(plain, "weights ").ok_or_else(|| format!("no weights in `{plain}`"))?;
    for (line, words) in
        [(killed, " 1 worker replaced"), (stopped, "stopped"), (resumed, " 0 workers replaced")]
    {
        if !line.contains(words) {
            return Err(format!("the last line must say `{words}`; it says `{line}`"));
        }
    }
    for line in [plain, killed, resumed] {
        if word(line, "weights ").as_ref() != Some(&weights) {
            return Err(format!("other weights than {weights}: `{line}`"));
        }
        let accuracy = word(line, "accuracy ").and_then(|word| word.parse::<f64>().ok());
        if accuracy.is_none_or(|accuracy| accuracy < 0.95) {
            return Err(format!("an accuracy of less than 0.95: `{line}`"));
        }
    }
    Ok(())
}

/// Returns the examples of a folder: files, and folders with a `main.rs`.
fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").exists() {
            names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::trained;

    #[test]
    fn weights_of_example_runs_are_compared() {
        let line = |workers: &str, accuracy: &str, end: &str| {
            format!(
                "190 of 190 batches, {workers} replaced, 9 samples/s, waiting 3 %: accuracy {accuracy}, {end}"
            )
        };
        let plain = line("0 workers", "0.970", "weights 00ff");
        let stopped = line("0 workers", "0.800", "stopped; --resume FILE goes on");
        let killed = |end| line("1 worker", "0.970", end);
        assert_eq!(trained(&plain, &killed("weights 00ff"), &stopped, &plain), Ok(()));
        assert!(trained(&plain, &killed("weights 00fe"), &stopped, &plain).is_err());
        assert!(trained(&plain, &plain, &stopped, &plain).is_err());
        assert!(trained(&plain, &killed("weights 00ff"), &plain, &plain).is_err());
        let bad = line("0 workers", "0.949", "weights 00ff");
        assert!(trained(&bad, &killed("weights 00ff"), &stopped, &plain).is_err());
    }
}
