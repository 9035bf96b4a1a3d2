//! Transparent huge pages of shared memory: `Documentation/admin-guide/mm/transhuge.rst`.

use crate::error::{Error, Result};

/// Size of a huge page, on all processors that have them by default.
pub(crate) const SIZE: u64 = 2 << 20;
const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
const OF_SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";

/// Checks that the kernel provides huge pages to shared memory on advice.
pub(crate) fn allowed() -> Result<()> {
    let chosen = |path: &str| {
        let all = std::fs::read_to_string(path).ok()?;
        Some(all.split_once('[')?.1.split_once(']')?.0.to_owned())
    };
    let gives = |setting: &str| matches!(setting, "always" | "advise" | "within_size" | "force");
    // Since Linux 6.10 each size has a setting, which may be `inherit`.
    match (chosen(SETTING), chosen(OF_SIZE)) {
        (_, Some(size)) if gives(&size) => Ok(()),
        (Some(all), None) if gives(&all) => Ok(()),
        (Some(all), Some(size)) if size == "inherit" && gives(&all) => Ok(()),
        (all, size) => {
            let now = |setting: Option<String>| setting.unwrap_or_else(|| "not there".to_owned());
            let source = format!(
                "{SETTING} is {}, {OF_SIZE} is {}: write `advise` into one of them, or use a hugetlbfs",
                now(all),
                now(size)
            );
            let source = std::io::Error::new(std::io::ErrorKind::Unsupported, source);
            Err(Error::Os { what: "this kernel gives shared memory no huge pages", source })
        }
    }
}
