//! A message moves to one process, and an argument goes to all.
#[derive(mp::Message)]
struct Config {
    steps: usize,
}

fn worker(_rank: usize, config: Config) {
    println!("{}", config.steps);
}

fn main() {
    let _ = mp::spawn(worker, Config { steps: 3 }, 2);
}
