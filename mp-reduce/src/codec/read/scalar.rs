//! Values that contain no others. Their reader is not generic, since a program has an instance of
//! [`any`](ValueReader::any) for each visitor.

use super::ValueReader;
use crate::codec::error::CodecError;
use crate::codec::first::*;

/// Value that contains no other values, or the first byte of a value that may contain some.
pub(super) enum ScalarOrFirst<'de> {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    F32(f32),
    F64(f64),
    Unit,
    Bool(bool),
    /// Text that is not checked for UTF-8 yet.
    Text(&'de [u8]),
    Bytes(&'de [u8]),
    /// Type number and contents.
    Extension(i8, &'de [u8]),
    First(u8),
}

impl<'de> ValueReader<'de, '_> {
    /// Reads a value that contains no others. If the value is of another kind, returns its first byte and
    /// reads nothing.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn scalar(&mut self) -> Result<ScalarOrFirst<'de>, CodecError> {
        let first = self.first()?;
        Ok(match first {
            SMALL..SHORT_MAP => {
                self.skip_byte();
                ScalarOrFirst::U8(first)
            }
            SMALL_NEGATIVE.. => {
                self.skip_byte();
                ScalarOrFirst::I8(first as i8)
            }
            U8 => ScalarOrFirst::U8(self.after_first::<1>()?[0]),
            U16 => ScalarOrFirst::U16(u16::from_be_bytes(self.after_first()?)),
            U32 => ScalarOrFirst::U32(u32::from_be_bytes(self.after_first()?)),
            U64 => ScalarOrFirst::U64(u64::from_be_bytes(self.after_first()?)),
            I8 => ScalarOrFirst::I8(i8::from_be_bytes(self.after_first()?)),
            I16 => ScalarOrFirst::I16(i16::from_be_bytes(self.after_first()?)),
            I32 => ScalarOrFirst::I32(i32::from_be_bytes(self.after_first()?)),
            I64 => ScalarOrFirst::I64(i64::from_be_bytes(self.after_first()?)),
            F32 => ScalarOrFirst::F32(f32::from_be_bytes(self.after_first()?)),
            F64 => ScalarOrFirst::F64(f64::from_be_bytes(self.after_first()?)),
            NIL => {
                self.skip_byte();
                ScalarOrFirst::Unit
            }
            FALSE | TRUE => {
                self.skip_byte();
                ScalarOrFirst::Bool(first == TRUE)
            }
            SHORT_STR..NIL => {
                self.skip_byte();
                ScalarOrFirst::Text(self.bytes((first - SHORT_STR).into())?)
            }
            STR_8..=STR_32 => ScalarOrFirst::Text(self.long(first - STR_8)?),
            BIN_8..=BIN_32 => ScalarOrFirst::Bytes(self.long(first - BIN_8)?),
            EXT_8..=EXT_32 | FIXED_EXT_1..=FIXED_EXT_16 => self.extension(first)?,
            SHORT_MAP..SHORT_STR | ARRAY_16 | ARRAY_32 | MAP_16 | MAP_32 | JUST => {
                ScalarOrFirst::First(first)
            }
        })
    }

    /// Reads an extension value, whose first byte is `first`. Only types that request an extension by its
    /// name contain extension values.
    #[cold]
    fn extension(&mut self, first: u8) -> Result<ScalarOrFirst<'de>, CodecError> {
        let len = match first {
            EXT_8..=EXT_32 => self.length(first - EXT_8)?,
            _ => {
                self.skip_byte();
                1 << (first - FIXED_EXT_1)
            }
        };
        let [number] = self.array()?;
        Ok(ScalarOrFirst::Extension(number as i8, self.bytes(len)?))
    }
}
