//! Values that belong to this process alone can't be sent.
fn main() {
    let _: mp::Queue<std::fs::File>;
    let _: mp::Queue<std::sync::MutexGuard<'static, u8>>;
    let _: mp::Queue<std::rc::Rc<std::cell::RefCell<u8>>>;
}
