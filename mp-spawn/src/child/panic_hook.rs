//! Details of a panic, recorded by the panic hook. The code that catches the panic gets only the payload.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};

use mp_core::fork::SetOnce;
use mp_core::sync::shared::{AtomicBool, Ordering};

use crate::child::current;
use crate::error::backtrace::{__rust_begin_short_backtrace, write_short};
use crate::error::{CallFailure, RaisedKind, cut};
use crate::protocol::control_socket;
use crate::protocol::frame::FrameKind;
use crate::protocol::message::PanicNote;
use crate::sys;

thread_local! {
    /// Last panic of this thread.
    static LAST: RefCell<Option<PanicNote>> = const { RefCell::new(None) };

    /// `true` if panics of this thread are recorded in a process that is not a worker.
    static RECORDING: Cell<bool> = const { Cell::new(false) };
}

/// `true` if a hook is installed that records panics.
// fork: the hook is copied along.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Functions that are called before and after a panic is handled.
type PanicCallbacks = (fn(), fn());

/// Callbacks that a higher layer has set by [`set_panic_callbacks`].
// fork: two functions of the program, which its copies have as well.
static CALLBACKS: SetOnce<PanicCallbacks> = SetOnce::new();

/// Sets two functions that each thread of this worker calls when it panics: `before` is called before the
/// panic hooks, and `after` after them. (The hooks take longer than many tasks, mainly because they read the
/// symbols of a backtrace.) Only the first call in the life of a process has an effect.
pub fn set_panic_callbacks(before: fn(), after: fn()) {
    CALLBACKS.set((before, after));
}

/// Installs a hook that records every panic and reports it to the parent, before it calls the previous hook.
/// A panic that ends the process is never caught, so it can't be reported later.
#[inline]
pub(crate) fn install_hook() {
    // The hook is installed before a worker calls its function, by its only thread.
    if INSTALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    let previous = panic::take_hook();
    // The current hook is the standard library's, which has no data, so two such hooks are equal if their
    // functions are.
    let is_standard = std::ptr::eq(&raw const *previous, &raw const *panic::take_hook());
    panic::set_hook(Box::new(move |info| {
        if mp_core::is_asking_a_runtime() {
            return;
        }
        let around = CALLBACKS.get();
        around.iter().for_each(|(before, _)| before());
        let note = describe(info);
        if let Some(line) = control_socket::get() {
            // If the parent does not receive the note, the panic is still printed.
            let _ = line.send(FrameKind::Panic, &note);
        }
        let printed =
            (is_standard && sys::on_main_thread()).then(|| printed(info, note.backtrace.as_deref()));
        record(note);
        match printed {
            // The write fails if the reader has closed the pipe. A panic in the hook would abort the process.
            Some(printed) => _ = std::io::stderr().lock().write_all(printed.as_bytes()),
            None => previous(info),
        }
        around.iter().for_each(|(_, after)| after());
    }));
}

/// Records the locations of panics [under `with_panics_recorded`](with_panics_recorded) from now on, in a
/// process that is not a worker. The current hook runs as before, and other panics are not recorded. If the
/// program installs another hook later, panics are recorded only if the later hook calls the hook of this
/// function.
pub fn record_panics() {
    // A thread that panics can't change the hook.
    let can = || !std::thread::panicking() && !INSTALLED.swap(true, Ordering::Relaxed);
    if INSTALLED.load(Ordering::Relaxed) || !can() {
        return;
    }
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if RECORDING.try_with(Cell::get).unwrap_or(false) {
            record(describe(info));
        }
        previous(info);
    }));
}

/// Calls a function whose panics are recorded, also in a process that is not a worker.
pub fn with_panics_recorded<R>(function: impl FnOnce() -> R) -> R {
    /// Previous value of `RECORDING`, restored on drop.
    struct RestoreOnDrop(bool);

    impl Drop for RestoreOnDrop {
        fn drop(&mut self) {
            let _ = RECORDING.try_with(|notes| notes.set(self.0));
        }
    }

    let _before = RestoreOnDrop(RECORDING.try_with(|notes| notes.replace(true)).unwrap_or(false));
    function()
}

/// Panic that one thread has caught and another thread resumes, with the recorded details.
#[derive(Debug)]
pub struct CaughtPanic {
    payload: Box<dyn Any + Send>,
    note: PanicNote,
}

impl CaughtPanic {
    /// Calls a function that may panic.
    ///
    /// # Errors
    /// Returns the panic if the function panics.
    pub fn catch<R>(function: impl FnOnce() -> R) -> Result<R, CaughtPanic> {
        panic::catch_unwind(AssertUnwindSafe(|| with_panics_recorded(function))).map_err(|payload| {
            let note = caught(&*payload);
            CaughtPanic { payload, note }
        })
    }

    /// Resumes the panic on this thread, without another call of the hooks.
    pub fn resume(self) -> ! {
        let CaughtPanic { payload, note } = self;
        record(note);
        panic::resume_unwind(payload)
    }
}

/// Records the last panic of this thread.
fn record(note: PanicNote) {
    // The locals of the thread may be destroyed, or in use by the panicking code.
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = Some(note)));
}

impl CallFailure {
    /// Calls a function that may panic. In a worker the location of the panic is recorded.
    ///
    /// # Errors
    /// Returns the panic if the function panics.
    pub fn catch<R>(function: impl FnOnce() -> R) -> Result<R, Box<CallFailure>> {
        panic::catch_unwind(AssertUnwindSafe(|| __rust_begin_short_backtrace(function))).map_err(|payload| {
            let failure = CallFailure::panicked(&*payload);
            // Dropping the payload may panic again.
            mp_core::user_code::drop_payload(payload);
            failure
        })
    }

    /// Encodes values of the user. A panic of `Serialize` is returned as an error.
    ///
    /// # Errors
    /// The error of `encode`, or [`Unsendable`](mp_core::Error::Unsendable) with the panic's message.
    pub fn catch_encode<R>(encode: impl FnOnce() -> mp_core::Result<R>) -> mp_core::Result<R> {
        Self::catch(encode).unwrap_or_else(|raise| {
            Err(mp_core::Error::Unsendable(format!("its `Serialize` panicked: {}", raise.message())))
        })
    }

    /// Creates the failure of a panic that this thread has caught.
    pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Box<CallFailure> {
        let PanicNote { message, location, backtrace } = caught(payload);
        let (kind, chain, debug) = (RaisedKind::Panic, Vec::new(), String::new());
        Box::new(CallFailure { kind, message, chain, debug, location, backtrace })
    }
}

/// Returns the details of a panic that this thread has caught.
fn caught(payload: &(dyn Any + Send)) -> PanicNote {
    let message = cut(text(payload));
    let noted = LAST.try_with(|last| last.try_borrow_mut().ok().and_then(|mut last| last.take()));
    match noted.ok().flatten() {
        Some(note) if note.message == message => note,
        // The panic was raised without the hook, by `resume_unwind`.
        _ => PanicNote { message, location: None, backtrace: None },
    }
}

fn describe(info: &PanicHookInfo<'_>) -> PanicNote {
    let backtrace = Backtrace::capture();
    let captured = backtrace.status() == BacktraceStatus::Captured;
    PanicNote {
        message: cut(text(info.payload())),
        location: info.location().map(ToString::to_string),
        backtrace: captured.then(|| cut(backtrace.to_string())),
    }
}

/// Returns the text that the standard library would print, with the name of the process. The standard library
/// has no name for the thread that runs a worker's function, because that thread has not passed through
/// `main`.
fn printed(info: &PanicHookInfo<'_>, backtrace: Option<&str>) -> String {
    // fork: a copy of a process that has printed the hint does not print it again.
    static HINTED: AtomicBool = AtomicBool::new(false);
    let (name, pid) = (current::name().unwrap_or("main"), std::process::id());
    let place = info.location().map_or_else(|| "an unknown place".to_string(), ToString::to_string);
    let after = match backtrace {
        Some(whole) if std::env::var_os("RUST_BACKTRACE").is_some_and(|wish| wish == "full") => {
            format!("stack backtrace:\n{whole}")
        }
        Some(whole) => {
            let mut short = "stack backtrace:".to_string();
            // Writing to a string can't fail.
            _ = write_short(&mut short, whole, "RUST_BACKTRACE=full");
            short + "\n"
        }
        None if HINTED.swap(true, Ordering::Relaxed) => String::new(),
        None => "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n".to_string(),
    };
    format!("\nthread '{name}' ({pid}) panicked at {place}:\n{}\n{after}", text(info.payload()))
}

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic whose payload is not a string").to_string()
}
