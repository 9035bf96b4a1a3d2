//! Workers have nothing of this process's memory, however a pool calls them. (Of several such calls the compiler names the first.)
fn main() {
    let pool = mp::Pool::new(2).unwrap();
    let name = || "x".to_string();
    let [a, b, c, d] = [name(), name(), name(), name()];
    let _ = pool.map(move |x: u64| format!("{a} {x}"), 0..4);
    let _ = pool.task(move |x: u64| format!("{b} {x}"));
    let _ = pool.starmap(move |x: u64, y: u64| format!("{c} {x} {y}"), [(1, 2)]);
    let _ = mp::Pool::with_state(2, move || d.clone());
}
