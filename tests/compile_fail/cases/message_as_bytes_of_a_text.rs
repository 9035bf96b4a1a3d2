//! The text is not part of the struct's bytes, which contain an address.
#[derive(mp::Message)]
#[message(as_bytes)]
struct Job {
    name: String,
}

fn main() {}
