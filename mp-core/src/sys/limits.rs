//! Limits of this process's address space, files and memory. References: `getrlimit(2)`, `proc(5)`.
//!
//! Control groups limit the memory of this process: version 2, or version 1 if it controls the memory.
//!
//! Source: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// Returns the soft limit of a resource, or `u64::MAX` if the resource has no limit.
fn soft(r: Resource) -> u64 {
    getrlimit(r).current.unwrap_or(u64::MAX)
}

/// Returns the number of bytes of address space that this process may still map (RLIMIT_AS minus the mapped
/// bytes), and the name of the limit.
pub(crate) fn address_space() -> (u64, &'static str) {
    let limit = soft(Resource::As);
    if limit == u64::MAX {
        return (limit, "no limit");
    }
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|s| s.split_ascii_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    (limit.saturating_sub(pages * crate::sys::sleep::futex::page_size()), "RLIMIT_AS (ulimit -v)")
}

/// Returns the maximum size in bytes of a file that this process writes, and the name of the limit. If a file
/// exceeds it, `ftruncate` raises SIGXFSZ, which kills the process.
pub(crate) fn file_size() -> (u64, &'static str) {
    (soft(Resource::Fsize), "RLIMIT_FSIZE (ulimit -f)")
}

/// Returns the maximum number of open descriptors of this process (RLIMIT_NOFILE).
pub(crate) fn open_files() -> u64 {
    soft(Resource::Nofile)
}

/// Returns the number of bytes available in huge pages of this size.
pub(crate) fn huge_pages_left(size: u64) -> u64 {
    let read = |what: &str| {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{what}", size / 1024);
        std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    };
    let (free, reserved) = (read("free_hugepages"), read("resv_hugepages").unwrap_or(0));
    let more = read("nr_overcommit_hugepages").unwrap_or(0);
    let surplus = read("surplus_hugepages").unwrap_or(0);
    let pages =
        |free: u64| (free.saturating_sub(reserved) + more.saturating_sub(surplus)).saturating_mul(size);
    free.map_or(u64::MAX, pages)
}

/// Returns the number of bytes that can be committed without out-of-memory kills, and the limiting resource.
pub(crate) fn memory_left() -> (u64, String) {
    let available = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|s| {
            let line = s.lines().find(|l| l.starts_with("MemAvailable:"))?;
            line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(u64::MAX, |kib| kib * 1024);
    let cgroup = left_by_cgroups().unwrap_or((u64::MAX, String::new()));
    if cgroup.0 < available { cgroup } else { (available, "memory of this machine (MemAvailable)".into()) }
}

/// File names and fields of one version of control groups.
struct Version {
    limit: &'static str,
    used: &'static str,
    /// Fields of `memory.stat` that count memory which the kernel reclaims before it kills a process: file
    /// pages and caches, including those of all subgroups.
    reclaimable: &'static [&'static str],
}

const V1: Version = Version {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: &["total_inactive_file", "total_active_file"],
};

const V2: Version = Version {
    limit: "memory.max",
    used: "memory.current",
    reclaimable: &["inactive_file", "active_file", "slab_reclaimable"],
};

/// Returns the least memory left by this process's control group and its ancestors, and the name of that
/// group.
fn left_by_cgroups() -> Option<(u64, String)> {
    least(&std::fs::read_to_string("/proc/self/cgroup").ok()?, Path::new("/sys/fs/cgroup"))
}

/// Implements [`left_by_cgroups`]. `own` is the text of `/proc/self/cgroup`, and `root` contains the files of
/// the groups.
fn least(own: &str, root: &Path) -> Option<(u64, String)> {
    let groups = own.lines().filter_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        match controllers {
            "" => Some((V2, root.to_owned(), path)),
            _ if controllers.split(',').any(|c| c == "memory") => Some((V1, root.join("memory"), path)),
            _ => None,
        }
    });
    groups.filter_map(|(version, root, path)| version.least(&root, path)).min_by_key(|(left, _)| *left)
}

impl Version {
    fn least(&self, root: &Path, path: &str) -> Option<(u64, String)> {
        // In a container the path may exist only on the host; the root is then the container's own group.
        Path::new(path.trim_start_matches('/'))
            .ancestors()
            .filter_map(|group| self.left(root, group))
            .min_by_key(|l| l.0)
    }

    fn left(&self, root: &Path, group: &Path) -> Option<(u64, String)> {
        let dir = root.join(group);
        let read = |file: &str| std::fs::read_to_string(dir.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        // `max` is not a number; version 1 reports the largest multiple of a page.
        let limit = number(self.limit).filter(|&limit| limit < i64::MAX as u64 - (1 << 20))?;
        let stat = read("memory.stat").unwrap_or_default();
        let reclaimable: u64 = stat
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| self.reclaimable.contains(name))
            .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
            .sum();
        let used = number(self.used)?.saturating_sub(reclaimable);
        Some((limit.saturating_sub(used), format!("{} of cgroup /{}", self.limit, group.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        std::fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|(name, text)| std::fs::write(dir.join(name), text).unwrap());
    }

    fn root(name: &str) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("mp-cgroup-{name}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&root);
        root
    }

    #[test]
    fn tightest_cgroup_v2_limit_counts() {
        let root = root("v2");
        write(&root, &[]);
        let stat = format!("anon 5\ninactive_file {}\nactive_file {MIB}\n", 2 * MIB);
        write(
            &root.join("a"),
            &[("memory.max", "104857600\n"), ("memory.current", "20971520\n"), ("memory.stat", &stat)],
        );
        write(&root.join("a/b"), &[("memory.max", "max\n"), ("memory.current", "10485760\n")]);
        let expected = (83 * MIB, "memory.max of cgroup /a".to_owned());
        assert_eq!(least("1:cpu:/x\n0::/a/b\n", &root), Some(expected));
        assert_eq!(least("0::/\n", &root), None);
        assert_eq!(least("0::/not/there\nnonsense\n", &root), None);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn cgroup_v1_limit_of_the_memory_controller_counts() {
        let root = root("v1");
        let none = "9223372036854771712\n";
        write(&root.join("memory"), &[("memory.limit_in_bytes", none), ("memory.usage_in_bytes", "5\n")]);
        let stat = format!("total_inactive_file {MIB}\ninactive_file 999\n");
        let files = [
            ("memory.limit_in_bytes", "8388608\n"),
            ("memory.usage_in_bytes", "9437184\n"),
            ("memory.stat", &stat),
        ];
        write(&root.join("memory/job"), &files);
        let own = "5:cpu,cpuacct:/\n4:memory:/job\n0::/\n";
        assert_eq!(least(own, &root), Some((0, "memory.limit_in_bytes of cgroup /job".to_owned())));
        assert_eq!(least("4:memory:/\n0::/\n", &root), None);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
