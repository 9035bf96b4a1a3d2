//! A type that derives `Message` moves to one process, but an argument is copied to all processes.
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
