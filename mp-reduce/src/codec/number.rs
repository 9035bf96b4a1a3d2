//! Encoding of values that are single numbers, in MessagePack after a length.
//!
//! The bytes are the same as those of rmp-serde, which uses the shortest form. Neither a serializer nor a
//! scope for attachments is created, since creating them takes several times as long as encoding the number.

use mp_core::message::{PlainNumber, SmallBytes};

use super::first;

/// Destination of encoded numbers. The default methods write the shortest form.
pub(super) trait NumberSink: Sized {
    type Written;

    /// Writes the first byte of an encoded number and its other bytes.
    fn after<const N: usize>(self, first: u8, bytes: [u8; N]) -> Self::Written;

    #[inline]
    fn unsigned(self, n: u64) -> Self::Written {
        match n {
            0..=0x7f => self.after(n as u8, []),
            0x80..=0xff => self.after(first::U8, [n as u8]),
            0x100..=0xffff => self.after(first::U16, (n as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.after(first::U32, (n as u32).to_be_bytes()),
            _ => self.after(first::U64, n.to_be_bytes()),
        }
    }

    #[inline]
    fn signed(self, n: i64) -> Self::Written {
        match n {
            0.. => self.unsigned(n as u64),
            -0x20.. => self.after(n as u8, []),
            -0x80.. => self.after(first::I8, [n as u8]),
            -0x8000.. => self.after(first::I16, (n as i16).to_be_bytes()),
            -0x8000_0000.. => self.after(first::I32, (n as i32).to_be_bytes()),
            _ => self.after(first::I64, n.to_be_bytes()),
        }
    }
}

/// Returns an array with the length of an encoded number, the bytes of the number, and zeros.
#[inline(always)]
fn with_length<const N: usize>(first: u8, bytes: [u8; N]) -> [u8; SmallBytes::MOST] {
    let mut all = [0; SmallBytes::MOST];
    (all[0], all[1]) = (N as u8 + 1, first);
    all[2..2 + N].copy_from_slice(&bytes);
    all
}

impl NumberSink for &mut Vec<u8> {
    type Written = ();

    #[inline(always)]
    fn after<const N: usize>(self, first: u8, bytes: [u8; N]) {
        self.extend_from_slice(&with_length(first, bytes)[..2 + N]);
    }
}

/// Stores a single number, and replaces the previous contents.
impl NumberSink for &mut SmallBytes {
    type Written = ();

    #[inline(always)]
    fn after<const N: usize>(self, first: u8, bytes: [u8; N]) {
        *self = SmallBytes::first(2 + N, with_length(first, bytes));
    }
}

/// Appends a number after its length.
#[inline(always)]
pub(super) fn append(to: impl NumberSink<Written = ()>, number: PlainNumber) {
    match number {
        PlainNumber::Unsigned(n) => to.unsigned(n),
        PlainNumber::Signed(n) => to.signed(n),
        PlainNumber::F32(n) => to.after(first::F32, n.to_be_bytes()),
        PlainNumber::F64(n) => to.after(first::F64, n.to_be_bytes()),
        PlainNumber::None => to.after(first::NIL, []),
    }
}

/// Appends a number after its length. `size` is the number of bytes of the number's type. Unlike with
/// [`append`], the encoding has the same length for every value of the type.
#[inline(always)]
pub(super) fn append_wide(to: &mut Vec<u8>, number: PlainNumber, size: usize) {
    match (number, size) {
        (PlainNumber::Unsigned(n), 1) => to.after(first::U8, [n as u8]),
        (PlainNumber::Unsigned(n), 2) => to.after(first::U16, (n as u16).to_be_bytes()),
        (PlainNumber::Unsigned(n), 4) => to.after(first::U32, (n as u32).to_be_bytes()),
        (PlainNumber::Unsigned(n), _) => to.after(first::U64, n.to_be_bytes()),
        (PlainNumber::Signed(n), 1) => to.after(first::I8, [n as u8]),
        (PlainNumber::Signed(n), 2) => to.after(first::I16, (n as i16).to_be_bytes()),
        (PlainNumber::Signed(n), 4) => to.after(first::I32, (n as i32).to_be_bytes()),
        (PlainNumber::Signed(n), _) => to.after(first::I64, n.to_be_bytes()),
        (PlainNumber::F32(_) | PlainNumber::F64(_) | PlainNumber::None, _) => append(to, number),
    }
}

/// Decodes a number. Returns `None` if the bytes are not a valid value of the type in the forms that this
/// function supports. The caller then uses the general reader, which decodes the bytes or returns the error.
#[inline(always)]
pub(super) fn read<T: 'static>(bytes: &[u8]) -> Option<T> {
    match *bytes {
        [0xcf, a, b, c, d, e, f, g, h] => {
            PlainNumber::integer_as(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
        }
        [n @ 0..=0x7f] => PlainNumber::integer_as(n),
        [0xc0] => PlainNumber::unit_as(),
        [0xcc, n] => PlainNumber::integer_as(n),
        [0xcd, a, b] => PlainNumber::integer_as(u16::from_be_bytes([a, b])),
        [0xce, a, b, c, d] => PlainNumber::integer_as(u32::from_be_bytes([a, b, c, d])),
        [0xd0, n] => PlainNumber::integer_as(n as i8),
        [0xd1, a, b] => PlainNumber::integer_as(i16::from_be_bytes([a, b])),
        [0xd2, a, b, c, d] => PlainNumber::integer_as(i32::from_be_bytes([a, b, c, d])),
        [0xd3, a, b, c, d, e, f, g, h] => {
            PlainNumber::integer_as(i64::from_be_bytes([a, b, c, d, e, f, g, h]))
        }
        [0xca, a, b, c, d] => PlainNumber::float_as(f32::from_be_bytes([a, b, c, d])),
        [0xcb, a, b, c, d, e, f, g, h] => PlainNumber::float_as(f64::from_be_bytes([a, b, c, d, e, f, g, h])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mp_core::Message;
    use mp_core::message::encode_wide;
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::*;

    fn same(number: PlainNumber, value: impl Serialize + std::fmt::Debug) {
        let mut bytes = Vec::new();
        append(&mut bytes, number);
        let mut few = SmallBytes::default();
        append(&mut few, number);
        assert_eq!(few.as_slice(), bytes);
        let expected = rmp_serde::to_vec_named(&value).unwrap();
        assert_eq!((usize::from(bytes[0]), &bytes[1..]), (expected.len(), &expected[..]), "{value:?}");
    }

    #[test]
    fn options_of_numbers_encode_as_number_or_nil() {
        same(PlainNumber::None, None::<u8>);
        same(PlainNumber::Unsigned(300), Some(300_u16));
        same(PlainNumber::F64(0.5), Some(0.5));
    }

    #[test]
    fn unit_encodes_as_nil_and_not_as_a_number() {
        same(PlainNumber::None, ());
        assert!(reads_alike::<()>(&[0xc0]));
        assert!(
            !reads_alike::<u8>(&[0xc0]) && !reads_alike::<Option<f64>>(&[0xc0]) && !reads_alike::<()>(&[0])
        );
    }

    /// The numbers are near the powers of two, with both signs.
    #[test]
    fn number_encoding_matches_rmp_serde() {
        for near in (0..64).map(|bit| 1_u64 << bit) {
            for n in [near.wrapping_sub(1), near, near + 1] {
                same(PlainNumber::Unsigned(n), n);
                for n in [n as i64, (n as i64).wrapping_neg()] {
                    same(PlainNumber::Signed(n), n);
                }
                let (single, double) = (f32::from_bits(n as u32), f64::from_bits(n));
                same(PlainNumber::F32(single), single);
                same(PlainNumber::F64(double), double);
            }
        }
        for n in i16::MIN..=i16::MAX {
            same(PlainNumber::Signed(n.into()), n);
            same(PlainNumber::Unsigned(n as u16 as u64), n as u16);
        }
    }

    /// Checks that `read` returns the same value as the general reader, or `None`. Returns `true` if `read`
    /// returned a value.
    fn reads_alike<T: Message + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> bool {
        let left = std::cell::Cell::new(mp_core::message::nesting_depth::MAX_NESTING);
        let all: Option<T> = crate::codec::read::from_slice(bytes, &left).ok();
        let short: Option<T> = read(bytes);
        assert!(short.is_none() || short == all, "{bytes:?}: {short:?}, and not {all:?}");
        short.is_some()
    }

    #[test]
    fn fast_integer_decoding_matches_the_generic_reader() {
        let near = (0..64).map(|bit| 1_u64 << bit).flat_map(|n| [n - 1, n, n + 1]);
        for n in near.chain([u64::MAX]) {
            let mut bytes = Vec::new();
            append(&mut bytes, PlainNumber::Unsigned(n));
            // Longer encodings, as other writers produce them, and truncated ones, which are not read.
            let long = [&[0xcf][..], &n.to_be_bytes()].concat();
            for bytes in [&bytes[1..], &long] {
                assert!(reads_alike::<u64>(bytes) && reads_alike::<Option<u64>>(bytes));
                assert_eq!(reads_alike::<u8>(bytes), u8::try_from(n).is_ok());
                assert_eq!(reads_alike::<Option<i32>>(bytes), i32::try_from(n).is_ok());
                assert_eq!(reads_alike::<i64>(bytes), i64::try_from(n).is_ok());
                assert_eq!(reads_alike::<usize>(bytes), usize::try_from(n).is_ok());
                assert!(!reads_alike::<f64>(bytes), "the general reader decodes it");
                assert!(!reads_alike::<Option<f32>>(bytes), "the general reader decodes it");
                (0..bytes.len()).for_each(|end| _ = reads_alike::<u64>(&bytes[..end]));
            }
        }
        for n in [-33_i64, -200, -40_000, i64::MIN] {
            let mut bytes = Vec::new();
            append(&mut bytes, PlainNumber::Signed(n));
            assert!(reads_alike::<i64>(&bytes[1..]) && reads_alike::<Option<i64>>(&bytes[1..]));
            assert_eq!(reads_alike::<i16>(&bytes[1..]), i16::try_from(n).is_ok());
            assert!(!reads_alike::<u64>(&bytes[1..]) && !reads_alike::<f64>(&bytes[1..]));
        }
    }

    #[test]
    fn fast_float_decoding_matches_the_generic_reader() {
        for n in [0.0, -0.0, 0.5, f64::MAX, f64::NEG_INFINITY] {
            let (mut double, mut single) = (Vec::new(), Vec::new());
            append(&mut double, PlainNumber::F64(n));
            append(&mut single, PlainNumber::F32(n as f32));
            assert!(reads_alike::<f64>(&double[1..]) && reads_alike::<Option<f64>>(&double[1..]));
            assert!(reads_alike::<f32>(&single[1..]) && reads_alike::<Option<f32>>(&single[1..]));
            assert!(!reads_alike::<f32>(&double[1..]) && !reads_alike::<f64>(&single[1..]));
            assert!(!reads_alike::<u64>(&double[1..]) && !reads_alike::<i32>(&single[1..]));
        }
    }

    /// Checks that each value round-trips, and that all encodings of the type have the same length.
    fn wide<T: Message + Serialize + DeserializeOwned + Copy + PartialEq + std::fmt::Debug>(values: &[T]) {
        let mut len = None;
        for value in values {
            let mut out = mp_core::message::Outgoing::default();
            encode_wide::<_, crate::MessagePack>(&mut { *value }, &mut out).unwrap();
            let bytes = out.bytes().clone();
            assert_eq!(*len.get_or_insert(bytes.len()), bytes.len(), "{value:?}");
            assert_eq!(T::decode_plain::<crate::MessagePack>(&bytes).unwrap(), *value);
            assert_eq!(rmp_serde::from_slice::<T>(&bytes[1..]).unwrap(), *value, "as `rmp_serde` reads it");
        }
    }

    #[test]
    fn fixed_width_numbers_encode_to_one_length_per_type() {
        wide(&[0, 1, 127, 128, u8::MAX]);
        wide(&[0, 255, 256, u16::MAX]);
        wide(&[0, 1 << 16, u32::MAX]);
        wide(&[0, 300, 1 << 32, u64::MAX]);
        wide(&[0, usize::MAX]);
        wide(&[i8::MIN, -33, -1, 0, i8::MAX]);
        wide(&[i16::MIN, -1, 0, i16::MAX]);
        wide(&[i32::MIN, -1, 0, i32::MAX]);
        wide(&[i64::MIN, -1, 0, 1 << 40, i64::MAX]);
        wide(&[isize::MIN, isize::MAX]);
        wide(&[0.0, -0.5, f32::MAX]);
        wide(&[0.0, -0.5, f64::MAX]);
        wide(&[Some(0), Some(u64::MAX)]);
        wide(&[None::<i32>]);
    }
}
