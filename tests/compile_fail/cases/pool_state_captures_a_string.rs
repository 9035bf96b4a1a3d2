//! A worker has nothing of this process's memory: what makes the state of a pool's workers.
fn main() {
    let name = "x".to_string();
    let _ = mp::Pool::with_state(2, move || name.clone());
}
