//! Description of the machine, the compiler and the library versions that figures come from.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Machine and everything else that figures depend on.
#[derive(Debug)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Number of processors that this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// The compiler's version.
    pub rustc: &'static str,
    /// Memory in bytes.
    pub mem: u64,
    /// Date and time in UTC.
    pub date: String,
    /// Commit of this working tree. Empty outside of a working tree.
    pub commit: String,
    /// The peers and their versions.
    pub versions: Vec<(&'static str, String)>,
    /// Average number of runnable processes in the minute before the run: other work makes figures worse.
    pub load: f64,
    /// `true` if rounds were few and short.
    pub quick: bool,
    /// `true` if processes were pinned.
    pub pinned: bool,
}

/// Returns the load average over the last minute.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Returns the available memory in bytes.
pub fn available() -> u64 {
    bytes("MemAvailable")
}

/// Returns the bytes in a line of `/proc/meminfo`.
fn bytes(name: &str) -> u64 {
    field("/proc/meminfo", name)
        .and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

/// Returns the description of this machine. Callers read `load` before the first row is measured. They count
/// `processors` before pinning, because a pinned process finds only the processors that it is pinned to.
pub fn describe(processors: usize, quick: bool, pinned: bool, load: f64) -> Machine {
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let peers = ["iceoryx2", "ipc-channel", "crossbeam-channel", "rayon", "tokio"];
    let versions = peers.into_iter().filter(|_| cfg!(feature = "peers"));
    Machine {
        cpu,
        cores: processors,
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        rustc: env!("MP_BENCH_RUSTC"),
        mem: bytes("MemTotal"),
        date: utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())),
        commit: commit().unwrap_or_default(),
        versions: versions.map(|name| (name, locked_version(name).unwrap_or_default())).collect(),
        load,
        quick,
        pinned,
    }
}

/// Returns the commit that is checked out, marked if files differ from it.
fn commit() -> Option<String> {
    let git = Command::new("git").args(["describe", "--always", "--dirty", "--exclude=*"]).output().ok()?;
    git.status.success().then(|| String::from_utf8_lossy(&git.stdout).trim().to_owned())
}

/// Returns the first value called `name` in a file of `name : value` lines.
fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

/// Returns the version of a package in this program's lock file.
fn locked_version(name: &str) -> Option<String> {
    let mut lines = include_str!("../Cargo.lock").lines();
    lines.find(|line| *line == format!("name = {name:?}"))?;
    let version = lines.next()?.strip_prefix("version = ")?;
    Some(version.trim_matches('"').to_owned())
}

/// Formats seconds since 1970 as `2026-01-31T12:00:00Z`.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's civil_from_days, for days since 1970 only: years begin in March, so that leap days
    // come last.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::{locked_version, utc};

    #[test]
    fn seconds_are_formatted_as_utc_dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_798_761_599), "2026-12-31T23:59:59Z");
    }

    #[test]
    fn crate_versions_come_from_the_lock_file() {
        assert_eq!(locked_version("mp-bench").as_deref(), Some(env!("CARGO_PKG_VERSION")));
        assert_eq!(locked_version("no-such-package"), None);
    }
}
