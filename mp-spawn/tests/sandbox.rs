//! Sandboxes that refuse one system call: the error names the call, the cause and the remedy.

mod common;

use std::error::Error;
use std::fs::File;
use std::process::Command;

use mp_core::Arena;
use mp_reduce::Fd;
use mp_spawn::Process;

/// System calls that a filter refuses. `ERRORS` has the error numbers.
const CALLS: [(&str, libc::c_long); 7] = [
    ("memfd_create", libc::SYS_memfd_create),
    ("fcntl", libc::SYS_fcntl),
    ("fallocate", libc::SYS_fallocate),
    ("socketpair", libc::SYS_socketpair),
    ("eventfd2", libc::SYS_eventfd2),
    ("sendmsg", libc::SYS_sendmsg),
    ("madvise", libc::SYS_madvise),
];
const ERRORS: [i32; 2] = [libc::EPERM, libc::ENOSYS];
/// Environment variable that names the system call to be refused, for this program when it is started again.
const LACKS: &str = "MP_TEST_LACKS";

/// Uses shared memory, a process with long arguments, and a descriptor that is sent.
fn use_everything() -> Result<(), Box<dyn Error>> {
    Arena::current()?;
    let long = Process::spawn(|long: Vec<u8>| long.len() as u64, vec![1_u8; 1 << 20])?;
    assert_eq!(long.join()?, 1 << 20);
    let file = Process::spawn(
        |file: Fd<File>| file.0.metadata().map(|data| data.len()),
        Fd(File::open("/dev/null")?),
    )?;
    assert_eq!(file.join()?, 0);
    Ok(())
}

#[test]
fn refused_system_call_is_named_with_cause_and_remedy() {
    if let Ok(lacks) = std::env::var(LACKS) {
        let (name, error) = lacks.split_once(' ').unwrap();
        let (_, call) = CALLS.into_iter().find(|(known, _)| *known == name).unwrap();
        common::refuse([call; 3], error.parse().unwrap());
        let said = use_everything().map_or_else(|error| format!("{error:?}"), |()| "fine".to_owned());
        println!("\nRESULT {}", said.replace('\n', " "));
        return;
    }
    for (name, _) in CALLS {
        for error in ERRORS {
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args(["--exact", "refused_system_call_is_named_with_cause_and_remedy", "--nocapture"]);
            let output = again.env(LACKS, format!("{name} {error}")).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let said = text.lines().find_map(|line| line.strip_prefix("RESULT "));
            let said =
                said.unwrap_or_else(|| panic!("{name}: {text}{}", String::from_utf8_lossy(&output.stderr)));
            // Some file systems reserve their space in another way.
            if name == "fallocate" && error == libc::ENOSYS && said == "fine" {
                continue;
            }
            for part in
                [name, "a seccomp filter is in force for this process", &format!("let it allow {name}")]
            {
                assert!(said.contains(part), "{name} is refused with {error}: {said}");
            }
            assert!(!said.contains("not an arena") && !said.contains("the directory"), "{said}");
        }
    }
}
