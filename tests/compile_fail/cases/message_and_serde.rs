//! A serde type is a message as it is.
#[derive(serde::Serialize, serde::Deserialize, mp::Message)]
struct Point {
    x: f32,
}

fn main() {}
