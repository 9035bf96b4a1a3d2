//! Data loaders in Python for datasets in Rust: [`data_loader!`](crate::data_loader).
//!
//! `multiproc.DataLoader` loads datasets that are Python objects: its parts in Rust are the module
//! [`python_loader`](crate::python_loader).

mod column;
mod erased;
mod iterator;
mod loader;
mod macros;
mod settings;

pub use column::{tensor_to_python, view_of};
pub use iterator::LoaderIterator;
pub use loader::Loader;
pub use settings::{Form, IntoDataset, Settings, default_form, form, on_error, ranks};
