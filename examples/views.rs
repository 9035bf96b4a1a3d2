//! Views: processes get parts of an image in shared memory, and no element is copied.
//!
//! `cargo run --release --example views`

use mp::{FrozenTensor, Queue, SpawnOptions, Tensor, start_processes};

type Part = (&'static str, FrozenTensor<u16>);

/// Prints each received part of an image, with its shape, strides and offset.
fn worker(
    _rank: usize,
    (parts, sums): (Queue<(String, FrozenTensor<u16>)>, Queue<u64>),
) -> mp::AnyResult<()> {
    while let Some((name, part)) = parts.get()? {
        println!("{name}: {:?}, strides {:?}, from element {}", part.shape(), part.strides(), part.offset());
        println!("{part}\n");
        sums.put(part.iter().map(u64::from).sum())?;
    }
    Ok(())
}

/// Returns parts of an image, all in the same memory.
fn parts(image: &FrozenTensor<u16>) -> mp::AnyResult<Vec<Part>> {
    Ok(vec![
        ("the whole", image.clone()),
        ("a row", image.select(0, 2)?),
        ("a column", image.select(1, 2)?),
        ("every other pixel", image.slice(0, .., 2)?.slice(1, .., 2)?),
        ("the lower right corner", image.narrow(0, 2, 2)?.narrow(1, 3, 3)?),
        ("turned", image.t()?),
        ("the diagonal", image.diagonal(0, 0, 1)?),
        ("windows of a row", image.select(0, 0)?.unfold(0, 3, 1)?),
        ("a row, four times", image.select(0, 0)?.expand([4, 6])?),
        ("as pairs", image.reshape([4, 3, 2])?.select(1, 0)?),
    ])
}

fn main() -> mp::AnyResult<()> {
    let mut image = Tensor::<u16>::from_fn(&[4, 6], |i| i as u16)?;
    // While it has no other holder, its parts can be written, also concurrently.
    let (mut left, mut right) = image.split_at_mut(3, 1)?;
    std::thread::scope(|threads| {
        threads.spawn(|| left.iter_mut().for_each(|pixel| *pixel += 100));
        threads.spawn(|| right.iter_mut().for_each(|pixel| *pixel += 200));
    });
    let image = image.freeze();
    assert_eq!((image[[0, 0]], image[[3, 5]]), (100, 223));

    let (queue, sums) = (Queue::bounded(16)?, Queue::bounded(16)?);
    let workers = start_processes(worker, (queue.clone(), sums.clone()), SpawnOptions::nprocs(1))?;
    for (name, part) in parts(&image)? {
        assert_eq!(part.storage(), image.storage());
        let sum: u64 = part.iter().map(u64::from).sum();
        queue.put((name.to_string(), part))?;
        assert_eq!(sums.get()?, Some(sum), "{name}");
    }
    queue.close();
    workers.join()?;
    println!("ten views, one storage: {:?}", image.storage());
    Ok(())
}
