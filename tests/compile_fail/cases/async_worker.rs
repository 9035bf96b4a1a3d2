//! A process calls a function. If the function returned a future, nothing would run it.
async fn worker(rank: usize, _: ()) {
    println!("{rank}");
}

fn main() {
    let _ = mp::spawn(worker, (), 2);
}
