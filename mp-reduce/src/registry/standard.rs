//! Registration of the types that every process can send.

use std::any::{TypeId, type_name};
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime};

use mp_core::fork::SetOnce;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::table::{add, name_taken, share};
use crate::builtin::{ByteString, ErrorChain};
use crate::codec::{read_part, write_part};
use crate::reduce::Reduce;

/// Registers a serde type under `name`.
pub(super) fn serde<T: Serialize + DeserializeOwned + Send + Sync + 'static>(
    name: &str,
) -> mp_core::Result<()> {
    add(
        name,
        |value: &T| write_part::<T, T>(value).map(ByteString).map_err(|e| e.located().into()),
        |bytes: ByteString| read_part::<T>(&bytes.0).map_err(|e| e.located().into()),
        share::<T>(),
    )
}

fn reduced<T: Reduce + Send + Sync + 'static>(name: &str) -> mp_core::Result<()> {
    add(name, T::reduce, T::rebuild, share::<T>())
}

/// Registers all standard types. Later calls do nothing.
pub(super) fn register() {
    // fork: if the list is complete in the parent, its copy in the child is, too.
    static DONE: SetOnce<()> = SetOnce::new();
    if DONE.get().is_none() {
        register_all();
        DONE.set(());
    }
}

/// Calls a macro with all standard types and their registered names, which do not depend on the compiler.
macro_rules! all {
    ($all:ident) => {
        $all! {
            serde: () = "()" bool = "bool" char = "char" String = "String" u8 = "u8" u16 = "u16" u32 = "u32"
                u64 = "u64" u128 = "u128" usize = "usize" i8 = "i8" i16 = "i16" i32 = "i32" i64 = "i64"
                i128 = "i128" isize = "isize" f32 = "f32" f64 = "f64" Vec<u8> = "Vec<u8>"
                Duration = "Duration" ErrorChain = "ErrorChain";
            reduced: PathBuf = "PathBuf" OsString = "OsString" SystemTime = "SystemTime" Instant = "Instant"
                ExitStatus = "ExitStatus" std::io::Error = "io::Error"
                Box<dyn Error + Send + Sync> = "Box<dyn Error>";
        }
    };
}

#[cold]
fn register_all() {
    macro_rules! add {
        ($($how:ident: $($t:ty = $name:literal)*;)*) => {
            // If the program has already registered a type in another way, that registration stays.
            $($(_ = $how::<$t>($name);)*)*
        };
    }
    all!(add);
}

/// Returns the standard type with this registered name, and the type's name in this program. The type may not
/// be registered yet.
fn of_name(name: &str) -> Option<(TypeId, &'static str)> {
    macro_rules! find {
        ($($how:ident: $($t:ty = $name:literal)*;)*) => {
            match name {
                $($($name => Some((TypeId::of::<$t>(), type_name::<$t>())),)*)*
                _ => None,
            }
        };
    }
    all!(find)
}

/// Returns an error if `name` is the registered name of a standard type other than `T`. Standard types are
/// checked separately, because they may not be in the table yet.
pub(super) fn check_name<T: 'static>(name: &str) -> mp_core::Result<()> {
    match of_name(name) {
        Some((id, standard)) if id != TypeId::of::<T>() => Err(name_taken(name, standard, type_name::<T>())),
        _ => Ok(()),
    }
}
