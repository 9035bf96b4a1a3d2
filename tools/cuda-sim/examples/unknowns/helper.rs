//! Helper processes of a question: this program, controlled by lines on its standard input and output.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use mp_cuda::driver::api::IpcHandle;
use rustix::process::{Pid, Signal};

use crate::gpu::{Outcome, ProbeError};

#[derive(Debug)]
pub(crate) struct Helper {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

/// Settings of a helper.
#[derive(Debug, Default)]
pub(crate) struct Setting {
    pub(crate) env: Vec<(&'static str, String)>,
    pub(crate) user: Option<u32>,
    pub(crate) program: Option<PathBuf>,
}

impl Helper {
    pub(crate) fn start(role: &str, arguments: &[String]) -> Outcome<Self> {
        Self::start_with(role, arguments, &Setting::default())
    }

    pub(crate) fn start_with(role: &str, arguments: &[String], setting: &Setting) -> Outcome<Self> {
        let program = setting.program.clone().map_or_else(std::env::current_exe, Ok)?;
        let mut command = Command::new(program);
        command.arg("helper").arg(role).args(arguments);
        command.envs(setting.env.iter().map(|(name, value)| (name, value)));
        if let Some(user) = setting.user {
            command.uid(user).gid(user);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take();
        let from = child.stdout.take().ok_or_else(|| ProbeError("no pipe".to_owned()))?;
        Ok(Self { child, to, from: BufReader::new(from) })
    }

    pub(crate) fn say(&mut self, line: &str) -> Outcome {
        if let Some(to) = &mut self.to {
            writeln!(to, "{line}")?;
            to.flush()?;
        }
        Ok(())
    }

    /// Returns the next line.
    pub(crate) fn hear(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err(ProbeError("a helper has ended".to_owned()));
        }
        let line = line.trim_end().to_owned();
        match line.strip_prefix("failed: ") {
            Some(why) => Err(ProbeError(format!("helper: {why}"))),
            None => Ok(line),
        }
    }

    /// Sends a line, and returns the answer.
    pub(crate) fn ask(&mut self, line: &str) -> Outcome<String> {
        self.say(line)?;
        self.hear()
    }

    pub(crate) fn signal(&self, signal: Signal) -> Outcome {
        let pid = i32::try_from(self.child.id())?;
        let pid = Pid::from_raw(pid).ok_or_else(|| ProbeError("no process".to_owned()))?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    /// Waits for the helper's end, and describes its status.
    pub(crate) fn end(&mut self) -> Outcome<String> {
        let status = self.child.wait()?;
        Ok(match status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("exit {}", status.code().unwrap_or(-1)),
        })
    }

    /// Kills the helper, waits for its end, and returns the elapsed time.
    pub(crate) fn kill(&mut self) -> Outcome<Duration> {
        let begin = Instant::now();
        self.signal(Signal::KILL)?;
        self.end()?;
        Ok(begin.elapsed())
    }

    /// Lets the helper end by itself.
    pub(crate) fn close(&mut self) -> Outcome {
        self.to = None;
        self.end().map(drop)
    }
}

impl From<std::num::TryFromIntError> for ProbeError {
    fn from(error: std::num::TryFromIntError) -> Self {
        Self(error.to_string())
    }
}

/// Prints a line in a helper.
pub(crate) fn tell(line: &str) -> Outcome {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

/// Returns the next line in a helper. Fails at the end of the question.
pub(crate) fn heard() -> Outcome<String> {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line)? {
        0 => Err(ProbeError("the question is over".to_owned())),
        _ => Ok(line.trim_end().to_owned()),
    }
}

/// Parses an argument as a number.
pub(crate) fn number<T: std::str::FromStr>(arguments: &[String], at: usize) -> Outcome<T> {
    let text = arguments.get(at).map_or("", String::as_str);
    text.parse().map_err(|_| ProbeError(format!("argument {at} of a helper: {text:?}")))
}

/// Parses the words of a line as numbers.
pub(crate) fn numbers<T: std::str::FromStr>(line: &str) -> Outcome<Vec<T>> {
    let each = line.split_whitespace().map(|word| word.parse().map_err(|_| ProbeError(line.to_owned())));
    each.collect()
}

/// Encodes a handle as text.
pub(crate) fn text(handle: IpcHandle) -> String {
    handle.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes a handle.
pub(crate) fn handle(text: &str) -> Outcome<IpcHandle> {
    let mut bytes = [0; 64];
    for (i, byte) in bytes.iter_mut().enumerate() {
        let digits = text.get(2 * i..2 * i + 2).ok_or_else(|| ProbeError(format!("no handle: {text:?}")))?;
        *byte = u8::from_str_radix(digits, 16)?;
    }
    Ok(IpcHandle(bytes))
}

/// Formats median, 99th percentile and maximum.
pub(crate) fn spread(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |share: f64| {
        let i = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times.get(i).map_or(f64::NAN, |time| us(*time))
    };
    format!("median {:9.1}  p99 {:9.1}  max {:9.1} us  (n = {})", at(0.5), at(0.99), at(1.0), times.len())
}

pub(crate) fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the time of a call, and its result.
pub(crate) fn timed<T>(call: impl FnOnce() -> Outcome<T>) -> Outcome<(Duration, T)> {
    let begin = Instant::now();
    let value = call()?;
    Ok((begin.elapsed(), value))
}
