//! A type of another crate in a queue: commands of the standard library, which a worker runs. The type does
//! not implement serde's traits, and this crate can't implement them. So the program registers a conversion
//! once.
//!
//! `cargo run --release --example custom_type`

use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Instant;

use mp::message::{AnyValue, Reduced, Registered};
use mp::{Queue, SpawnOptions, start_processes};
use serde::{Deserialize, Serialize};

// Parts of a command, and the function that rebuilds it: registered in each process of this program, before
// its `main`.
mp::message::register!(
    Command,
    |command| {
        let arguments = command.get_args().map(|a| Reduced(a.to_os_string())).collect::<Vec<_>>();
        Ok((Reduced(command.get_program().to_os_string()), arguments))
    },
    |(Reduced(program), arguments): (Reduced<OsString>, Vec<Reduced<OsString>>)| {
        let mut command = Command::new(program);
        command.args(arguments.into_iter().map(|argument| argument.0));
        Ok(command)
    },
);

/// Command to run. Many jobs share one environment, which is encoded once in each message.
#[derive(Serialize, Deserialize)]
struct Job {
    command: Registered<Command>,
    #[serde(with = "mp::message::shared")]
    environment: Arc<Vec<(String, String)>>,
}

mp::message::register!(Vec<Job>);

/// Result of a job: the exit status of its process, and the time of its end.
type JobResult = (Reduced<ExitStatus>, Reduced<Instant>);

fn worker(_rank: usize, (work, ended): (Queue<AnyValue>, Queue<JobResult>)) -> mp::AnyResult<()> {
    while let Some(message) = work.get()? {
        match message.downcast::<Vec<Job>>() {
            Ok(jobs) => {
                for Job { command: Registered(mut command), environment } in jobs {
                    command.envs(environment.iter().map(|(name, value)| (name, value)));
                    ended.put((Reduced(command.status()?), Reduced(Instant::now())))?;
                }
            }
            Err(other) => println!("a worker leaves {other:?} alone"),
        }
    }
    Ok(())
}

fn main() -> mp::AnyResult<()> {
    let (work, ended) = (Queue::unbounded()?, Queue::unbounded()?);
    let workers = start_processes(worker, (work.clone(), ended.clone()), SpawnOptions::nprocs(2))?;
    let begun = Instant::now();
    let environment = Arc::new(vec![("GREETING".to_string(), "hello".to_string())]);
    let job = |n: i32| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("test \"$GREETING\" = hello && exit {n}")]);
        Job { command: Registered(command), environment: environment.clone() }
    };
    // Messages of two types, in one queue.
    work.put(AnyValue::new(vec![job(0), job(3)]))?;
    work.put(AnyValue::new("no job".to_string()))?;
    work.put(AnyValue::new(vec![job(0)]))?;
    work.close();
    for _ in 0..3 {
        let (Reduced(status), Reduced(when)) = ended.get()?.ok_or("one is missing")?;
        println!("{status} after {:?}", when - begun);
    }
    workers.join()?;
    Ok(())
}
