//! A pool of processes that computes the Mandelbrot set row by row, with a progress bar. A worker is killed
//! during the run.
//!
//! `cargo run --release --features indicatif --example pool_map`

use indicatif::ProgressBar;
use mp::{Pool, SharedTensor, Tensor};

const WIDTH: usize = 1600;
const HEIGHT: usize = 1200;
const MOST: u16 = 1000;

/// Returns the number of steps until a point escapes, or `MOST` if it does not escape.
fn steps(re: f64, im: f64) -> u16 {
    let (mut x, mut y) = (0.0, 0.0);
    for step in 0..MOST {
        (x, y) = (x * x - y * y + re, 2.0 * x * y + im);
        if x * x + y * y > 4.0 {
            return step;
        }
    }
    MOST
}

/// Draws one row into the shared image, and returns the number of its points that do not escape.
fn row((image, y): (SharedTensor<u16>, usize)) -> mp::AnyResult<usize> {
    let im = y as f64 / HEIGHT as f64 * 2.4 - 1.2;
    let drawn: Vec<u16> = (0..WIDTH).map(|x| steps(x as f64 / WIDTH as f64 * 3.2 - 2.3, im)).collect();
    image.select(0, y)?.write_from(&drawn)?;
    Ok(drawn.iter().filter(|steps| **steps == MOST).count())
}

fn main() -> mp::AnyResult<()> {
    let image: SharedTensor<u16> = Tensor::zeros([HEIGHT, WIDTH])?.share();
    let pool = Pool::builder().build()?;
    // Drawing a row twice is harmless, so a dead worker's row is retried.
    let draw = pool.task(row).retries(3);
    let rows = draw.map_async((0..HEIGHT).map(|y| (image.clone(), y)));
    let victim = pool.pids()[0];
    std::process::Command::new("kill").args(["-KILL", &victim.to_string()]).status()?;
    let inside: usize = rows.get_with_progress(&ProgressBar::new(HEIGHT as u64))?.into_iter().sum();

    for y in (0..HEIGHT).step_by(60) {
        let point = |x: usize| if image.load(y * WIDTH + x) == MOST { '#' } else { '.' };
        println!("{}", (0..WIDTH).step_by(25).map(point).collect::<String>());
    }
    println!("{inside} of {} points stay; worker {victim} was killed and replaced", WIDTH * HEIGHT);
    pool.join()?;
    Ok(())
}
