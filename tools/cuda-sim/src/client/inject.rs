//! Failures that tests inject into this process's driver. The variable `MP_CUDA_SIM_INJECT` contains rules,
//! separated by `;`. Calls of each function are counted from 1, over all threads of the process.
//!
//! | rule | effect |
//! |---|---|
//! | `fail=cuMemMap:3:OUT_OF_MEMORY` | the third call does nothing and returns this result, a name or a number |
//! | `kill=cuMemMap:3:before`, `…:after` | SIGKILL ends the process before or after the third call is executed |
//! | `delay=cuMemMap:3:50` | the third call begins 50 ms late |

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::codes;

#[derive(Clone, Debug, PartialEq, Eq)]
enum InjectedFault {
    Fail(u32),
    KillBefore,
    KillAfter,
    Delay(Duration),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    call: String,
    number: u32,
    fault: InjectedFault,
}

static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
/// Number of calls of each function, by its name.
static COUNTS: Mutex<Option<HashMap<&'static str, u32>>> = Mutex::new(None);

fn rules() -> &'static [Rule] {
    RULES.get_or_init(|| {
        let text = std::env::var("MP_CUDA_SIM_INJECT").unwrap_or_default();
        text.split(';').filter(|rule| !rule.is_empty()).map(read).collect::<Option<_>>().unwrap_or_else(
            || {
                eprintln!("mp-cuda-sim: MP_CUDA_SIM_INJECT has a rule that is none: {text:?}");
                std::process::abort();
            },
        )
    })
}

fn read(rule: &str) -> Option<Rule> {
    let (kind, rest) = rule.split_once('=')?;
    let mut parts = rest.split(':');
    let (call, number, argument) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
    let fault = match (kind, argument) {
        ("fail", code) => InjectedFault::Fail(codes::by_name(code)?),
        ("kill", "before") => InjectedFault::KillBefore,
        ("kill", "after") => InjectedFault::KillAfter,
        ("delay", time) => InjectedFault::Delay(Duration::from_millis(time.parse().ok()?)),
        _ => return None,
    };
    parts.next().is_none().then(|| Rule { call: call.to_owned(), number, fault })
}

fn kill() -> ! {
    _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

/// Counts a call, and applies the rules that take effect before the call.
pub(super) fn before(name: &'static str) -> Result<(), u32> {
    if rules().is_empty() {
        return Ok(());
    }
    let number = {
        let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.get_or_insert_default().entry(name).or_insert(0);
        *count += 1;
        *count
    };
    for rule in rules().iter().filter(|rule| rule.call == name && rule.number == number) {
        match rule.fault {
            InjectedFault::Fail(code) => return Err(code),
            InjectedFault::KillBefore => kill(),
            InjectedFault::Delay(time) => std::thread::sleep(time),
            InjectedFault::KillAfter => {}
        }
    }
    Ok(())
}

pub(super) fn after(name: &'static str) {
    let is_it = |rule: &Rule| rule.fault == InjectedFault::KillAfter && rule.call == name;
    if let Some(rule) = rules().iter().find(|rule| is_it(rule)) {
        let counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.as_ref().and_then(|counts| counts.get(name)) == Some(&rule.number) {
            kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn injection_rules_are_parsed() {
        let rule = |text| read(text).map(|rule| (rule.call, rule.number, rule.fault));
        let map = || "cuMemMap".to_owned();
        assert_eq!(rule("fail=cuMemMap:3:OUT_OF_MEMORY"), Some((map(), 3, InjectedFault::Fail(2))));
        assert_eq!(rule("fail=cuMemMap:1:4321"), Some((map(), 1, InjectedFault::Fail(4321))));
        assert_eq!(rule("kill=cuMemMap:2:after"), Some((map(), 2, InjectedFault::KillAfter)));
        assert_eq!(
            rule("delay=cuMemMap:2:50"),
            Some((map(), 2, InjectedFault::Delay(Duration::from_millis(50))))
        );
        for wrong in [
            "",
            "fail=cuMemMap",
            "fail=cuMemMap:x:1",
            "fail=cuMemMap:1:NO_SUCH",
            "kill=f:1:x",
            "kill=f:1:after:2",
        ] {
            assert_eq!(rule(wrong), None, "{wrong}");
        }
    }
}
