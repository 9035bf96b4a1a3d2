//! A closure for `starmap` can't capture a string: a worker has no access to this process's memory.
fn main() {
    let pool = mp::Pool::new(2).unwrap();
    let name = "x".to_string();
    let _ = pool.starmap(move |x: u64, y: u64| format!("{name} {x} {y}"), [(1, 2)]);
}
