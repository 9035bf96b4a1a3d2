//! A lock records the thread that holds it, so guards can't be sent to another thread.

fn main() {
    let (lock, rlock, rwlock) =
        (mp::Lock::new(1_u64).unwrap(), mp::RLock::new(1_u64).unwrap(), mp::RwLock::new(1_u64).unwrap());
    let (locked, held, reading) = (lock.lock().unwrap(), rlock.lock().unwrap(), rwlock.read().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || drop(locked));
        scope.spawn(move || drop(held));
        scope.spawn(move || drop(reading));
    });
}
