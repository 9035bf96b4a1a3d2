//! A worker has no access to this process's memory: `task`.
fn main() {
    let pool = mp::Pool::new(2).unwrap();
    let name = "x".to_string();
    let _ = pool.task(move |x: u64| format!("{name} {x}"));
}
