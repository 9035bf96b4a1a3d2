//! What a lock protects is not reached without it.

fn main() {
    let array = mp::Array::from_slice(&[1_u64, 2]).unwrap();
    let mut guard = array.lock().unwrap();
    let first = &mut guard[0];
    drop(guard);
    *first = 2;
}
