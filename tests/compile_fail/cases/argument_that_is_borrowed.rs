//! An address means nothing in another process.
fn worker(_rank: usize, counter: std::sync::Arc<u32>) {
    println!("{counter}");
}

fn main() {
    let context = mp::get_context(mp::StartMethod::Spawn);
    let _ = context.spawn(worker, std::sync::Arc::new(1), 2);
}
