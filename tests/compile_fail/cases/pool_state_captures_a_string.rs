//! The function that creates a worker's state can't capture a string of the parent process.
fn main() {
    let name = "x".to_string();
    let _ = mp::Pool::with_state(2, move || name.clone());
}
