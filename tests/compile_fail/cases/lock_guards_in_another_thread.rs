//! The locks know which thread holds them.

fn main() {
    let (rlock, rwlock) = (mp::RLock::new(1_u64).unwrap(), mp::RwLock::new(1_u64).unwrap());
    let (held, reading) = (rlock.lock().unwrap(), rwlock.read().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || drop(held));
        scope.spawn(move || drop(reading));
    });
}
