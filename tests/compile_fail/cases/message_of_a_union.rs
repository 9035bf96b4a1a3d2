//! The active field of a union is unknown, so it can't be sent.
#[derive(mp::Message)]
union Either {
    number: u32,
    letter: char,
}

fn main() {}
