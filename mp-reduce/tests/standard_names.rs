//! Names of types that every process knows, in a program that has not looked for one of them yet.

use std::path::{Path, PathBuf};

use mp_reduce::{AnyValue, pack, register, register_as, unpack};

#[test]
fn a_standard_name_is_taken_before_the_first_look() {
    struct Named;
    let error = register_as("PathBuf", |_: &Named| Ok(()), |()| Ok(Named)).unwrap_err().to_string();
    assert!(error.contains("\"PathBuf\" is the name of the registered type std::path::PathBuf"), "{error}");
    // The type itself may be registered in a way of the program's own, by its name and by another one.
    register_as("PathBuf", |path: &PathBuf| Ok(path.display().to_string()), |path: String| Ok(path.into()))
        .unwrap();
    register(|_: &Named| Ok(()), |()| Ok(Named)).unwrap();
    let sent = pack(AnyValue::new(PathBuf::from("/a"))).map_err(|e| e.error).unwrap();
    let path: AnyValue = unpack(sent).unwrap();
    assert_eq!(path.downcast::<PathBuf>().unwrap(), Path::new("/a"));
}
