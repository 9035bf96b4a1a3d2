//! A process calls a function; a future that it returns would not be run.
async fn worker(rank: usize, _: ()) {
    println!("{rank}");
}

fn main() {
    let _ = mp::spawn(worker, (), 2);
}
