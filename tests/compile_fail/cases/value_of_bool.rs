//! Another process could write a byte that is not a valid `bool`, or be killed after such a write.

fn main() {
    let _ = mp::Lock::new(true);
}
