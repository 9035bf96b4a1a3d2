//! A borrowed text is in the memory of this process, so it can't be sent.
fn main() {
    let queue = mp::Queue::bounded(1).unwrap();
    queue.put("x").unwrap();
}
