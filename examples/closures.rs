//! Closures that are sent to other processes. A message contains the captured values, and the receiver finds
//! the code in its own program.
//!
//! `cargo run --release --example closures`

use mp::process::start_closure;
use mp::{Closure, Process, Queue, SpawnOptions, Tensor, closure};

/// Composes two functions. The result is a closure with a named type.
fn after(first: Closure<f64, f64>, then: Closure<f64, f64>) -> Closure<f64, f64> {
    closure!([first, then] |x: f64| then.call(first.call(x)))
}

fn main() -> mp::AnyResult<()> {
    // A closure as the function of processes. The captured tensor is not copied: all read the same memory.
    let weights = Tensor::<f32>::from_fn(&[1000], |i| i as f32)?.freeze();
    let (factor, shared) = (0.5_f32, weights.clone());
    let sum = closure!([factor, shared] |rank: usize, ranks: usize| {
        let mine = shared.iter().skip(rank).step_by(ranks);
        Ok::<f32, String>(mine.map(|w| factor * w).sum())
    });
    let sums = start_closure(sum, 3, SpawnOptions::nprocs(3))?.join()?;
    println!("{sums:?} is {} altogether", sums.iter().sum::<f32>());

    // Closures as messages: a process that applies the functions it receives.
    let (work, results) = (Queue::<(Closure<f64, f64>, f64)>::bounded(8)?, Queue::bounded(8)?);
    let (todo, done) = (work.clone(), results.clone());
    let worker = Process::builder().spawn_closure(
        closure!([todo, done] |_nothing: ()| {
            while let Some((function, x)) = todo.get()? {
                done.put(function.call(x))?;
            }
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        }),
        (),
    )?;
    let offset = 32.0;
    let fahrenheit = after(closure!([] |x: f64| x * 1.8), closure!([offset] |x: f64| x + offset));
    for celsius in [-40.0, 0.0, 100.0] {
        work.put((fahrenheit.clone(), celsius))?;
    }
    work.close();
    worker.join()?;
    for celsius in [-40.0, 0.0, 100.0] {
        println!("{celsius} °C are {} °F", results.get()?.ok_or("one is missing")?);
    }

    // A closure as a result: created there, called here.
    let cube = |power: i32| Ok::<_, String>(closure!([power] |x: f64| x.powi(*power)));
    let cube: Closure<f64, f64> = Process::spawn(cube, 3)?.join()?;
    println!("3³ = {}", cube.call(3.0));
    Ok(())
}
