//! Tests of the part of `mp-cuda` that calls the driver: errors for a missing or wrong driver, devices and
//! streams.
#![allow(unsafe_code)]

use std::sync::Arc;

use mp_core::{Error as CoreError, Structure};
use mp_cuda::{CudaStream, CudaTensor, Device, Error, Uuid, memory_stats};

use crate::support::{Client, nothing_found, setup, stat, until};

/// Runs a scenario of a client with `mp-cuda`, and returns the text that the test compares.
pub(crate) fn scenario(name: &str) -> Option<String> {
    Some(match name {
        "mp-cuda: first device" => match Device::new(0) {
            Ok(device) => format!("{}", device.uuid()),
            Err(error) => error.to_string(),
        },
        "mp-cuda: forked" => {
            Device::new(0).unwrap();
            forked()
        }
        "mp-cuda: devices" => devices(),
        "mp-cuda: streams" => streams(),
        "mp-cuda: contexts" => contexts(),
        "mp-cuda: lost" => lost(),
        "mp-cuda: full arena" => full_arena(),
        "conformance" => crate::conformance::log(),
        _ => return None,
    })
}

fn devices() -> String {
    let all = Device::all().unwrap();
    let first = &all[0];
    assert_eq!(Device::by_uuid(first.uuid()).unwrap(), *first);
    assert!(matches!(Device::new(9), Err(Error::InvalidDevice { ordinal: 9, .. })));
    let unknown = Device::by_uuid(Uuid([0; 16]));
    assert!(matches!(unknown, Err(Error::UnknownDevice { ref visible, .. }) if visible.len() == all.len()));
    let attributes = first.attributes().unwrap();
    assert!(attributes.virtual_memory && attributes.memory_by_descriptor && attributes.memory_operations);
    assert_eq!((first.free_memory().unwrap(), attributes.compute), (first.total_memory().unwrap(), (9, 0)));
    if let [first, second] = &*all {
        assert!(first.can_access(second).unwrap() && !first.can_access(first).unwrap());
    }
    all.iter().map(|device| format!("{} {}\n", device.uuid(), device.name().unwrap())).collect()
}

fn streams() -> String {
    let device = Device::new(0).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let other = stream.clone();
    drop(stream);
    assert!(other.is_complete().unwrap() && !other.is_capturing().unwrap());
    other.synchronize().unwrap();
    assert_eq!(*other.device(), device);
    let keep = Arc::new(());
    let context = current_after(&device);
    // SAFETY: `other` and its context are alive until the end of this function.
    let raw = unsafe { CudaStream::from_raw(context, other.as_raw(), Arc::clone(&keep)) }.unwrap();
    assert_eq!((raw.as_raw(), Arc::strong_count(&keep)), (other.as_raw(), 2));
    // SAFETY: the context is alive, and the default stream belongs to it.
    let default = unsafe { CudaStream::from_raw(context, std::ptr::null_mut(), ()) }.unwrap();
    default.synchronize().unwrap();
    drop(raw);
    assert_eq!(Arc::strong_count(&keep), 1, "the owner is dropped with the stream");
    other.synchronize().unwrap();
    String::new()
}

/// Returns the driver's table of functions, for calls that `mp-cuda` lacks.
fn api() -> mp_cuda::driver::api::Api {
    // SAFETY: the session's library has the driver's functions.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: the session's library has the driver's functions.
    let api = unsafe { mp_cuda::driver::api::Api::load(&library) }.unwrap();
    std::mem::forget(library);
    api
}

fn current_after(device: &Device) -> *mut std::ffi::c_void {
    device.free_memory().unwrap();
    let mut context = mp_cuda::driver::api::DriverHandle::NULL;
    // SAFETY: the call writes to a variable of this function.
    assert_eq!(unsafe { (api().cuDevicePrimaryCtxRetain)(&raw mut context, 0) }, 0);
    context.0
}

fn current() -> mp_cuda::driver::api::DriverHandle {
    let mut context = mp_cuda::driver::api::DriverHandle::NULL;
    // SAFETY: the call writes to a variable of this function.
    assert_eq!(unsafe { (api().cuCtxGetCurrent)(&raw mut context) }, 0);
    context
}

fn contexts() -> String {
    let [first, second] = [0, 1].map(|ordinal| Device::new(ordinal).unwrap());
    let none = current();
    first.free_memory().unwrap();
    assert_eq!(current(), none, "the previous context is current again");
    let stream = CudaStream::new(&second).unwrap();
    let context = mp_cuda::driver::api::DriverHandle(current_after(&first));
    // SAFETY: the context is alive, because it was retained.
    assert_eq!(unsafe { (api().cuCtxSetCurrent)(context) }, 0);
    stream.synchronize().unwrap();
    drop(stream);
    assert_eq!(current(), context);
    let of_second = CudaStream::new(&second).unwrap();
    // SAFETY: context and stream are alive until the end of this function.
    let mixed = unsafe { CudaStream::from_raw(context.0, of_second.as_raw(), ()) };
    assert!(matches!(mixed, Err(Error::OtherContext)), "{mixed:?}");
    String::new()
}

fn lost() -> String {
    let device = Device::new(0).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(matches!(error, Error::DeviceLost { call: "cuStreamSynchronize", code: 719 }), "{error:?}");
    error.to_string()
}

/// Fills the arena with structures of `words` words each.
fn fill_arena(words: u64) -> Vec<Structure> {
    std::iter::from_fn(|| Structure::new("test::Structure", words).ok()).collect()
}

fn full_arena() -> String {
    let device = Device::new(0).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let empty = || CudaTensor::<f32>::empty([1000], &stream);
    let first = empty().unwrap();
    let before = memory_stats(&device);
    // The last structures have the size of a tensor's structure.
    let all = [1 << 16, 1 << 10, 4].map(fill_arena);
    for _ in 0..3 {
        let error = empty().unwrap_err();
        assert!(matches!(error, Error::Core(CoreError::OutOfMemory { .. })), "{error}");
        assert_eq!(memory_stats(&device), before);
    }
    drop(all);
    drop((empty().unwrap(), first));
    assert_eq!(memory_stats(&device).allocated, 0);
    String::new()
}

/// Returns the results of calls in a forked child of this process, which has used the driver.
fn forked() -> String {
    let (mut reading, mut writing) = std::io::pipe().unwrap();
    // SAFETY: no other thread of this process is active. The copy writes to a pipe and ends.
    match unsafe { libc::fork() } {
        0 => {
            let text = match Device::new(0) {
                Ok(_) => "a device".to_owned(),
                Err(error) => error.to_string(),
            };
            _ = std::io::Write::write_all(&mut writing, text.as_bytes());
            // SAFETY: the call ends the copy.
            unsafe { libc::_exit(0) }
        }
        copy => {
            drop(writing);
            let text = std::io::read_to_string(&mut reading).unwrap();
            let copy = rustix::process::Pid::from_raw(copy).unwrap();
            rustix::process::waitpid(Some(copy), rustix::process::WaitOptions::empty()).unwrap();
            text
        }
    }
}

#[track_caller]
fn said(client: &Client, scenario: &str) -> String {
    String::from_utf8(client.call(scenario, &[], &[]).bytes).unwrap()
}

#[track_caller]
fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} in {text:?}");
    }
}

#[test]
fn devices_are_identified_by_uuid() {
    let session = setup().set("PROFILE", "two-gpus").start().unwrap();
    let text = said(&Client::bare(Some(&session), &[]), "mp-cuda: devices");
    let other = said(&Client::bare(Some(&session), &[("CUDA_VISIBLE_DEVICES", "1,0")]), "mp-cuda: devices");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(other.lines().rev().collect::<Vec<_>>(), lines);
    assert_says(&text, &["GPU-6d702d63-", "NVIDIA H100 (simulated)"]);
    nothing_found(&session);
}

#[test]
fn streams_are_created_borrowed_and_destroyed() {
    let session = setup().start().unwrap();
    let a = Client::bare(Some(&session), &[]);
    said(&a, "mp-cuda: streams");
    // The client itself has retained the context, whose default stream exists.
    assert_eq!(stat(&session, "streams"), 1);
    a.leave();
    until(&session, "processes", 0);
    nothing_found(&session);
}

#[test]
fn each_cuda_call_restores_the_current_context() {
    let session = setup().set("PROFILE", "two-gpus").start().unwrap();
    said(&Client::bare(Some(&session), &[]), "mp-cuda: contexts");
    nothing_found(&session);
}

#[test]
fn full_arena_frees_the_device_memory() {
    let session = setup().start().unwrap();
    let client = Client::bare(Some(&session), &[("MP_ARENA_SIZE", "67108864")]);
    said(&client, "mp-cuda: full arena");
    client.leave();
    nothing_found(&session);
}

#[test]
fn missing_driver_error_names_the_package() {
    let first = |client: &Client| said(client, "mp-cuda: first device");
    let session = setup().start().unwrap();
    let with = |rule: &str| first(&Client::bare(Some(&session), &[("MP_CUDA_SIM_INJECT", rule)]));
    assert_says(&first(&Client::bare(Some(&session), &[])), &["GPU-"]);
    assert_says(
        &with("fail=cuInit:1:34"),
        &["a toolkit's stub", "take the folder `stubs` out of LD_LIBRARY_PATH"],
    );
    assert_says(&with("fail=cuInit:1:100"), &["no device that this process may use", "nvidia-smi"]);
    assert_says(&with("fail=cuInit:1:803"), &["cuInit", "SYSTEM_DRIVER_MISMATCH (803)", "reboot"]);
    assert_says(
        &with("fail=cuDeviceGetCount:1:4321"),
        &["neither this version of mp-cuda nor the driver names (4321)"],
    );
    // A failure isn't cached.
    let again = Client::bare(Some(&session), &[("MP_CUDA_SIM_INJECT", "fail=cuInit:1:100")]);
    assert_says(&first(&again), &["no device that this process may use"]);
    assert_says(&first(&again), &["GPU-"]);
    // Without a session, or after its end, the simulated driver has no device.
    for engine in ["", "/nowhere"] {
        assert_says(
            &first(&Client::bare(Some(&session), &[("MP_CUDA_SIM", engine)])),
            &["no device that this process may use"],
        );
    }
    let old = setup().set("PROFILE", "old").start().unwrap();
    assert_says(&first(&Client::bare(Some(&old), &[])), &["supports CUDA 11.4, and CUDA 11.7 is needed"]);
    let hidden = setup().hide("cuStreamIsCapturing").start().unwrap();
    assert_says(
        &first(&Client::bare(Some(&hidden), &[])),
        &["cuStreamIsCapturing", "install NVIDIA's driver"],
    );
    // Optional functions of the driver may be missing.
    let hidden = setup().hide("cuDeviceGetUuid_v2").hide("cuStreamWaitValue64_v2").start().unwrap();
    assert_says(&first(&Client::bare(Some(&hidden), &[])), &["GPU-"]);
}

#[test]
fn calls_without_a_driver_are_errors() {
    let error = Device::new(0).unwrap_err();
    assert!(
        matches!(&error, Error::NoDriver { tried } if tried.len() == 2),
        "{error:?}: is there a driver here?"
    );
    assert_says(&error.to_string(), &["libcuda.so.1", "install NVIDIA's driver"]);
    assert!(Device::count().is_err() && Device::all().is_err() && Device::by_uuid(Uuid([0; 16])).is_err());
}

#[test]
fn forked_copy_is_refused_without_driver_call() {
    let session = setup().start().unwrap();
    let a = Client::bare(Some(&session), &[]);
    let text = said(&a, "mp-cuda: forked");
    assert_says(&text, &["was forked", "start processes by `spawn`"]);
}

#[test]
fn lost_device_is_a_distinct_error() {
    let session = setup().start().unwrap();
    let rule = ("MP_CUDA_SIM_INJECT", "fail=cuStreamSynchronize:1:719");
    let text = said(&Client::bare(Some(&session), &[rule]), "mp-cuda: lost");
    assert_says(&text, &["LAUNCH_FAILED (719)", "compute-sanitizer", "start another process"]);
}
