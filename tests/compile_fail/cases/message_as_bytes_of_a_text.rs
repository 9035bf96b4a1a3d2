//! A text is not in the struct: its bytes would be an address.
#[derive(mp::Message)]
#[message(as_bytes)]
struct Job {
    name: String,
}

fn main() {}
