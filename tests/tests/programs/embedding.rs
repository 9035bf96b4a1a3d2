//! Programs in other languages that use a shared library which starts processes: programs in C that load or
//! link it, and Python.
//!
//! The library and its hosts are in `tests/library`. Each command of the library has a name.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

const DEADLINE: Duration = Duration::from_secs(60);
/// Output of the library for the command `everything`.
const EVERYTHING: &str = "embedded: squares [10, 11, 14]
embedded: closures [\"zero 12\", \"one 12\"]
embedded: queue 6 42
embedded: pool [0, 1, 8, 27, 64]
embedded: nested [1, 2]
embedded: failure told
embedded: failure told
embedded: exit Err(true)
";

/// Output before [`EVERYTHING`] if the library forks its host.
const COPIED: &str = "embedded: copied 7\n";

/// Builds an example with `cargo`, and returns the path of the library of this name.
fn make(words: &[&str], name: &str) -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Cargo has set these variables for this package. With them, build scripts would run again, and running
    // programs would be replaced.
    let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
        cargo.env_remove(name);
    }
    let (command, more) = words.split_first().unwrap();
    cargo.args([command, "--quiet", "--offline", "--package", "mp-tests", "--message-format=json"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.args(more).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let messages = String::from_utf8(output.stdout).unwrap();
    let mut words = messages.split('"');
    words.find(|word| word.ends_with(name)).expect("no library was made").into()
}

/// Returns the library, built on first use.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| make(&["build", "--example", "embedded"], "/libembedded.so"))
}

/// Programs in Rust that are linked with mp as a shared library.
struct Shared {
    folder: Folder,
    library: PathBuf,
    /// Path of the shared standard library.
    standard: PathBuf,
}

impl Shared {
    fn new(test: &str) -> Shared {
        let library =
            make(&["rustc", "--example", "mp_shared", "--", "-C", "prefer-dynamic"], "/libmp_shared.so");
        let output = Command::new("rustc").args(["--print", "target-libdir"]).output().unwrap();
        let standard = String::from_utf8(output.stdout).unwrap().trim().into();
        Shared { folder: Folder::new(test), library, standard }
    }

    /// Compiles a source that is linked with the shared library.
    fn compile(&self, kind: &str, source: &str, result: &str) -> PathBuf {
        let folder = self.library.parent().unwrap();
        let path = self.folder.0.join(result);
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition", "2024", "-C", "prefer-dynamic", "--crate-type", kind, "-o"]).arg(&path);
        rustc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("library").join(source));
        rustc.arg("--extern").arg(format!("mp_shared={}", self.library.display()));
        rustc.arg("-L").arg(format!("dependency={}", folder.parent().unwrap().join("deps").display()));
        assert!(rustc.status().unwrap().success());
        path
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let folder = self.library.parent().unwrap();
        command.env("LD_LIBRARY_PATH", std::env::join_paths([folder, &self.standard]).unwrap());
        command
    }
}

/// Folder of a test, which is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("mp-embedding-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Compiles a host, and returns its path.
    fn host(&self, source: &str, more: &[&str]) -> PathBuf {
        let program = self.0.join("host");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("library").join(source);
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Werror", "-o"]).args([&program, &source]).args(more);
        assert!(compiler.status().expect("a C compiler").success());
        program
    }

    /// Copies the library into the folder at the first call. Returns the path of the copy.
    fn library(&self) -> PathBuf {
        let path = self.0.join("libembedded.so");
        std::fs::copy(library(), &path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Running host, which is killed on drop.
struct Host {
    child: Child,
    /// Output of the host that the test has not read yet.
    said: Vec<u8>,
}

impl Host {
    fn start(command: &mut Command) -> Host {
        command.env("RUST_BACKTRACE", "0").stdin(Stdio::piped()).stdout(Stdio::piped());
        Host { child: command.spawn().unwrap(), said: Vec::new() }
    }

    /// Waits for more output. Returns `false` at the end of the output.
    fn hear(&mut self) -> bool {
        let stdout = self.child.stdout.as_mut().unwrap();
        let time = Timespec { tv_sec: DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
        let said = String::from_utf8_lossy(&self.said);
        assert_eq!(
            poll(&mut [PollFd::new(stdout, PollFlags::IN)], Some(&time)),
            Ok(1),
            "no more output after {said:?}"
        );
        let mut more = [0; 4096];
        let count = stdout.read(&mut more).unwrap();
        self.said.extend_from_slice(&more[..count]);
        count > 0
    }

    /// Reads until a process prints `word`, and returns the output before it.
    fn wait_for(&mut self, word: &str) -> String {
        loop {
            let said = String::from_utf8_lossy(&self.said).into_owned();
            if let Some((before, after)) = said.split_once(&format!("{word}\n")) {
                self.said = after.into();
                return before.to_string();
            }
            assert!(self.hear(), "no {word:?} in {said:?}");
        }
    }

    fn notify(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    /// Reads the rest of the output, and waits for the end of the host.
    fn end(mut self) -> (String, ExitStatus) {
        while self.hear() {}
        let said = String::from_utf8_lossy(&self.said).into_owned();
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (said, status);
            }
            assert!(Instant::now() < until, "the host still runs, after the output {said:?}");
            // sleep: another process gives no event
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a host to its successful end. Returns its output and the output of its workers.
fn run(command: &mut Command) -> String {
    let (said, status) = Host::start(command).end();
    assert!(status.success(), "{status}: {said}");
    said
}

/// Sets the command by which the library starts processes, in environment variables.
fn with_command(host: &mut Command, words: &[&str]) {
    for (n, word) in words.iter().enumerate() {
        host.env(format!("EMBEDDED_COMMAND_{n}"), word);
    }
}

#[test]
fn library_in_a_c_program_supports_all_features() {
    let folder = Folder::new("loaded");
    let host = folder.host("host.c", &["-ldl"]);
    for (what, first) in [("everything", ""), ("fork server", ""), ("fork", COPIED)] {
        let said = run(Command::new(&host).arg(library()).arg(what));
        // The `main` of the host has run once, and in no worker.
        assert_eq!(said, format!("host: main\n{first}{EVERYTHING}host: still loaded\n"), "{what}");
    }
}

#[test]
fn worker_finds_library_that_has_a_relative_path() {
    let folder = Folder::new("relative");
    let host = folder.host("host.c", &["-ldl"]);
    folder.library();
    std::fs::create_dir(folder.0.join("elsewhere")).unwrap();
    let mut command = Command::new(&host);
    // The loader searches the directory that the variable names. The program runs in another directory.
    command.current_dir(folder.0.join("elsewhere")).args(["../libembedded.so", "one"]);
    assert!(run(&mut command).contains("embedded: [5, 6]\n"));
    let mut command = Command::new(&host);
    command.current_dir(&folder.0).env("LD_LIBRARY_PATH", ".").args(["libembedded.so", "one"]);
    assert!(run(&mut command).contains("embedded: [5, 6]\n"));
}

#[test]
fn linked_program_needs_no_command() {
    let folder = Folder::new("linked");
    let path = folder.library();
    let run_path = format!("-Wl,-rpath,{}", folder.0.display());
    let host = folder.host("linked.c", &[path.to_str().unwrap(), &run_path]);
    assert_eq!(run(&mut Command::new(&host)), EVERYTHING);
    // If a command starts the host, the host becomes a worker when its `main` calls the library.
    let mut command = Command::new(&host);
    with_command(&mut command, &[host.to_str().unwrap()]);
    assert_eq!(run(command.arg("by a command")), EVERYTHING);
}

#[test]
fn python_host_starts_workers() {
    let python = std::env::var("MP_PYTHON").unwrap_or_else(|_| "python3".to_string());
    let path = library().to_str().unwrap();
    let load = format!("import ctypes, sys; library = ctypes.CDLL({path:?})");
    let has_ctypes = Command::new(&python).args(["-c", "import ctypes"]).stderr(Stdio::null()).status();
    if !has_ctypes.is_ok_and(|status| status.success()) {
        mp_harness::skip(format_args!("there is no {python} with ctypes"));
        return;
    }
    let host = |what: &str| {
        let mut command = Command::new(&python);
        command.args(["-c", &format!("{load}; sys.exit(library.embedded_run({what:?}.encode()))")]);
        command
    };
    for (what, first) in [("everything", ""), ("fork server", ""), ("fork", COPIED)] {
        assert_eq!(run(&mut host(what)), format!("{first}{EVERYTHING}"), "{what}");
    }
    // Python calls the library from another thread, which can't fork workers.
    let mut command = Command::new(&python);
    let run_in_thread = "threading.Thread(target=library.embedded_run, args=[b'fork'])";
    command.args(["-c", &format!("{load}; import threading; t = {run_in_thread}; t.start(); t.join()")]);
    assert_eq!(run(&mut command), format!("{COPIED}{EVERYTHING}"));
    // The interpreter can also start the workers itself.
    let mut command = host("by a command");
    with_command(&mut command, &[&python, "-c", &format!("{load}; library.mp_child_main()")]);
    assert_eq!(run(&mut command), EVERYTHING);
}

/// The host is linked with its own copy of this library. Workers that the host starts belong to the host's
/// copy, and workers that the loaded library starts belong to the library's copy.
#[test]
fn two_library_copies_start_their_own_workers() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "embedding::helper_loads_the_library",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    let said = run(command.env("EMBEDDED_LIBRARY", library()));
    assert_eq!(said.matches(EVERYTHING).count(), 1, "{said}");
    assert_eq!(said.matches("helper: [0, 2]").count(), 2, "{said}");
}

#[test]
#[ignore = "part of another test"]
#[allow(unsafe_code)]
fn helper_loads_the_library() {
    let own = || mp::spawn(|rank: usize, factor: usize| Ok::<_, String>(rank * factor), 2, 2).unwrap();
    println!("\nhelper: {:?}", own());
    let path = std::env::var("EMBEDDED_LIBRARY").unwrap();
    let path = std::ffi::CString::new(path).unwrap();
    // SAFETY: a C string.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    // SAFETY: a library that is loaded, and a C string.
    let run = unsafe { libc::dlsym(library, c"embedded_run".as_ptr()) };
    // SAFETY: the library's function has this type.
    let run =
        unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn(*const libc::c_char) -> i32>(run) };
    assert_eq!(run(c"everything".as_ptr()), 0);
    println!("helper: {:?}", own());
}

#[test]
fn program_without_hook_becomes_a_worker_by_init() {
    let shared = Shared::new("init");
    let host = shared.compile("bin", "rust_host.rs", "host");
    let said = run(&mut shared.command(&host));
    // There are five workers, in which `main` begins and only reaches `init`.
    assert_eq!(said.matches("host: begins\n").count(), 6, "{said}");
    assert_eq!(said.matches("host: main\n").count(), 1, "{said}");
    assert!(said.contains("host: [1, 2, 5]\n") && said.ends_with("host: [5, 6]\n"), "{said}");
    // Workers that don't call `init` start no processes themselves.
    let said = run(shared.command(&host).arg("workers without init"));
    assert_eq!(said.matches("has not become one: mp::init() must run first").count(), 1, "{said}");
    assert_eq!(said.matches("exited with code 0 before it reported as a worker").count(), 1, "{said}");
}

#[test]
fn worker_finds_functions_of_a_late_loaded_library() {
    let shared = Shared::new("plugin");
    let host = shared.compile("bin", "rust_host.rs", "host");
    let plugin = shared.compile("cdylib", "plugin.rs", "libplugin.so");
    let said = run(shared.command(&host).arg(&plugin));
    assert_eq!(said.matches("host: main\n").count(), 1, "{said}");
    assert!(said.ends_with("plugin: [1, 2, 9]\n"), "{said}");
}

#[test]
fn host_programs_become_workers_by_command() {
    let folder = Folder::new("command");
    let host = folder.host("host.c", &["-ldl"]);
    let mut command = Command::new(&host);
    let words = [host.to_str().unwrap(), library().to_str().unwrap(), "--worker"];
    with_command(&mut command, &words);
    let said = run(command.arg(library()).arg("by a command"));
    assert_eq!(said, format!("host: main\n{EVERYTHING}host: still loaded\n"));
}

#[test]
fn command_without_a_worker_is_an_error() {
    let folder = Folder::new("no-command");
    let host = folder.host("host.c", &["-ldl"]);
    for (words, expected) in [
        (&["mp-no-such-program"][..], "mp-no-such-program failed: it is in none of the directories of PATH"),
        (&["/no/such/program"], "/no/such/program failed"),
        (&["true"], "exited with code 0 before it reported as a worker"),
        (&["false"], "exited with code 1 before it reported as a worker"),
        (&["sleep", "100"], "did not report within 300ms"),
    ] {
        let mut command = Command::new(&host);
        with_command(&mut command, words);
        let said = run(command.arg(library()).arg("by a command that makes none"));
        assert!(said.contains("embedded: failed: ") && said.contains(expected), "{words:?}: {said}");
    }
}

#[test]
fn replaced_or_deleted_library_is_refused() {
    let folder = Folder::new("replaced");
    let host = folder.host("host.c", &["-ldl"]);
    let words = [host.to_str().unwrap(), "LIBRARY", "--worker"];
    // With and without a command.
    for (command, other, expected) in [
        (false, true, "was replaced by another build since this program has loaded it: build-id "),
        (false, false, "was it deleted since this program has loaded it?"),
        (true, true, "the child runs another build: build-id "),
        (true, false, "before it reported as a worker"),
    ] {
        let path = folder.library();
        let bytes = std::fs::read(&path).unwrap();
        let note = b"\x03\0\0\0GNU\0";
        let Some(place) = bytes.windows(note.len()).position(|window| window == note) else {
            mp_harness::skip("the linker writes no build-id");
            return;
        };
        let mut program = Command::new(&host);
        if command {
            with_command(
                &mut program,
                &words.map(|word| if word == "LIBRARY" { path.to_str().unwrap() } else { word }),
            );
        }
        let mut host =
            Host::start(program.arg(&path).arg(if command { "by a command when told" } else { "when told" }));
        host.wait_for("embedded: ready");
        std::fs::remove_file(&path).unwrap();
        if other {
            let mut bytes = bytes;
            bytes[place + note.len()] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
        host.notify();
        let (said, status) = host.end();
        assert!(said.contains("embedded: failed: ") && said.contains(expected), "{status}: {said}");
    }
}

#[test]
fn path_unusable_for_the_loader_is_an_error() {
    let folder = Folder::new("blank");
    let host = folder.host("host.c", &["-ldl"]);
    let path = folder.0.join("a library.so");
    std::fs::copy(library(), &path).unwrap();
    let (said, _) = Host::start(Command::new(&host).arg(&path).arg("one")).end();
    assert!(
        said.contains("where blanks and colons are separators") && said.contains("set_command"),
        "{said}"
    );
}

#[test]
fn token_of_another_program_starts_nothing() {
    let folder = Folder::new("tokens");
    let host = folder.host("host.c", &["-ldl"]);
    // No token, the token of another program, and the token of another build of the library.
    for (token, code) in [(None, 0), (Some("v1:0:1:0"), 1), (Some("v1:0:1:0:load:0"), 1)] {
        let mut command = Command::new(&host);
        command.env_remove("MP_CHILD").envs(token.map(|token| ("MP_CHILD", token)));
        let (said, status) = Host::start(command.arg(library()).arg("--worker")).end();
        assert_eq!((said, status.code()), (format!("host: no worker, {code}\n"), Some(code)), "{token:?}");
    }
    // While the environment has a token that was not taken, whatever program it is for, this process is
    // expected to become a worker.
    for token in ["v1:0:1:0", "v1:0:1:0:call", "v1:0:1:0:load:0"] {
        let (said, status) =
            Host::start(Command::new(&host).env("MP_CHILD", token).arg(library()).arg("one")).end();
        assert!(said.contains("this process was started as a worker and has not become one"), "{said}");
        assert_eq!(status.code(), Some(1), "{said}");
    }
}

#[test]
fn library_that_started_a_process_stays_loaded() {
    let folder = Folder::new("stays");
    let host = folder.host("host.c", &["-ldl"]);
    let mut host = Host::start(Command::new(&host).arg(library()).arg("one that stays"));
    // The host has closed the library, whose thread still waits for the process.
    assert_eq!(host.wait_for("host: still loaded"), "host: main\nembedded: process-1\n");
    host.notify();
    let (said, status) = host.end();
    assert!(status.success() && said.is_empty(), "{status}: {said}");
}
