//! Loading of the driver's library, once for each process, at the first call that needs it. After a failure
//! the next call tries again, because the driver may have been installed since.
//!
//! A forked copy of this process must not use a driver that the original process has initialised. The copy
//! compares the process id, and returns an error instead of calling the driver.
//!
//! # Safety
//! Unsafe, because it loads a library, whose initialisers run, and calls two functions of it. Sound, because
//! - the names are the names of the CUDA driver on Linux, and the user chooses the library path;
//! - the functions have the types that the table [`Api`] declares.
#![allow(unsafe_code)]

use std::ffi::c_int;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mp_core::fork::{self, PerProcess, SetOnce};
use mp_core::mutex::Mutex;

use super::api::Api;
use crate::codes;
use crate::error::{Error, Result};

/// Names of the library. The first is the driver's own, the second is also the name of a toolkit's stub,
/// which contains no driver.
pub(crate) const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Version of the oldest driver that suffices: its 64-bit memory operations need no setting of the kernel
/// module.
const NEEDED: i32 = 11_070;

/// Loaded and initialised driver.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) api: Api,
    /// Version as `1000 * major + 10 * minor`.
    pub(crate) version: i32,
    /// Id of the process that initialised the driver.
    process: u32,
}

/// Driver of this process, set when the driver is loaded. The library is never unloaded, because the driver
/// doesn't support that.
// fork: the driver is only read, and contains the id of the initialising process, so a copy returns an error.
// Each process has a lock of its own.
static LOADED: SetOnce<Driver> = SetOnce::new();
static LOADING: PerProcess<Mutex<()>> = mp_core::per_process!(Mutex::new(()));

impl Driver {
    /// Returns the driver of this process. Loads and initialises it first, if needed.
    pub(crate) fn get() -> Result<&'static Self> {
        if let Some(driver) = LOADED.get() {
            return driver.of_this_process();
        }
        let _one = LOADING.lock();
        if let Some(driver) = LOADED.get() {
            return driver.of_this_process();
        }
        let driver = Self::load()?;
        fork::forbid("it uses the CUDA driver, which doesn't survive a fork; start processes by `spawn`");
        Ok(LOADED.set(driver))
    }

    /// Returns the driver, if this process has initialised it. Never loads the library, so `Drop`
    /// implementations may call this function.
    pub(crate) fn loaded() -> Option<&'static Self> {
        LOADED.get().filter(|driver| driver.process == std::process::id())
    }

    fn of_this_process(&'static self) -> Result<&'static Self> {
        if self.process == std::process::id() { Ok(self) } else { Err(Error::Forked) }
    }

    fn load() -> Result<Self> {
        let (library, name) = open()?;
        let library: libloading::Library = library.into();
        // SAFETY: a library of this name is the CUDA driver.
        let api = unsafe { Api::load(&library) };
        // The driver registers handlers for the end of the process, which must stay mapped.
        std::mem::forget(library);
        let api = match api {
            Ok(api) => api,
            Err(symbol) => {
                return Err(Error::Symbol { name: symbol, library: name.to_owned(), version: None });
            }
        };
        // SAFETY: `cuInit` takes flags, which have to be 0.
        let code = unsafe { (api.cuInit)(0) };
        match code {
            codes::SUCCESS => {}
            codes::STUB_LIBRARY => return Err(Error::Stub),
            codes::NO_DEVICE => return Err(Error::NoDevice),
            // `cuInit` returns this code if this process was forked from a process in which another library
            // had initialised the driver.
            codes::NOT_INITIALIZED => return Err(Error::Forked),
            code => return Err(api.error("cuInit", code)),
        }
        let mut version: c_int = 0;
        // SAFETY: the number is written to a variable of this function.
        let code = unsafe { (api.cuDriverGetVersion)(&raw mut version) };
        if code != codes::SUCCESS {
            return Err(api.error("cuDriverGetVersion", code));
        }
        if version < NEEDED {
            return Err(Error::OldDriver { found: version, needed: NEEDED });
        }
        Ok(Self { api, version, process: std::process::id() })
    }

    /// Returns a function that not every driver has.
    pub(crate) fn optional<T>(&self, name: &'static str, function: Option<T>) -> Result<T> {
        let library = NAMES[0].to_owned();
        function.ok_or(Error::Symbol { name, library, version: Some(self.version) })
    }
}

fn open() -> Result<(Library, &'static str)> {
    let mut tried = Vec::new();
    for name in NAMES {
        // SAFETY: the CUDA driver's initialisers have no preconditions; the user chose any other library.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => return Ok((library, name)),
            Err(error) => tried.push(said(name, &error)),
        }
    }
    Err(Error::NoDriver { tried })
}

/// Returns the loader's message about a library name. Adds the name if the message does not contain it.
fn said(name: &str, error: &dyn std::error::Error) -> String {
    let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    if reason.contains(name) { reason } else { format!("{name}: {reason}") }
}
