//! Encoding of numbers and texts in sequence, for data that a child reads before it calls its function.
//!
//! Parts of a program that are used for the first time are loaded from its file, page by page. That takes
//! longer than all other work of a child before it is a worker. So this encoding is short, is placed with the
//! rest of the child's code (`#[inline]`), and supports four types. Like the frames that carry it, it trusts
//! no input.

/// Appends a number.
pub(crate) fn put_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends the number of bytes, and the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends an optional value.
pub(crate) fn put_option<T>(out: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(value.is_some().into());
    if let Some(value) = value {
        put(out, value);
    }
}

/// Data that has not been read. Every method returns `None` if the data is too short or invalid.
#[derive(Debug)]
pub(crate) struct FieldReader<'a>(pub(crate) &'a [u8]);

impl<'a> FieldReader<'a> {
    #[inline]
    pub(crate) fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    #[inline]
    pub(crate) fn size(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    #[inline]
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.size()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    #[inline]
    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    #[inline]
    pub(crate) fn flag(&mut self) -> Option<bool> {
        let flag = self.byte()?;
        (flag <= 1).then_some(flag == 1)
    }

    /// Reads an optional value.
    #[inline]
    pub(crate) fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Some(None) }
    }

    /// Checks that nothing is left.
    #[inline]
    pub(crate) fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_read() {
        let mut out = Vec::new();
        put_number(&mut out, 7);
        put_bytes(&mut out, "ä".as_bytes());
        put_option(&mut out, Some(8), put_number);
        put_option(&mut out, None, put_number);
        let mut fields = FieldReader(&out);
        assert_eq!((fields.size(), fields.text().as_deref()), (Some(7), Some("ä")));
        assert_eq!(
            (fields.option(FieldReader::number), fields.option(FieldReader::number)),
            (Some(Some(8)), Some(None))
        );
        assert_eq!((fields.end(), fields.flag()), (Some(()), None));
    }

    #[test]
    fn lengths_that_lie() {
        let mut out = Vec::new();
        put_bytes(&mut out, b"abc");
        for end in 0..out.len() {
            assert_eq!(FieldReader(&out[..end]).bytes(), None);
        }
        put_number(&mut out, u64::MAX);
        let mut fields = FieldReader(&out);
        assert!(fields.bytes().is_some() && fields.bytes().is_none());
        assert_eq!(FieldReader(&[2]).flag(), None);
    }
}
