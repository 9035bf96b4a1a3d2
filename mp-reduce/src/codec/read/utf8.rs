//! # Safety
//! Bytes as text. Unsafe, because bytes that are all ASCII are not looked at once more by the standard library, which takes longer for
//! a short text than to copy it; sound, because ASCII is UTF-8.
#![allow(unsafe_code)]

use std::str::Utf8Error;

/// These bytes as text.
///
/// # Errors
/// As of [`std::str::from_utf8`].
#[inline]
pub(super) fn text(bytes: &[u8]) -> Result<&str, Utf8Error> {
    if !bytes.is_ascii() {
        return std::str::from_utf8(bytes);
    }
    // SAFETY: ASCII, each byte of which is a character in UTF-8.
    Ok(unsafe { std::str::from_utf8_unchecked(bytes) })
}

#[cfg(test)]
mod tests {
    /// Wherever a byte is that is no ASCII, it is what the standard library says.
    #[test]
    fn each_byte_is_looked_at() {
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
