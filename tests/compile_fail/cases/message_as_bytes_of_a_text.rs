//! A `String` in a struct is an address: the struct's bytes do not contain the text.
#[derive(mp::Message)]
#[message(as_bytes)]
struct Job {
    name: String,
}

fn main() {}
