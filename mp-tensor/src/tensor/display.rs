//! Formatting of tensors: nested lists, type and shape. Large tensors print only their edges, as in torch.

use std::fmt;

use crate::dispatch;
use crate::element::Element;
use crate::storage;
use crate::tensor::Tensor;
use crate::tensor::mode::Mode;
use crate::tensor::raw::RawTensor;
use crate::view::View;
use mp_core::DType;
use mp_core::Storage;

/// Number of elements above which `Display` prints only edges.
const THRESHOLD: usize = 1000;
/// Number of elements above which `Debug` prints only edges.
const THRESHOLD_LINE: usize = 24;
/// Number of entries that are printed at each end of a dimension, if only the edges are printed.
const EDGE: usize = 3;

/// Parts of a tensor to print. Elements are read as atomics, which is valid in every mode.
pub(crate) struct TensorDisplay<'a> {
    name: &'a str,
    dtype: DType,
    storage: &'a Storage,
    view: &'a View,
    requires_grad: bool,
}

impl<'a> TensorDisplay<'a> {
    pub(crate) fn of<M: Mode>(raw: &'a RawTensor<M>, dtype: DType) -> Self {
        let requires_grad = raw.grad.requires();
        Self { name: M::NAME, dtype, storage: raw.storage(), view: &raw.view, requires_grad }
    }
}

impl TensorDisplay<'_> {
    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}<{}>{:?}", self.name, self.dtype, self.view.shape())?;
        if self.requires_grad { f.write_str(" requires_grad") } else { Ok(()) }
    }

    /// Formats an element.
    fn text(&self, at: usize) -> String {
        dispatch!(self.dtype, T => format!("{:?}", storage::load::<T>(self.storage, at)))
    }

    /// Returns the entries of dimension `dim` to print. `None` stands for omitted entries.
    fn shown(&self, dim: usize, elide: bool) -> Vec<Option<usize>> {
        let n = self.view.shape()[dim];
        if !elide || n <= 2 * EDGE {
            return (0..n).map(Some).collect();
        }
        (0..EDGE).map(Some).chain([None]).chain((n - EDGE..n).map(Some)).collect()
    }

    /// Formats all elements to print.
    fn texts(&self, dim: usize, at: usize, elide: bool, all: &mut Vec<String>) {
        if dim == self.view.rank() {
            return all.push(self.text(at));
        }
        for i in self.shown(dim, elide).into_iter().flatten() {
            self.texts(dim + 1, at + i * self.view.strides()[dim] as usize, elide, all);
        }
    }

    /// Writes nested lists. If `width` is given, pads each element to this width and begins a new line for
    /// each row.
    fn lists(
        &self,
        f: &mut fmt::Formatter<'_>,
        dim: usize,
        elide: bool,
        width: Option<usize>,
        texts: &mut impl Iterator<Item = String>,
    ) -> fmt::Result {
        if dim == self.view.rank() {
            return write!(f, "{:>1$}", texts.next().unwrap_or_default(), width.unwrap_or(0));
        }
        let deep = self.view.rank() - dim - 1;
        f.write_str("[")?;
        for (k, i) in self.shown(dim, elide).into_iter().enumerate() {
            match (k, width) {
                (0, _) => {}
                (_, Some(_)) if deep > 0 => {
                    // A line for each row, and an empty line between matrices.
                    write!(f, ",{:\n<deep$}{:dim$} ", "", "")?;
                }
                _ => f.write_str(", ")?,
            }
            match i {
                Some(_) => self.lists(f, dim + 1, elide, width, texts)?,
                None => f.write_str("…")?,
            }
        }
        f.write_str("]")
    }

    /// Returns the number of elements, or of empty lists in an empty tensor.
    fn lists_and_elements(&self) -> usize {
        self.view.shape().iter().fold(1, |all: usize, n| all.saturating_mul((*n).max(1)))
    }

    fn elements(&self, f: &mut fmt::Formatter<'_>, elide: bool, lines: bool) -> fmt::Result {
        // In a forked copy, the memory is not mapped.
        if self.storage.hold().arena().me().is_err() {
            return f.write_str("(not in this forked process)");
        }
        let mut texts = Vec::new();
        if !self.view.is_empty() {
            self.texts(0, self.view.offset(), elide, &mut texts);
        }
        let width = texts.iter().map(|t| t.chars().count()).max().unwrap_or(0);
        self.lists(f, 0, elide, lines.then_some(width), &mut texts.into_iter())
    }
}

/// Prints one line.
impl fmt::Debug for TensorDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        f.write_str(" ")?;
        self.elements(f, self.lists_and_elements() > THRESHOLD_LINE, false)
    }
}

/// Prints a line for each row.
impl fmt::Display for TensorDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.elements(f, self.lists_and_elements() > THRESHOLD, true)?;
        f.write_str("\n")?;
        self.head(f)
    }
}

impl<T: Element, M: Mode> fmt::Debug for Tensor<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&TensorDisplay::of(&self.raw, T::DTYPE), f)
    }
}

/// Prints rows like torch. Prints only the edges of a tensor with more than 1000 elements.
impl<T: Element, M: Mode> fmt::Display for Tensor<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&TensorDisplay::of(&self.raw, T::DTYPE), f)
    }
}

#[cfg(test)]
mod tests {
    use crate::tensor::Tensor;

    fn counting(shape: &[usize]) -> Tensor<i32> {
        Tensor::from_fn(shape, |i| i as i32).unwrap()
    }

    #[test]
    fn debug_output_of_any_tensor_is_one_line() {
        assert_eq!(format!("{:?}", counting(&[2, 3])), "Tensor<i32>[2, 3] [[0, 1, 2], [3, 4, 5]]");
        let long = counting(&[2, 40]).freeze().t().unwrap();
        let edges = "[[0, 40], [1, 41], [2, 42], …, [37, 77], [38, 78], [39, 79]]";
        assert_eq!(format!("{long:?}"), format!("FrozenTensor<i32>[40, 2] {edges}"));
        assert_eq!(format!("{:?}", counting(&[]).share()), "SharedTensor<i32>[] 0");
        assert_eq!(format!("{:?}", counting(&[2, 0])), "Tensor<i32>[2, 0] [[], []]");
        let mut weights = Tensor::<f32>::full([2], 0.5).unwrap();
        weights.set_requires_grad(true).unwrap();
        assert_eq!(format!("{weights:?}"), "Tensor<f32>[2] requires_grad [0.5, 0.5]");
    }

    #[test]
    fn display_of_a_tensor_prints_its_rows_on_lines() {
        let t = Tensor::from_slice(&[1.5_f32, -10.0, 2.0, 0.25], [2, 2]).unwrap();
        assert_eq!(t.to_string(), "[[  1.5, -10.0],\n [  2.0,  0.25]]\nTensor<f32>[2, 2]");
        assert_eq!(counting(&[2, 1, 2]).to_string(), "[[[0, 1]],\n\n [[2, 3]]]\nTensor<i32>[2, 1, 2]");
        let large = counting(&[1001]).to_string();
        assert_eq!(large, "[   0,    1,    2, …,  998,  999, 1000]\nTensor<i32>[1001]");
        let lines = counting(&[2000, 4]).to_string();
        assert_eq!((lines.lines().count(), lines.lines().nth(3)), (8, Some(" …,")));
    }
}
