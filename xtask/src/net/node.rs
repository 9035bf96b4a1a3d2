//! Processes on the hosts.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Line of a node's output.
#[derive(Clone)]
pub(super) struct Line {
    /// Time in microseconds of the monotonic clock.
    pub(super) at: i64,
    pub(super) text: String,
}

#[derive(Default)]
struct Output {
    lines: Mutex<(Vec<Line>, bool)>,
    changed: Condvar,
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, (Vec<Line>, bool)> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, from: impl Read) {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let timed = line.split_once(' ').and_then(|(at, text)| Some((at.parse().ok()?, text)));
            let (at, text) = timed.unwrap_or((now(), &line));
            self.lock().0.push(Line { at, text: text.to_owned() });
            self.changed.notify_all();
        }
        self.lock().1 = true;
        self.changed.notify_all();
    }
}

/// Returns the time of the monotonic clock in microseconds.
pub(super) fn now() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

/// A process on a host.
pub(super) struct Node {
    pub(super) name: String,
    child: RefCell<Child>,
    input: RefCell<Option<ChildStdin>>,
    output: Arc<Output>,
}

impl Node {
    /// Starts the program of a command.
    pub(super) fn start(name: String, mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("{name}: {e}"))?;
        let output = Arc::new(Output::default());
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        if let (Some(stdout), Some(stderr)) = (stdout, stderr) {
            let (events, errors) = (output.clone(), output.clone());
            std::thread::spawn(move || events.read(stdout));
            std::thread::spawn(move || {
                BufReader::new(stderr).lines().map_while(Result::ok).for_each(|text| {
                    errors.lock().0.push(Line { at: now(), text: format!("stderr {text}") });
                });
            });
        }
        let input = RefCell::new(child.stdin.take());
        Ok(Self { name, child: RefCell::new(child), input, output })
    }

    /// Blocks until `check` returns a value for the lines so far.
    pub(super) fn wait<R>(
        &self,
        what: &str,
        limit: Duration,
        check: impl Fn(&[Line]) -> Option<R>,
    ) -> Result<R, String> {
        let since = Instant::now();
        let mut lines = self.output.lock();
        loop {
            if let Some(result) = check(&lines.0) {
                return Ok(result);
            }
            if lines.1 {
                return Err(format!("{} ended before `{what}`", self.name));
            }
            let Some(left) = limit.checked_sub(since.elapsed()) else {
                return Err(format!("{}: no `{what}` within {limit:?}", self.name));
            };
            lines = self.output.changed.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Blocks until `count` lines that begin with this word were printed after a time. Returns the time of
    /// the last of these lines.
    pub(super) fn wait_for(
        &self,
        word: &str,
        (count, after): (usize, i64),
        limit: Duration,
    ) -> Result<i64, String> {
        self.wait(word, limit, |lines| {
            let is_one = |line: &&Line| line.at >= after && begins(&line.text, word);
            lines.iter().filter(is_one).nth(count.saturating_sub(1)).map(|line| line.at)
        })
    }

    /// Ends the input of the process, and blocks until it has ended by itself.
    pub(super) fn finish(&self, limit: Duration) -> Result<(), String> {
        drop(self.input.take());
        self.wait("end", limit, |lines| lines.iter().any(|line| line.text == "end").then_some(()))?;
        self.reap();
        Ok(())
    }

    /// Blocks until the process has ended by itself.
    pub(super) fn join(&self, limit: Duration) -> Result<(), String> {
        self.wait("end", limit, |lines| lines.iter().any(|line| line.text == "end").then_some(()))?;
        self.reap();
        Ok(())
    }

    /// Blocks until the process has ended by itself, and returns an error unless it reports success.
    pub(super) fn wait_for_success(&self, limit: Duration) -> Result<(), String> {
        let ended = self.output.changed.wait_timeout_while(self.output.lock(), limit, |output| !output.1);
        if ended.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            return Err(format!("{} does not end within {limit:?}", self.name));
        }
        let status = self.child.borrow_mut().wait().map_err(|e| format!("{}: {e}", self.name))?;
        if status.success() { Ok(()) } else { Err(format!("{}: {status}", self.name)) }
    }

    fn reap(&self) {
        // This wait is short: the process has closed its output or was killed.
        _ = self.child.borrow_mut().wait();
    }

    /// Returns `true` as long as the output has not ended.
    pub(super) fn is_running(&self) -> bool {
        !self.output.lock().1
    }

    /// Returns all lines so far.
    pub(super) fn lines(&self) -> Vec<Line> {
        self.output.lock().0.clone()
    }

    /// Returns the numbers of lines with this first word, and their times.
    pub(super) fn numbers(&self, word: &str) -> Vec<(u64, i64)> {
        let number = |line: &Line| line.text.split(' ').nth(1).and_then(|number| number.parse().ok());
        let lines = self.output.lock();
        let of_word = lines.0.iter().filter(|line| begins(&line.text, word));
        of_word.filter_map(|line| Some((number(line)?, line.at))).collect()
    }

    /// Returns the id of the process that runs the program. Wrapper commands have started that process.
    fn pid(&self) -> Result<Pid, String> {
        let outer = self.child.borrow().id();
        let file = format!("/proc/{outer}/task/{outer}/children");
        let children = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
        let pid = children.split(' ').next().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        pid.ok_or_else(|| format!("{} has no process", self.name))
    }

    /// Returns the children of the process: their ids in this namespace, and in the namespace of the host.
    pub(super) fn children(&self) -> Result<Vec<(Pid, u32)>, String> {
        let folder = format!("/proc/{}/task", self.pid()?.as_raw_nonzero());
        let mut children = Vec::new();
        for thread in std::fs::read_dir(&folder).map_err(|e| format!("{folder}: {e}"))?.flatten() {
            let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for pid in text.split_whitespace() {
                // The child may have ended meanwhile.
                let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
                let inner = pids.and_then(|pids| pids.split_whitespace().last()?.parse().ok());
                children.extend(pid.parse().ok().and_then(Pid::from_raw).zip(inner));
            }
        }
        Ok(children)
    }

    fn signal(&self, signal: Signal) -> Result<i64, String> {
        let pid = self.pid()?;
        let at = now();
        kill_process(pid, signal).map_err(|e| format!("{}: {e}", self.name))?;
        Ok(at)
    }

    /// Kills the process, and returns the time.
    pub(super) fn kill(&self) -> Result<i64, String> {
        let at = self.signal(Signal::KILL)?;
        self.reap();
        // Reads the rest of the output, which the pipe keeps after the death.
        self.wait_for_output_end()?;
        Ok(at)
    }

    fn wait_for_output_end(&self) -> Result<(), String> {
        let ended =
            self.output.changed.wait_timeout_while(self.output.lock(), Duration::from_secs(5), |o| !o.1);
        let is_open = ended.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        if is_open { Err(format!("the output of {} does not end", self.name)) } else { Ok(()) }
    }

    /// Stops the process, and returns the time.
    pub(super) fn stop(&self) -> Result<i64, String> {
        self.signal(Signal::STOP)
    }

    /// Continues the process after a stop, and returns the time.
    pub(super) fn resume(&self) -> Result<i64, String> {
        self.signal(Signal::CONT)
    }

    /// Returns the number of TCP connections that the node's host has accepted.
    pub(super) fn accepted(&self) -> Result<u64, String> {
        let file = format!("/proc/{}/net/snmp", self.pid()?.as_raw_nonzero());
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let accepted = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "PassiveOpens");
        let accepted = accepted.and_then(|(_, value)| value.parse().ok());
        accepted.ok_or_else(|| format!("{file} has no PassiveOpens"))
    }

    /// Returns the peak memory of the process in MiB.
    pub(super) fn peak(&self) -> Result<u64, String> {
        let file = format!("/proc/{}/status", self.pid()?.as_raw_nonzero());
        let status = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak.map(|kib| kib / 1024).ok_or_else(|| format!("{file} has no VmHWM"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        _ = self.signal(Signal::KILL);
        _ = self.child.borrow_mut().kill();
        self.reap();
    }
}

/// Returns `true` if a text begins with `word`, which may consist of several words.
pub(super) fn begins(text: &str, word: &str) -> bool {
    text.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}
