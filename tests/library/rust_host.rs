//! Program that is linked with mp as a shared library, and so has no start-up hook: workers also run the code
//! of `main` before `init`.

extern crate mp_shared as mp;

use std::ffi::{CStr, CString, c_char, c_int, c_void};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

fn square(rank: usize, offset: usize) -> Result<usize, String> {
    Ok(rank * rank + offset)
}

fn main() {
    println!("host: begins");
    let args: Vec<String> = std::env::args().collect();
    if args.iter().any(|arg| arg == "without init") {
        println!("host: {}", mp::spawn(square, 1, 1).unwrap_err());
        return;
    }
    mp::init();
    // In a process that isn't a worker, `init` may be called any number of times.
    mp::init();
    println!("host: main");
    match args.get(1).map(String::as_str) {
        Some("workers without init") => {
            mp::process::set_command([args[0].as_str(), "without init"]);
            println!("host: {}", mp::spawn(square, 1, 1).unwrap_err());
        }
        Some(library) => run(&CString::new(library).unwrap(), c"plugin_run"),
        None => {
            println!("host: {:?}", mp::spawn(square, 1, 3).unwrap());
            let add = mp::closure!([n = 5] |rank: usize, _nothing: ()| Ok::<_, String>(rank + n));
            let added = mp::process::start_closure(add, (), mp::SpawnOptions::nprocs(2)).unwrap();
            let added = added.join().unwrap();
            println!("host: {added:?}");
        }
    }
}

/// Loads a library, and calls one of its functions.
fn run(library: &CStr, function: &CStr) {
    const RTLD_NOW: c_int = 2;
    // SAFETY: a C string.
    let library = unsafe { dlopen(library.as_ptr(), RTLD_NOW) };
    assert!(!library.is_null());
    // SAFETY: a library that is loaded, and a C string.
    let function = unsafe { dlsym(library, function.as_ptr()) };
    assert!(!function.is_null());
    // SAFETY: the function has this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(function) };
    function();
}
