//! The data of a lock can't be accessed without the lock.

fn main() {
    let array = mp::Array::from_slice(&[1_u64, 2]).unwrap();
    let mut guard = array.lock().unwrap();
    let first = &mut guard[0];
    drop(guard);
    *first = 2;
}
