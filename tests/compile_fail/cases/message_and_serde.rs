//! A serde type is already a message.
#[derive(serde::Serialize, serde::Deserialize, mp::Message)]
struct Point {
    x: f32,
}

fn main() {}
