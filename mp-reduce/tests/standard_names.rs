//! Names of standard types, in a program that has not looked up any type yet.

use std::path::{Path, PathBuf};

use mp_reduce::{AnyValue, pack, register, register_as, unpack};

#[test]
fn standard_type_names_are_reserved_before_lookup() {
    struct Named;
    let error = register_as("PathBuf", |_: &Named| Ok(()), |()| Ok(Named)).unwrap_err().to_string();
    assert!(error.contains("\"PathBuf\" is the name of the registered type std::path::PathBuf"), "{error}");
    // The program may register the type itself differently, under its own name and another one.
    register_as("PathBuf", |path: &PathBuf| Ok(path.display().to_string()), |path: String| Ok(path.into()))
        .unwrap();
    register(|_: &Named| Ok(()), |()| Ok(Named)).unwrap();
    let sent = pack(AnyValue::new(PathBuf::from("/a"))).map_err(|e| e.error).unwrap();
    let path: AnyValue = unpack(sent).unwrap();
    assert_eq!(path.downcast::<PathBuf>().unwrap(), Path::new("/a"));
}
