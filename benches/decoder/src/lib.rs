//! Decoder of image files for loaders in Rust and in Python, so that all of them run the same code.
//!
//! # Safety
//! The only unsafe code is a function with the calling convention of C, for Python's `ctypes`. The caller
//! passes the addresses of the path and the row, and the length of the row.

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;

/// Width and height of the part cut from the middle of an image.
pub const SIDE: u32 = 224;
/// Number of bytes of a decoded image, which is a row of a batch: red, green and blue of each pixel.
pub const ROW: usize = (SIDE * SIDE * 3) as usize;

/// Decodes the middle part of an image file into `row`.
///
/// # Errors
/// Returns an error if the file can't be read or decoded, the image is too small, or the length of `row` is
/// not [`ROW`].
pub fn decode(path: &Path, row: &mut [u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let image = image::open(path)?.into_rgb8();
    let (width, height) = image.dimensions();
    if row.len() != ROW || width < SIDE || height < SIDE {
        return Err(format!("{} bytes for {width} × {height} pixels", row.len()).into());
    }
    let (x, y) = ((width - SIDE) as usize / 2, (height - SIDE) as usize / 2);
    let lines = image.as_raw().chunks_exact(3 * width as usize).skip(y);
    for (to, line) in row.chunks_exact_mut(3 * SIDE as usize).zip(lines) {
        to.copy_from_slice(&line[3 * x..][..to.len()]);
    }
    Ok(())
}

/// Calls [`decode`] for a caller in C. Returns 0 if the row was written.
///
/// # Safety
/// `path` is a string that ends with a zero byte. `row` is the address of `len` initialized bytes, which no
/// other code accesses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_bench_decode(path: *const c_char, row: *mut u8, len: usize) -> c_int {
    // SAFETY: the caller's string, which ends with a zero, and is there until this returns.
    let path = unsafe { CStr::from_ptr(path) };
    // SAFETY: the caller's bytes, initialised and used by nothing else until this returns.
    let row = unsafe { std::slice::from_raw_parts_mut(row, len) };
    match path.to_str().map(|path| decode(Path::new(path), row)) {
        Ok(Ok(())) => 0,
        _ => 1,
    }
}
