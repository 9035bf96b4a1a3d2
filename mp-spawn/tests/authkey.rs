//! Secret that a family of processes shares.

mod common;

use std::process::{Command, Stdio};

use mp_core::Error;
use mp_spawn::{Process, SpawnOptions, StartMethod, current_process, start_processes};

fn key() -> Result<Vec<u8>, Error> {
    Ok(current_process().authkey()?.as_ref().to_vec())
}

/// Returns the keys of a process and of its child.
fn of_two_generations((): ()) -> Result<Vec<Vec<u8>>, Box<dyn std::error::Error + Send + Sync>> {
    let child = Process::spawn(|(): ()| key(), ())?.join()?;
    Ok(vec![key()?, child])
}

fn everywhere() -> Vec<u8> {
    let mut all = Vec::new();
    for file in ["environ", "cmdline"] {
        all.extend(std::fs::read(format!("/proc/self/{file}")).unwrap());
    }
    all.extend(std::env::vars_os().flat_map(|(_, value)| value.into_encoded_bytes()));
    all
}

#[test]
#[allow(unsafe_code)]
fn family_authkey_is_shared_and_not_readable() {
    let ours = key().unwrap();
    assert_eq!(ours.len(), 32);
    // SAFETY: code in the copy starts a process, and uses no state of this one.
    unsafe { mp_spawn::allow_fork() };
    for method in [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork] {
        let child = Process::builder().start_method(method).spawn(of_two_generations, ()).unwrap();
        assert_eq!(child.join().unwrap(), [ours.clone(), ours.clone()], "{method}");
    }
    let surroundings = |_: usize, (): ()| Ok::<_, String>(everywhere());
    let seen = start_processes(surroundings, (), SpawnOptions::nprocs(2)).unwrap().join().unwrap();
    let hex: String = ours.iter().map(|byte| format!("{byte:02x}")).collect();
    for place in seen.iter().chain([&everywhere()]) {
        assert!(!place.windows(8).any(|window| ours.starts_with(window)));
        assert!(!String::from_utf8_lossy(place).contains(&hex[..16]));
    }
}

#[test]
fn authkey_option_is_inherited_by_descendants() {
    let child = Process::builder().authkey("given").spawn(of_two_generations, ()).unwrap();
    assert_eq!(child.join().unwrap(), [b"given".to_vec(), b"given".to_vec()]);
    let ranks = SpawnOptions::nprocs(2).authkey(b"to all");
    let keys = start_processes(|_: usize, (): ()| key(), (), ranks).unwrap().join().unwrap();
    assert_eq!(keys, [b"to all", b"to all"]);
    // The key that a process sets is inherited by its children only.
    let sets = |(): ()| {
        current_process().set_authkey("set");
        of_two_generations(())
    };
    assert_eq!(Process::spawn(sets, ()).unwrap().join().unwrap(), [b"set", b"set"]);
    assert_eq!(key().unwrap().len(), 32);
}

#[test]
fn debug_output_hides_the_authkey() {
    let key = current_process().authkey().unwrap();
    let options = SpawnOptions::nprocs(1).authkey("do not print");
    let builder = Process::builder().authkey("do not print");
    for text in [format!("{key:?} {key:#?}"), format!("{options:?}"), format!("{builder:?}")] {
        assert!(!text.contains("do not print") && !text.contains("100, 111, 32"), "{text}");
    }
    assert_eq!(format!("{key:?}"), "AuthKey(..)");
}

#[test]
fn unrelated_programs_have_different_authkeys() {
    let program = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "helper_prints_its_authkey",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find_map(|line| line.strip_prefix("key: ").map(str::to_owned)).unwrap()
    };
    let keys = [program(), program(), format!("{:?}", key().unwrap())];
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "{keys:?}");
}

#[test]
#[ignore = "part of another test"]
fn helper_prints_its_authkey() {
    println!("\nkey: {:?}", key().unwrap());
}
