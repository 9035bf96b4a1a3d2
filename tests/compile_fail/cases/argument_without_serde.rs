//! An argument is copied to each process, by serde.
struct Config {
    steps: usize,
}

fn worker(_rank: usize, config: Config) {
    println!("{}", config.steps);
}

fn main() {
    let _ = mp::spawn(worker, Config { steps: 3 }, 2);
}
