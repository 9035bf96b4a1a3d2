//! Shared library that starts processes. Its hosts need no preparation for that: see
//! `tests/programs/embedding.rs`.
//!
//! Hosts call [`embedded_run`] with the name of a command. The command prints its result.

use std::error::Error;
use std::ffi::{CStr, OsString, c_char, c_int};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mp::process::start_closure;
use mp::{
    Closure, Pool, Process, Queue, SpawnError, SpawnOptions, StartMethod, Tensor, closure, spawn,
    start_processes,
};

mp::process::export_child_main!();

type Outcome = Result<(), Box<dyn Error>>;

/// Runs the named command; returns 0 on success.
///
/// # Safety
/// `name` must be a C string.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn embedded_run(name: *const c_char) -> c_int {
    // SAFETY: the caller guarantees that `name` is a C string.
    let name = unsafe { CStr::from_ptr(name) };
    match run(&name.to_string_lossy()) {
        Ok(()) => 0,
        Err(error) => {
            println!("embedded: {error}");
            1
        }
    }
}

fn run(name: &str) -> Outcome {
    match name {
        "everything" => everything(StartMethod::Spawn),
        "fork server" => everything(StartMethod::ForkServer),
        "fork" => {
            // SAFETY: the hosts have one thread and nothing that can't be copied. The library has only values
            // that a copy may use.
            #[allow(unsafe_code)]
            unsafe {
                mp::process::allow_fork();
            }
            static HERE: AtomicU32 = AtomicU32::new(0);
            HERE.store(7, Ordering::Relaxed);
            let seen = Process::builder().start_method(StartMethod::Fork);
            let seen = seen.spawn(|(): ()| Ok::<_, String>(HERE.load(Ordering::Relaxed)), ())?.join()?;
            println!("embedded: copied {seen}");
            everything(StartMethod::Fork)
        }
        "by a command" => {
            mp::process::set_command(command());
            everything(StartMethod::Spawn)
        }
        "by a command that makes none" => {
            let options =
                SpawnOptions::nprocs(1).handshake_timeout(Duration::from_millis(300)).command(command());
            failure(start_processes(square, 3, options))
        }
        "when told" | "by a command when told" => {
            mp::process::set_command(command());
            println!("embedded: ready");
            _ = std::io::stdin().lines().next();
            failure(start_processes(square, 3, SpawnOptions::nprocs(1)))
        }
        "one" => {
            println!("embedded: {:?}", spawn(square, 5, 2)?);
            Ok(())
        }
        "one that stays" => {
            let child = Process::spawn(|(): ()| _ = std::io::stdin().lines().next(), ())?;
            println!("embedded: {}", child.name());
            // Dropping the handle does not end the child: this process waits for the child when it exits.
            drop(child);
            Ok(())
        }
        other => Err(format!("there is no {other:?}").into()),
    }
}

/// Returns the words of the command in the host's environment.
fn command() -> Vec<OsString> {
    (0..).map_while(|n| std::env::var_os(format!("EMBEDDED_COMMAND_{n}"))).collect()
}

/// Prints the error of a start that must fail.
fn failure(started: Result<mp::ProcessContext<usize>, SpawnError>) -> Outcome {
    let error = started.and_then(|context| context.join()).err().ok_or("it did not fail")?;
    println!("embedded: failed: {error}");
    Ok(())
}

fn square(rank: usize, offset: usize) -> Result<usize, String> {
    Ok(rank * rank + offset)
}

/// Uses each feature with this start method: functions, closures, tensors, queues, pools, failures, and
/// processes that start processes.
fn everything(method: StartMethod) -> Outcome {
    mp::set_start_method(method);
    let numbers = start_processes(square, 10, SpawnOptions::nprocs(3))?.join()?;
    println!("embedded: squares {numbers:?}");

    let weights = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3])?.freeze();
    let words = vec!["zero".to_string(), "one".to_string()];
    let worker = closure!([words, weights] |rank: usize, factor: f32| {
        Ok::<_, String>(format!("{} {}", words[rank], weights.iter().sum::<f32>() * factor))
    });
    println!("embedded: closures {:?}", start_closure(worker, 2.0, SpawnOptions::nprocs(2))?.join()?);

    let queue: Queue<Closure<u32, u32>> = Queue::bounded(4)?;
    let add = 5;
    queue.put(closure!([add] |x: u32| x + add))?;
    let take = |queue: Queue<Closure<u32, u32>>| {
        let closure = queue.get().map_err(|e| e.to_string())?.ok_or("it is closed")?;
        Ok::<_, String>((closure.call(1), closure!([x = 7u32] |y: u32| x * y)))
    };
    let (six, times) = Process::spawn(take, queue.clone())?.join()?;
    println!("embedded: queue {six} {}", times.call(6));

    let pool = Pool::new(2)?;
    let cubes = pool.map(|x: u64| x * x * x, 0..5u64)?;
    println!("embedded: pool {cubes:?}");
    pool.close();
    pool.join()?;

    let nested = |(): ()| spawn(square, 1, 2).map_err(|e| e.to_string());
    println!("embedded: nested {:?}", Process::spawn(nested, ())?.join()?);

    let failed = |rank: usize, (): ()| -> Result<(), std::num::ParseIntError> {
        assert!(rank > 0, "rank {rank} has had enough");
        "x".parse::<u32>().map(drop)
    };
    for (options, words) in [
        (SpawnOptions::nprocs(1), ["rank 0 has had enough", "library/lib.rs"]),
        (
            SpawnOptions::nprocs(2).per_rank(|_, setup| setup.env("LD_PRELOAD", "")),
            ["failed", "invalid digit"],
        ),
    ] {
        let context = start_processes(failed, (), options.on_failure(mp::process::OnFailure::Continue))?;
        let errors: Vec<String> =
            context.results()?.into_iter().filter_map(|r| Some(r.err()?.to_string())).collect();
        let found = errors.iter().any(|error| words.iter().all(|word| error.contains(word)));
        println!("embedded: failure {}", if found { "told" } else { &errors[0] });
    }
    let exit = |(): ()| -> () { std::process::exit(7) };
    println!(
        "embedded: exit {:?}",
        Process::spawn(exit, ())?.join().map_err(|e| e.to_string().contains("code 7"))
    );
    Ok(())
}
