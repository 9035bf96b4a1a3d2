//! # Safety
//! Conversion of bytes to text. The code is unsafe because it skips the check of the standard library for
//! bytes that are ASCII: for a short text, that check takes longer than copying the text. It is sound because
//! ASCII is UTF-8.
#![allow(unsafe_code)]

use std::str::Utf8Error;

/// Converts bytes to text.
///
/// # Errors
/// Returns the error of [`std::str::from_utf8`].
#[inline]
pub(super) fn text(bytes: &[u8]) -> Result<&str, Utf8Error> {
    if !bytes.is_ascii() {
        return std::str::from_utf8(bytes);
    }
    // SAFETY: the bytes are ASCII, and each ASCII byte is a character in UTF-8.
    Ok(unsafe { std::str::from_utf8_unchecked(bytes) })
}

#[cfg(test)]
mod tests {
    /// For a non-ASCII byte at each position, the result is that of the standard library.
    #[test]
    fn utf8_validation_matches_the_standard_library() {
        for len in 0..40 {
            let plain = vec![b'a'; len];
            assert_eq!(super::text(&plain), std::str::from_utf8(&plain));
            for at in 0..len {
                for other in
                    [&b"\x7f"[..], b"\x80", b"\xff", "é".as_bytes(), "本".as_bytes(), &"本".as_bytes()[..2]]
                {
                    let mut bytes = plain.clone();
                    bytes.splice(at..=at, other.iter().copied());
                    assert_eq!(super::text(&bytes), std::str::from_utf8(&bytes), "{bytes:?}");
                }
            }
        }
    }
}
