//! It is not known which field of a union to send.
#[derive(mp::Message)]
union Either {
    number: u32,
    letter: char,
}

fn main() {}
