//! A tensor on a GPU that two processes change in turns. At the end of its turn, a process records an event
//! on its stream, and the stream of the other process waits for that event. So the host threads wait only
//! once, at the end.
//!
//! `cargo run --release --features cuda --example cuda_event`

mod cuda;

use mp::cuda::{CudaEvent, CudaTensor, SharedCudaTensor};
use mp::{AnyResult, Queue};
use serde::{Deserialize, Serialize};

use cuda::Gpu;

const TURNS: usize = 10;

#[derive(Clone, Serialize, Deserialize)]
struct Game {
    values: SharedCudaTensor<f32>,
    /// Queue to each process, for the events that end the turns of the other process.
    turns: [Queue<CudaEvent>; 2],
}

/// Takes the turns of one process. In each turn, waits for the other process's event, doubles all values, and
/// records an event.
fn play(gpu: &Gpu, game: &Game, who: usize) -> AnyResult<()> {
    for _ in 0..TURNS {
        let before = game.turns[who].get()?.ok_or("the other process has left")?;
        before.wait(&gpu.stream)?; // on the device: this thread continues
        let from = game.values.on_cudarc(&gpu.stream)?;
        gpu.multiply(&mut game.values.on_cudarc_mut(&gpu.stream)?, &from, 2.0)?;
        drop(from);
        let done = CudaEvent::new()?;
        done.record(&gpu.stream)?;
        game.turns[1 - who].put(done)?;
    }
    Ok(())
}

fn other(game: Game) -> AnyResult<()> {
    play(&Gpu::new()?, &game, 1)
}

fn main() -> AnyResult<()> {
    let Some(name) = cuda::gpu_or_skipped() else { return Ok(()) };
    let gpu = Gpu::new()?;
    let values = CudaTensor::full([1000], 1.0_f32, &gpu.stream)?.share();
    let game = Game { values, turns: [Queue::unbounded()?, Queue::unbounded()?] };
    let process = mp::Process::builder().spawn(other, game.clone())?;
    // An event that was never recorded is complete: the first turn waits for nothing.
    game.turns[0].put(CudaEvent::new()?)?;
    play(&gpu, &game, 0)?;
    // The last turn is the other process's: here a host waits, for the first time.
    let last = game.turns[0].get()?.ok_or("the other process has left")?;
    last.synchronize()?;
    let values = game.values.to_vec(&gpu.stream)?;
    process.join()?;
    let expected = 2.0_f32.powi(2 * TURNS as i32);
    assert!(values.iter().all(|value| *value == expected));
    println!("{name}: {} turns of two processes, each value is {expected}", 2 * TURNS);
    Ok(())
}
