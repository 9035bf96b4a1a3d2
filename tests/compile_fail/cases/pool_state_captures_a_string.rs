//! A worker has no access to this process's memory: the function that creates the state of a pool's workers.
fn main() {
    let name = "x".to_string();
    let _ = mp::Pool::with_state(2, move || name.clone());
}
