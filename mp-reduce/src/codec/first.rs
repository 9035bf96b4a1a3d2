//! The first byte of a value: its kind and, for some kinds, a small number.
//!
//! All first bytes are those of MessagePack, except one that MessagePack leaves unused: [`JUST`].

pub(super) const NIL: u8 = 0xc0;
/// Prefix of a `Some` whose value begins with nil or with this byte. Any other `Some(x)` is written as `x`.
/// The prefix keeps `None`, `Some(None)` and `Some(())` distinct.
///
/// Before any other byte, this byte begins a [buffer](super::buffer), or announces [shared
/// parts](super::shared_parts). MessagePack does not define this byte. All other first bytes are those of
/// MessagePack.
pub(super) const JUST: u8 = 0xc1;
pub(super) const FALSE: u8 = 0xc2;
pub(super) const TRUE: u8 = 0xc3;
pub(super) const BIN_8: u8 = 0xc4;
pub(super) const BIN_32: u8 = 0xc6;
pub(super) const EXT_8: u8 = 0xc7;
pub(super) const EXT_32: u8 = 0xc9;
pub(super) const F32: u8 = 0xca;
pub(super) const F64: u8 = 0xcb;
pub(super) const U8: u8 = 0xcc;
pub(super) const U16: u8 = 0xcd;
pub(super) const U32: u8 = 0xce;
pub(super) const U64: u8 = 0xcf;
pub(super) const I8: u8 = 0xd0;
pub(super) const I16: u8 = 0xd1;
pub(super) const I32: u8 = 0xd2;
pub(super) const I64: u8 = 0xd3;
pub(super) const FIXED_EXT_1: u8 = 0xd4;
pub(super) const FIXED_EXT_16: u8 = 0xd8;
pub(super) const STR_8: u8 = 0xd9;
pub(super) const STR_32: u8 = 0xdb;
pub(super) const ARRAY_16: u8 = 0xdc;
pub(super) const ARRAY_32: u8 = 0xdd;
pub(super) const MAP_16: u8 = 0xde;
pub(super) const MAP_32: u8 = 0xdf;
/// First byte of the number 0. The first bytes up to 0x7f are the numbers up to 127.
pub(super) const SMALL: u8 = 0x00;
/// First byte of an empty map. The next 15 first bytes are maps of up to 15 entries.
pub(super) const SHORT_MAP: u8 = 0x80;
pub(super) const SHORT_ARRAY: u8 = 0x90;
/// First byte of an empty text. The next 31 first bytes are texts of up to 31 bytes.
pub(super) const SHORT_STR: u8 = 0xa0;
/// First byte of the number -32. The first bytes up to 0xff are the numbers up to -1.
pub(super) const SMALL_NEGATIVE: u8 = 0xe0;
