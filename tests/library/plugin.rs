//! Library that a program loads at run time. Both use one copy of mp.

extern crate mp_shared as mp;

/// Starts processes that call functions of this library.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_run() {
    let cube = |rank: usize, offset: usize| Ok::<_, String>(rank * rank * rank + offset);
    match mp::spawn(cube, 1, 3) {
        Ok(cubes) => println!("plugin: {cubes:?}"),
        Err(error) => println!("plugin: {error}"),
    }
}
