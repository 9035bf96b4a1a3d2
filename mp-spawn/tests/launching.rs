//! Programs that are started, and errors of unsuitable programs.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{DEADLINE, Folder, Outcome, failure, join};
use mp_harness::{OtherBuild, install, skip};
use mp_spawn::{FunctionError, SpawnError, SpawnOptions, StartMethod, start_processes};

fn no_op(_: usize, (): ()) {}

/// Program that is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Runs one of the helpers below, which are ignored tests, in a separate program.
    fn helper(program: &Path, name: &str) -> Running {
        let mut command = Command::new(program);
        command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
        Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn succeeds(&mut self) {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return assert!(status.success(), "{status}");
            }
            assert!(Instant::now() < until, "the helper still runs");
            std::thread::sleep(Duration::from_millis(1)); // sleep: polls the progress of another process
        }
    }
}

fn write_program(path: &Path, bytes: &[u8]) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, bytes).unwrap();
    install(&draft, path);
}

/// Waits for a word of the helper, because a filter that matches nothing would succeed silently.
fn wait_for(running: &mut Running, word: &str) {
    let mut lines = BufReader::new(running.0.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(word)), "the helper never said {word:?}");
}

#[test]
fn replaced_or_deleted_program_starts_processes() {
    for deleted in [true, false] {
        let folder = Folder::new(if deleted { "deleted" } else { "replaced" });
        let copy = folder.0.join("program");
        install(&std::env::current_exe().unwrap(), &copy);
        let mut running = Running::helper(&copy, "helper_starts_workers_on_request");
        wait_for(&mut running, "ready");
        std::fs::remove_file(&copy).unwrap();
        if !deleted {
            install(Path::new("/bin/false"), &copy);
        }
        running.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        wait_for(&mut running, "helper: 3 processes");
        running.succeeds();
    }
}

#[test]
#[ignore = "part of another test"]
fn helper_starts_workers_on_request() {
    println!("\nready");
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    let worker = |rank: usize, text: String| assert!(rank < 3 && text == "go");
    join(&start_processes(worker, "go".to_string(), SpawnOptions::nprocs(3)).unwrap()).unwrap();
    println!("helper: 3 processes");
}

#[test]
fn other_build_of_the_program_is_refused() {
    // Another build of the same program: its offsets must not be trusted.
    let Some(other) = OtherBuild::new() else { return skip("the linker writes no build-id") };
    let context = start_processes(no_op, (), SpawnOptions::nprocs(1).executable(other.path())).unwrap();
    let error = failure(&context);
    let SpawnError::Refused { reason: FunctionError::OtherBuild { found, expected }, function, .. } = &error
    else {
        panic!("unexpected: {error:?}");
    };
    assert_ne!(found, expected);
    assert!(function.ends_with("no_op"), "{error}");
    assert!(error.to_string().contains("runs another build: "), "{error}");
}

#[test]
fn executable_that_ends_without_init_is_an_error() {
    let context = start_processes(no_op, (), SpawnOptions::nprocs(1).executable("/bin/true")).unwrap();
    let error = failure(&context);
    assert!(matches!(&error, SpawnError::NeverReported { who, .. } if who.rank == Some(0)), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("/bin/true and exited with code 0") && text.contains("SpawnOptions::executable"),
        "{text}"
    );
}

#[test]
fn executable_that_runs_without_init_times_out() {
    let folder = Folder::new("stays");
    let program = folder.0.join("stays");
    write_program(&program, b"#!/bin/sh\nexec sleep 120\n");
    let options = SpawnOptions::nprocs(1).executable(&program).handshake_timeout(Duration::from_millis(100));
    let error = failure(&start_processes(no_op, (), options).unwrap());
    assert!(matches!(&error, SpawnError::Timeout { who, .. } if who.rank == Some(0)), "{error:?}");
    assert!(error.to_string().contains("mp::init()"), "{error}");
}

/// C program that waits in a `vfork` until its copy has opened a named pipe, and then sleeps forever. The
/// wait is as uninterruptible as a wait for a disk.
const WAITS_THEN_SLEEPS: &[u8] = br#"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(void) {
    if (vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        open(getenv("GATE"), O_RDONLY);
        _exit(0);
    }
    for (;;) pause();
}
"#;

#[test]
fn stopped_process_gets_its_handshake_time_again() {
    let folder = Folder::new("waits");
    let (source, program, gate) = (folder.0.join("waits.c"), folder.0.join("waits"), folder.0.join("gate"));
    std::fs::write(&source, WAITS_THEN_SLEEPS).unwrap();
    let compiler =
        Command::new("cc").args(["-Wno-deprecated-declarations", "-o"]).args([&program, &source]).status();
    assert!(compiler.expect("a C compiler").success());
    rustix::fs::mkfifoat(rustix::fs::CWD, &gate, 0o600.into()).unwrap();
    let short = Duration::from_millis(100);
    let options = SpawnOptions::nprocs(1).executable(&program).env("GATE", &gate).handshake_timeout(short);
    let context = start_processes(no_op, (), options).unwrap();
    let stat = format!("/proc/{}/stat", context.pids()[0]);
    common::eventually("in a vfork", || std::fs::read_to_string(&stat).unwrap_or_default().contains(") D "));
    // Many times its deadline, which is extended.
    assert!(!context.join_timeout(10 * short).unwrap());
    drop(std::fs::File::options().write(true).open(&gate).unwrap());
    let error = failure(&context);
    let SpawnError::Timeout { method: StartMethod::Spawn, activity, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(activity.contains("sleeps"), "{error}");
    assert!(error.to_string().contains("was started by spawn"), "{error}");
}

#[test]
fn executable_with_an_invalid_hello_is_ended() {
    // An invalid frame, a frame of excessive length, half a hello, and a hello of another process.
    let hello = r"\011\0\0\0\004\001\001\001\001\001\001\001\001\0";
    for (words, expected) in [
        ("nonsense-nonsense", "no frame of kind"),
        (r"\377\377\377\377\007", "4294967295 bytes"),
        (r"\002\0\0\0\004\001\001", "malformed Hello"),
        (hello, "not the process that was started"),
    ] {
        let folder = Folder::new("nonsense");
        let program = folder.0.join("nonsense");
        let find_socket = "fd=${MP_CHILD#v1:}\nfd=${fd%%:*}\n";
        let script = format!("#!/bin/bash\n{find_socket}printf '{words}' >&$fd\nexec sleep 120\n");
        write_program(&program, script.as_bytes());
        let context = start_processes(no_op, (), SpawnOptions::nprocs(1).executable(&program)).unwrap();
        let error = failure(&context);
        assert!(matches!(&error, SpawnError::Protocol { who, .. } if who.rank == Some(0)), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn missing_executable_is_a_start_error() {
    let error =
        start_processes(no_op, (), SpawnOptions::nprocs(3).executable("/no/such/program")).unwrap_err();
    let SpawnError::Launch(launch) = &error else { panic!("unexpected: {error:?}") };
    assert_eq!(launch.source.kind(), std::io::ErrorKind::NotFound);
    assert!(error.to_string().contains(" of /no/such/program failed"), "{error}");
}

#[test]
fn same_build_under_another_path_is_accepted() {
    fn program((): ()) -> Result<std::path::PathBuf, std::io::Error> {
        std::env::current_exe()
    }
    let folder = common::Folder::new("another-path");
    let copy = folder.0.join("the same");
    install(&std::env::current_exe().unwrap(), &copy);
    let ran = mp_spawn::Process::builder().executable(&copy).spawn(program, ()).unwrap().join().unwrap();
    assert_eq!(ran, std::fs::canonicalize(&copy).unwrap());
}

/// Checks that a command with an additional argument has started this program.
fn by_a_command((): ()) -> Result<Vec<bool>, SpawnError> {
    let mut seen = vec![std::env::args().any(|arg| arg == "by-a-command")];
    // The child of this process is started in the same way.
    if mp_spawn::name() != Some("last") {
        let next = mp_spawn::Process::builder().name("last").spawn(by_a_command, ())?;
        seen.extend(next.join()?);
    }
    Ok(seen)
}

#[test]
fn command_with_arguments_is_inherited() {
    let mut running = Running::helper(&std::env::current_exe().unwrap(), "helper_sets_a_command");
    wait_for(&mut running, "helper: [true, true] [true, true] [false, false]");
    running.succeeds();
}

#[test]
#[ignore = "part of another test"]
fn helper_sets_a_command() {
    let start =
        |method| mp_spawn::Process::builder().start_method(method).spawn(by_a_command, ()).unwrap().join();
    let program = std::env::current_exe().unwrap();
    mp_spawn::set_command([program.as_os_str(), "by-a-command".as_ref()]);
    let spawned = start(StartMethod::Spawn).unwrap();
    let forked = start(StartMethod::ForkServer).unwrap();
    mp_spawn::set_command::<&str>([]);
    // Another command needs another fork server.
    println!("\nhelper: {spawned:?} {forked:?} {:?}", start(StartMethod::ForkServer).unwrap());
}

#[test]
fn command_executes_the_program_indirectly() {
    let program = std::env::current_exe().unwrap().into_os_string();
    let shell = ["sh".into(), "-c".into(), "exec \"$0\" by-a-command".into(), program.clone()];
    // Without a shell: `/proc/self/exe` is then the loader.
    let loader = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"].map(Path::new);
    let loader = loader.into_iter().find(|path| path.exists());
    let through_loader = loader.map(|path| vec![path.into(), program, "by-a-command".into()]);
    if through_loader.is_none() {
        mp_harness::skip("the loader is nowhere");
    }
    for command in [Some(shell.to_vec()), through_loader].into_iter().flatten() {
        let child =
            mp_spawn::Process::builder().name("last").command(&command).spawn(by_a_command, ()).unwrap();
        assert_eq!(child.join().unwrap(), [true], "{command:?}");
    }
}

/// No command executes the program before all commands run. So a start that waited for its own process would
/// wait forever.
#[test]
fn starts_of_all_ranks_of_a_group_overlap() {
    const RANKS: usize = 4;
    let folder = Folder::new("overlap");
    let script = "touch \"$1/$$\"; while [ $(ls \"$1\" | wc -l) -lt 4 ]; do sleep 0.01; done; exec \"$0\"";
    let command: [std::ffi::OsString; 5] = [
        "sh".into(),
        "-c".into(),
        script.into(),
        std::env::current_exe().unwrap().into(),
        folder.0.clone().into(),
    ];
    let options = SpawnOptions::nprocs(RANKS).command(&command);
    let context = start_processes(no_op, (), options).unwrap();
    join(&context).unwrap();
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), RANKS);
}

/// Under the loader, the running program is the loader, according to the kernel.
#[test]
fn workers_run_through_the_parents_dynamic_loader() {
    let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"].map(Path::new);
    let Some(loader) = loaders.into_iter().find(|path| path.exists()) else {
        mp_harness::skip("the loader is nowhere");
        return;
    };
    let program = std::env::current_exe().unwrap();
    // A relative path, which is invalid in the working directory of the program.
    let relative = Path::new(".").join(program.file_name().unwrap());
    for (options, path) in
        [(&[][..], &program), (&["--library-path", "/nowhere", "--argv0", "it"], &relative)]
    {
        let mut command = Command::new(loader);
        command.args(options).arg(path).current_dir(program.parent().unwrap());
        command.args([
            "--exact",
            "helper_starts_workers_under_the_loader",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env("LOADERS_OPTIONS", options.len().to_string());
        let mut running = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        wait_for(&mut running, "helper: under the loader, and named");
        running.succeeds();
    }
}

#[test]
#[ignore = "part of another test"]
fn helper_starts_workers_under_the_loader() {
    /// Returns the number of words of this process's command line, and the program that the kernel has
    /// executed.
    fn how(_: usize, (): ()) -> std::io::Result<(usize, std::path::PathBuf)> {
        let words = std::fs::read("/proc/self/cmdline")?.split(|byte| *byte == 0).count() - 1;
        Ok((words, std::fs::read_link("/proc/self/exe")?))
    }
    std::env::set_current_dir("/").unwrap();
    let options: usize = std::env::var("LOADERS_OPTIONS").unwrap().parse().unwrap();
    let me = std::fs::read_link("/proc/self/exe").unwrap();
    for method in [StartMethod::Spawn, StartMethod::ForkServer] {
        let workers = start_processes(how, (), SpawnOptions::nprocs(2).start_method(method)).unwrap();
        for (words, program) in workers.join().unwrap() {
            assert_eq!(
                (words, &program),
                (if cfg!(target_feature = "crt-static") { 1 } else { options + 2 }, &me)
            );
        }
    }
    // A program that is named explicitly is executed directly.
    let own = std::fs::read("/proc/self/maps").unwrap();
    let own = String::from_utf8_lossy(&own);
    let own =
        own.lines().find_map(|line| line.split_once("/launching-").map(|_| &line[line.find('/').unwrap()..]));
    mp_spawn::set_executable(own.map(Into::into));
    let (_, program) = start_processes(how, (), SpawnOptions::nprocs(1)).unwrap().join().unwrap().remove(0);
    assert_eq!(Some(program.to_str().unwrap()), own);
    println!("\nhelper: under the loader, and named");
}

#[test]
fn missing_command_is_a_start_error() {
    let options = || SpawnOptions::nprocs(2);
    let error = start_processes(no_op, (), options().command(["mp-no-such-program", "x"])).unwrap_err();
    let SpawnError::Launch(launch) = &error else { panic!("unexpected: {error:?}") };
    assert_eq!(launch.source.kind(), std::io::ErrorKind::NotFound);
    assert!(
        error.to_string().contains("mp-no-such-program failed: it is in none of the directories"),
        "{error}"
    );
    let error = start_processes(no_op, (), options().command(["a\0b"])).unwrap_err();
    assert!(matches!(error, SpawnError::Launch(_)), "{error:?}");
}

#[test]
fn uninitialized_worker_starts_no_process() {
    let mut running =
        Running::helper(&std::env::current_exe().unwrap(), "helper_with_a_token_starts_no_process");
    wait_for(&mut running, "helper: refused");
    running.succeeds();
}

#[test]
#[ignore = "part of another test"]
#[allow(unsafe_code)]
fn helper_with_a_token_starts_no_process() {
    // SAFETY: the harness waits for its one test and reads no variables meanwhile.
    unsafe { std::env::set_var("MP_CHILD", "v1:3:1:0") };
    let error = start_processes(no_op, (), SpawnOptions::nprocs(1)).unwrap_err();
    assert!(matches!(error, SpawnError::NotInitialised), "{error:?}");
    assert!(error.to_string().contains("mp::init() must run first"), "{error}");
    println!("\nhelper: refused");
}

#[test]
fn program_with_a_forged_token_becomes_no_worker() {
    for token in ["nonsense", "v1:999:1:0", "v1:0:1:0"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .arg("--list")
            .env("MP_CHILD", token)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{token}: {output:?}");
        assert!(text.contains("was started as a worker and can't be one"), "{token}: {text}");
    }
}

#[test]
fn program_with_a_foreign_token_becomes_no_worker() {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .arg("--list")
        .env("MP_CHILD", "v1:0:1:0")
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(text.contains("does not lead to process 1"), "{text}");
    drop(ours);
}

#[test]
fn worker_output_without_a_newline_is_kept() {
    let mut running = Running::helper(&std::env::current_exe().unwrap(), "helper_prints_half_a_line");
    wait_for(&mut running, "half a line, and the rest");
    running.succeeds();
}

#[test]
#[ignore = "part of another test"]
fn helper_prints_half_a_line() {
    let worker = |_: usize, (): ()| -> Outcome {
        print!("\nhalf a line");
        Ok(())
    };
    join(&start_processes(worker, (), SpawnOptions::nprocs(1)).unwrap()).unwrap();
    println!(", and the rest");
}
