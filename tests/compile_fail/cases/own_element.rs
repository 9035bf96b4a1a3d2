//! Element types are the listed ones: a program can't add one.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(u8)]
enum Bit {
    Zero,
    One,
}

impl mp::Element for Bit {
    const DTYPE: mp::DType = mp::DType::U8;
}

fn main() {}
