//! Session for tests: a separate engine, and the environment of its clients.

use crate::sync::{AtomicU64, Ordering};
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::Value as Json;

use crate::wire::{self, Call, Reply, Request, Value};

/// Time limit for the start and the end of an engine.
const LIMIT: Duration = Duration::from_secs(30);

/// Mistake of a program that the engine found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Kind of the mistake: `race`, `fault`, `unwritten`, `out-of-bounds`, `left`, `refused`,
    /// `destroyed-with-work`, `event-over`, `freed-while-open`, `unknown-kernel` or `stuck`.
    pub kind: String,
    /// Id of the process that made the mistake.
    pub pid: u32,
    /// Description of the mistake.
    pub text: String,
    /// Complete finding as JSON. A race contains both operations, with backtraces if the clients had the
    /// variable `MP_CUDA_SIM_BACKTRACE`.
    pub line: String,
}

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct Setup {
    engine: PathBuf,
    library: PathBuf,
    settings: Vec<(String, String)>,
    hidden: Vec<String>,
}

impl Setup {
    /// Creates settings from the paths of the two files that `cargo build -p mp-cuda-sim` builds:
    /// `mp-cuda-sim-engine` and `libmp_cuda_sim.so`.
    #[must_use]
    pub fn new(engine: &Path, library: &Path) -> Self {
        Self {
            engine: engine.to_owned(),
            library: library.to_owned(),
            settings: Vec::new(),
            hidden: Vec::new(),
        }
    }

    /// Sets a setting of the engine: `PROFILE`, `MEMORY`, `SEED`, `LAZY_MS`, `LATE_MS`, `EVENTS`, `STUCK_MS`,
    /// `LOST_AFTER`.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((format!("MP_CUDA_SIM_{name}"), value.to_string()));
        self
    }

    /// Hides the driver function with this name from the session's programs.
    #[must_use]
    pub fn hide(mut self, symbol: &str) -> Self {
        self.hidden.push(symbol.to_owned());
        self
    }

    /// Starts the session.
    ///
    /// # Errors
    /// Errors of system calls, and an engine that doesn't start.
    pub fn start(&self) -> io::Result<Session> {
        if std::env::var_os(AS_IT_IS).is_some() {
            let profile = self.settings.iter().find(|(name, _)| name == "MP_CUDA_SIM_PROFILE");
            let without = profile.map(|(_, profile)| profile.clone());
            return Ok(Session { engine: None, folder: PathBuf::new(), without });
        }
        // The folder's name is unique among the sessions of this program and of other processes.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("mp-cuda-sim-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        let libraries = folder.join("lib");
        std::fs::create_dir_all(&libraries)?;
        for name in ["libcuda.so.1", "libcuda.so"] {
            if self.hidden.is_empty() {
                std::os::unix::fs::symlink(&self.library, libraries.join(name))?;
            } else {
                std::fs::write(libraries.join(name), self.without_hidden()?)?;
            }
        }
        let mut engine = Command::new(&self.engine);
        engine.arg(&folder).envs(self.settings.iter().map(|(name, value)| (name, value)));
        let mut engine = engine.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = engine.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let session = Session { engine: Some(engine), folder, without: None };
        if line == "ready\n" { Ok(session) } else { Err(io::Error::other("the engine didn't begin")) }
    }

    /// Returns the bytes of the library, with the names of hidden functions replaced.
    fn without_hidden(&self) -> io::Result<Vec<u8>> {
        let mut bytes = std::fs::read(&self.library)?;
        for symbol in &self.hidden {
            let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
            let mut found = false;
            let mut from = 0;
            while let Some(at) = bytes[from..].windows(name.len()).position(|window| window == name) {
                bytes[from + at + 1] = b'?';
                from += at + name.len() - 1;
                found = true;
            }
            if !found {
                return Err(io::Error::other(format!("the library has no {symbol} to hide")));
            }
        }
        Ok(bytes)
    }
}

/// Environment variable that makes tests use the existing driver, of a GPU or of an outer session. Tests then
/// start no session, regardless of their settings.
pub const AS_IT_IS: &str = "MP_CUDA_AS_IT_IS";

/// Running engine. Dropping the session ends the engine, and frees all its resources.
#[derive(Debug)]
pub struct Session {
    /// Process of the engine. `None` with [`AS_IT_IS`]: then the session has no statistics and no findings.
    engine: Option<Child>,
    folder: PathBuf,
    /// Features that the requested profile lacks. `mp-cuda` treats them as missing on the existing device.
    /// Set only with [`AS_IT_IS`].
    without: Option<String>,
}

impl Session {
    /// Returns `true` if the session has statistics and findings. Returns `false` with [`AS_IT_IS`].
    #[must_use]
    pub fn has_figures(&self) -> bool {
        self.engine.is_some()
    }

    /// Returns the environment of a client: the folder of the library, and the engine's socket. With
    /// [`AS_IT_IS`], returns the existing values, and the features that `mp-cuda`, built with `inject`,
    /// assumes the device to lack.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        if self.engine.is_none() {
            let own = |name| (name, PathBuf::from(std::env::var_os(name).unwrap_or_default()));
            let without = PathBuf::from(self.without.as_deref().unwrap_or_default());
            return vec![own("LD_LIBRARY_PATH"), own("MP_CUDA_SIM"), ("MP_CUDA_WITHOUT", without)];
        }
        vec![("LD_LIBRARY_PATH", self.folder.join("lib")), ("MP_CUDA_SIM", self.folder.join("engine"))]
    }

    /// Adds the [environment of a client](Self::environment) to a command.
    pub fn prepare(&self, client: &mut Command) {
        client.envs(self.environment());
    }

    fn ask(&self, call: Call) -> io::Result<Value> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(self.folder.join("engine"))?)?;
        wire::send(socket.as_fd(), &Request { context: 0, capture_mode: 0, trace: None, call }, None)?;
        let (reply, _) = wire::receive::<Reply>(&socket)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(reply.value)
    }

    /// Returns statistics: `bytes` (of each device), `processes`, `leaving` (dead, with work that continues),
    /// `streams`, `queued`, `exports`, `calls`, `findings`, `events` (made), `opened-events` (of other
    /// processes), `handles`, `reserved`.
    ///
    /// # Errors
    /// Returns an error if the engine has ended.
    pub fn stats(&self) -> io::Result<Json> {
        if self.engine.is_none() {
            let none = ["bytes", "processes", "leaving", "streams", "queued", "exports", "calls", "findings"];
            return Ok(none
                .into_iter()
                .chain(["events", "opened-events", "handles", "reserved"])
                .map(|name| (name.to_owned(), Json::from(0)))
                .collect());
        }
        match self.ask(Call::Stats)? {
            Value::Text(text) => serde_json::from_str(&text).map_err(io::Error::other),
            _ => Err(io::Error::other("no answer")),
        }
    }

    /// Simulates the loss of a device (it falls off the bus): from now on, all calls of its contexts return
    /// an error.
    ///
    /// # Errors
    /// Returns an error if the engine has ended.
    pub fn lose(&self, device: u32) -> io::Result<()> {
        self.ask(Call::Lose { device }).map(|_| ())
    }

    /// Returns the findings that the engine has reported so far.
    ///
    /// # Errors
    /// Returns an error if the file can't be read.
    pub fn findings(&self) -> io::Result<Vec<Finding>> {
        if self.engine.is_none() {
            return Ok(Vec::new());
        }
        let text = std::fs::read_to_string(self.folder.join("findings"))?;
        let read = |line: &str| {
            let json: Json = serde_json::from_str(line).map_err(io::Error::other)?;
            let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
            let pid = json["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
            Ok(Finding { kind: text("kind"), pid, text: text("text"), line: line.to_owned() })
        };
        // Excludes a line that the engine is still writing, which has no end yet.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(read).collect()
    }

    /// Returns the id of the engine's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.engine.as_ref().map_or(0, Child::id)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(engine) = &mut self.engine else { return };
        drop(engine.stdin.take());
        let until = Instant::now() + LIMIT;
        while matches!(engine.try_wait(), Ok(None)) {
            if Instant::now() >= until {
                _ = engine.kill();
                _ = engine.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        _ = std::fs::remove_dir_all(&self.folder);
    }
}
