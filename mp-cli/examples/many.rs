//! A program with many queues and processes, to measure `mp top`: `cargo run -p multiproc-cli --example many
//! -- 1000 200`.

use mp::{AnyResult, Queue};

fn main() -> AnyResult<()> {
    let number = |i| std::env::args().nth(i).and_then(|text| text.parse::<usize>().ok());
    let (queues, processes) = (number(1).unwrap_or(1000), number(2).unwrap_or(200));
    let all: Vec<_> = (0..queues)
        .map(|i| Ok(Queue::<u64>::bounded(64)?.named(&format!("queue-{i}"))))
        .collect::<AnyResult<_>>()?;
    let jobs = Queue::<u64>::bounded(64)?.named("jobs");
    for (i, queue) in all.iter().enumerate() {
        (0..i % 64).try_for_each(|number| queue.put(number as u64))?;
    }
    mp::spawn(
        |_: usize, jobs: Queue<u64>| -> AnyResult<()> {
            while jobs.get()?.is_some() {}
            Ok(())
        },
        jobs,
        processes,
    )?;
    Ok(())
}
