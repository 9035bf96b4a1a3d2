//! Only the listed types can be elements: a program can't add its own element type.
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
