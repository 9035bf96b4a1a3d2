//! Another process could write a byte that is no `bool`, and a killed one leave it.

fn main() {
    let _ = mp::Lock::new(true);
}
