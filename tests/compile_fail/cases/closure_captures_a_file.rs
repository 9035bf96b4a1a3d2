//! What a number means that this process alone has is nothing to another one. The value is named, beside one that travels.
fn main() {
    let (lines, log) = (3u8, std::fs::File::open("/dev/null").unwrap());
    let _ = mp::closure!([lines, log] |x: u8| (x + *lines, log.metadata().is_ok()));
}
