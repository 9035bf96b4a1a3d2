//! The lock knows which thread holds it.

fn main() {
    let value = mp::Value::new(1_u64).unwrap();
    let guard = value.lock().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(guard));
    });
}
