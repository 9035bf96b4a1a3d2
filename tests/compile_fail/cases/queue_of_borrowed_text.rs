//! The text would lie in the memory of this process.
fn main() {
    let queue = mp::Queue::bounded(1).unwrap();
    queue.put("x").unwrap();
}
