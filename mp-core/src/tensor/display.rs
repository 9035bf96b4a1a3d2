//! How tensors print: type, shape, and the first few elements.

use std::fmt;

use super::element::Element;
use super::{FrozenTensor, SharedTensor, Tensor};

/// Elements shown before the rest is elided.
const SHOWN: usize = 8;

fn show<T: Element>(
    f: &mut fmt::Formatter<'_>,
    mode: &str,
    shape: &[usize],
    elements: impl ExactSizeIterator<Item = T>,
) -> fmt::Result {
    write!(f, "{mode}<{}>{shape:?} [", T::DTYPE)?;
    let n = elements.len();
    for (i, v) in elements.take(SHOWN).enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(f, "{comma}{v:?}")?;
    }
    f.write_str(if n > SHOWN { ", …]" } else { "]" })
}

macro_rules! display {
    ($($t:ident),*) => {$(
        impl<T: Element> fmt::Debug for $t<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                show(f, stringify!($t), self.shape(), self.iter())
            }
        }
        impl<T: Element> fmt::Display for $t<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    )*};
}

display!(Tensor, FrozenTensor, SharedTensor);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_tensors_are_elided() {
        let t = Tensor::<i32>::from_fn(&[3, 4], |i| i as i32).unwrap();
        assert_eq!(format!("{t:?}"), "Tensor<i32>[3, 4] [0, 1, 2, 3, 4, 5, 6, 7, …]");
        let t = Tensor::<f32>::full(&[2], 0.5).unwrap().freeze();
        assert_eq!(t.to_string(), "FrozenTensor<f32>[2] [0.5, 0.5]");
    }
}
