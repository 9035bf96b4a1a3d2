//! A function pointer is an address, which means nothing in the other process.
fn worker(_rank: usize, (): ()) {}

fn main() {
    let pointer: fn(usize, ()) = worker;
    let _ = mp::spawn(pointer, (), 2);
}
