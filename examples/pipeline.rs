//! A pipeline of three stages, connected by two queues. A worker is killed during its work. Another worker
//! replaces it, and the pipeline continues: at most the job of the killed worker is missing.
//!
//! `cargo run --release --example pipeline`

use std::time::Duration;

use mp::{FrozenTensor, GetError, Process, Queue, Tensor};

type Image = (u32, FrozenTensor<f32>);
type Sum = (u32, f32);

const IMAGES: u32 = 2000;

/// Runs the first stage: loads images. The memory of an image is written in this stage, and never copied
/// after that.
fn load(images: Queue<Image>) -> mp::AnyResult<()> {
    for number in 0..IMAGES {
        images.put((number, Tensor::full([64, 64], number as f32)?.freeze()))?;
    }
    images.close();
    Ok(())
}

/// Runs the second stage: computes a sum for each image.
fn work((images, sums): (Queue<Image>, Queue<Sum>)) -> mp::AnyResult<()> {
    while let Some((number, image)) = images.get()? {
        sums.put((number, image.iter().sum()))?;
    }
    Ok(())
}

fn main() -> mp::AnyResult<()> {
    let (images, sums) = (Queue::bounded(8)?, Queue::bounded(8)?);
    let loader = Process::spawn(load, images.clone())?;
    let start = || Process::spawn(work, (images.clone(), sums.clone()));
    let mut workers = vec![start()?, start()?];

    // Stage three, in this process: collects.
    let mut seen = vec![false; IMAGES as usize];
    let mut killed = 0;
    loop {
        match sums.get_timeout(Duration::from_millis(20)) {
            Ok(Some((number, sum))) => {
                assert_eq!(sum, number as f32 * 4096.0);
                assert!(!std::mem::replace(&mut seen[number as usize], true), "nothing comes twice");
            }
            // All workers have ended: no other process has the queue.
            Ok(None) | Err(GetError::Deserted { .. }) => break,
            Err(GetError::Empty) => {}
            Err(error) => return Err(error.into()),
        }
        let got = seen.iter().filter(|&&s| s).count();
        if killed < got / 500 && got < 1900 {
            // As the OOM killer would do: at an arbitrary instruction.
            let victim = workers.remove(0);
            println!("after {got} images: killing {} (pid {})", victim.name(), victim.pid());
            victim.kill()?;
            victim.wait_timeout(Duration::from_secs(10));
            println!("  {}", victim.join().expect_err("it was killed"));
            workers.push(start()?);
            killed += 1;
        }
    }
    loader.join()?;
    workers.into_iter().try_for_each(|worker| worker.join())?;
    let missing = seen.iter().filter(|&&s| !s).count();
    println!("{IMAGES} images, {killed} workers killed, {missing} images missing");
    assert!(missing <= killed);
    Ok(())
}
