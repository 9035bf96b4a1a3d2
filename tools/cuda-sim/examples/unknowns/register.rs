//! Registration of pages of a shared file in two processes at once, also without the right to lock memory.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Resource, Rlimit};

use crate::gpu::{Gpu, Outcome, ProbeError};
use crate::helper::{self, Helper, Setting, ms, number, tell};
use crate::host::Shared;

const BYTES: usize = 256 << 10;
const USER: u32 = 65534;

pub(crate) fn ask() -> Outcome {
    let is_root = rustix::process::getuid().is_root();
    println!("as this user, without a limit of its own:");
    report(case(&Setting::default(), "no"));
    if !is_root {
        println!("as this user, RLIMIT_MEMLOCK 64 KiB:");
        report(case(&Setting::default(), "limit"));
        return Ok(());
    }
    println!("as user {USER}, RLIMIT_MEMLOCK 64 KiB:");
    let mut setting = Setting { user: Some(USER), ..Setting::default() };
    let mut outcome = case(&setting, "limit");
    if outcome.as_ref().is_err_and(|ProbeError(why)| why.contains("denied")) {
        // The program may lie in a folder that this user can't access.
        let copy = PathBuf::from(format!("/tmp/unknowns-{}", std::process::id()));
        std::fs::copy(std::env::current_exe()?, &copy)?;
        setting.program = Some(copy.clone());
        outcome = case(&setting, "limit");
        std::fs::remove_file(copy)?;
    }
    report(outcome);
    println!("as root, RLIMIT_MEMLOCK 64 KiB:");
    report(case(&Setting::default(), "limit"));
    Ok(())
}

fn report(outcome: Outcome) {
    if let Err(ProbeError(why)) = outcome {
        println!("  {why}");
    }
}

fn case(setting: &Setting, limit: &str) -> Outcome {
    let words = Shared::new(BYTES)?;
    let start =
        |which: &str| Helper::start_with("register", &[words.number(), limit.into(), which.into()], setting);
    let mut two = [start("0")?, start("1")?];
    for (i, helper) in two.iter_mut().enumerate() {
        println!("  {i}: {}", helper.hear()?);
    }
    for helper in &mut two {
        helper.say("register")?;
    }
    for (i, helper) in two.iter_mut().enumerate() {
        println!("  {i}: {}", helper.hear()?);
    }
    for i in 0..2 {
        two[i].ask("write")?;
        println!("  written by {i}, seen by {}: {}", 1 - i, two[1 - i].ask("see")?);
    }
    for helper in &mut two {
        println!("  {}", helper.ask("unregister")?);
        helper.close()?;
    }
    Ok(())
}

/// Registers, writes and reads on request.
pub(crate) fn help(arguments: &[String]) -> Outcome {
    let which: usize = number(arguments, 2)?;
    if arguments.get(1).is_some_and(|limit| limit == "limit") {
        let limit = Rlimit { current: Some(64 << 10), maximum: Some(64 << 10) };
        rustix::process::setrlimit(Resource::Memlock, limit)?;
    }
    let gpu = Gpu::start()?;
    let words = Shared::open(number(arguments, 0)?, BYTES)?;
    let stream = gpu.stream()?;
    let user = rustix::process::getuid().as_raw();
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    tell(&format!("user {user}, limit {limit:?}, context made"))?;
    helper::heard()?;
    let device = gpu.register(words.host, words.bytes)?;
    tell("cuMemHostRegister: SUCCESS")?;
    // At the first word of a page each, far apart.
    let at = |i: usize| i * 8192;
    while let Ok(line) = helper::heard() {
        match line.as_str() {
            "write" => {
                gpu.write(stream, device + 8 * at(which) as u64, 7)?;
                tell("asked")?;
            }
            "see" => tell(&match words.see(at(1 - which), 7, Duration::from_secs(1)) {
                Some(time) => format!("yes, after {:.3} ms", ms(time)),
                None => "no".to_owned(),
            })?,
            _ => {
                gpu.sync(stream)?;
                gpu.unregister(words.host)?;
                tell("cuMemHostUnregister: SUCCESS")?;
            }
        }
    }
    Ok(())
}
