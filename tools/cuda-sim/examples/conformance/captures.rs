//! Tests which calls invalidate captures of other streams. Each call is made for each capture mode, in the
//! capturing thread and in another thread, with and without the relaxed mode.
//!
//! # Safety
//! Unsafe, because it calls a driver. Sound, because calls write only to variables of the calling function,
//! and the driver's functions have the types of its manual.
#![allow(unsafe_code)]

use super::{AccessDesc, AllocationProp, DriverHandle, Location, Log};

/// `CUstreamCaptureMode`.
const MODES: [&str; 3] = ["global", "local", "relaxed"];
const RELAXED: i32 = 2;

type Begin = unsafe extern "C" fn(DriverHandle, u32) -> u32;
type End = unsafe extern "C" fn(DriverHandle, *mut DriverHandle) -> u32;
type Destroy = unsafe extern "C" fn(DriverHandle) -> u32;

/// Functions of the driver for graphs, which `mp-cuda` doesn't call.
pub(super) struct Graphs {
    begin: Begin,
    end: End,
    destroy: Destroy,
}

impl Graphs {
    pub(super) fn load(library: &libloading::Library) -> Self {
        // SAFETY: the driver's function of this name has this type.
        let begin = unsafe { library.get::<Begin>(b"cuStreamBeginCapture_v2") };
        // SAFETY: the driver's function of this name has this type.
        let end = unsafe { library.get::<End>(b"cuStreamEndCapture") };
        // SAFETY: the driver's function of this name has this type.
        let destroy = unsafe { library.get::<Destroy>(b"cuGraphDestroy") };
        Self { begin: *begin.unwrap(), end: *end.unwrap(), destroy: *destroy.unwrap() }
    }
}

/// Arguments of the calls.
#[derive(Clone, Copy)]
struct CallArguments {
    other: DriverHandle,
    event: DriverHandle,
    memory: u64,
    page: DriverHandle,
}

type Call = fn(&Log, CallArguments) -> u32;

const CALLS: [(&str, Call); 16] = [
    ("cuStreamQuery of another stream", |me, with| cu!(me.cuStreamQuery(with.other))),
    ("cuStreamSynchronize of another stream", |me, with| cu!(me.cuStreamSynchronize(with.other))),
    ("cuEventRecord on another stream", |me, with| cu!(me.cuEventRecord(with.event, with.other))),
    ("cuEventQuery", |me, with| cu!(me.cuEventQuery(with.event))),
    ("cuMemFree", |me, with| cu!(me.cuMemFree_v2(with.memory))),
    ("cuMemHostRegister", |me, with| cu!(me.cuMemHostRegister_v2(with.page.0, PAGE, 3))),
    ("cuEventCreate, cuEventDestroy", |me, _| {
        let mut event = DriverHandle::NULL;
        let code = cu!(me.cuEventCreate(&raw mut event, 2));
        if code == 0 { cu!(me.cuEventDestroy_v2(event)) } else { code }
    }),
    ("cuStreamCreate, cuStreamDestroy", |me, _| {
        let mut stream = DriverHandle::NULL;
        let code = cu!(me.cuStreamCreate(&raw mut stream, 1));
        if code == 0 { cu!(me.cuStreamDestroy_v2(stream)) } else { code }
    }),
    ("cuMemAlloc", |me, _| {
        let mut memory = 0;
        cu!(me.cuMemAlloc_v2(&raw mut memory, PAGE))
    }),
    ("cuMemCreate, Reserve, Map, SetAccess, Unmap", |me, _| me.maps_and_unmaps()),
    ("cuMemsetD8Async on another stream", |me, with| {
        cu!(me.cuMemsetD8Async(with.memory, 1, PAGE, with.other))
    }),
    ("cuMemcpyHtoDAsync on another stream", |me, with| {
        let bytes = [1_u8; 64];
        cu!(me.cuMemcpyHtoDAsync_v2(with.memory, bytes.as_ptr().cast(), bytes.len(), with.other))
    }),
    ("cuMemcpyDtoHAsync on another stream", |me, with| {
        let mut bytes = [0_u8; 64];
        cu!(me.cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), with.memory, bytes.len(), with.other))
    }),
    ("cuStreamWriteValue64, WaitValue64 on another stream", |me, with| {
        let code = newer!(me.cuStreamWriteValue64_v2(with.other, with.memory, 1, 0));
        if code == 0 { newer!(me.cuStreamWaitValue64_v2(with.other, with.memory, 1, 0)) } else { code }
    }),
    ("cuLaunchHostFunc on another stream", |me, with| {
        extern "C" fn nothing(_: *mut std::ffi::c_void) {}
        newer!(me.cuLaunchHostFunc(with.other, nothing, std::ptr::null_mut()))
    }),
    ("cuCtxSynchronize", |me, _| cu!(me.cuCtxSynchronize())),
];

const PAGE: usize = 4096;
const SLAB: usize = 2 << 20;

impl Log {
    pub(super) fn captures(&mut self, context: DriverHandle) {
        let (mut captured, mut other, mut event) =
            (DriverHandle::NULL, DriverHandle::NULL, DriverHandle::NULL);
        self.say("cuStreamCreate", cu!(self.cuStreamCreate(&raw mut captured, 1)));
        self.say("cuStreamCreate", cu!(self.cuStreamCreate(&raw mut other, 1)));
        self.say("cuEventCreate", cu!(self.cuEventCreate(&raw mut event, 2)));
        self.say("cuEventRecord", cu!(self.cuEventRecord(event, other)));
        self.say("cuStreamSynchronize", cu!(self.cuStreamSynchronize(other)));
        let page = DriverHandle(super::shared(PAGE));
        for (name, call) in CALLS {
            for (mode, mode_name) in (0..).zip(MODES) {
                for (by, elsewhere, relaxed) in [
                    ("its thread", false, false),
                    ("its thread, relaxed", false, true),
                    ("another", true, false),
                    ("another, relaxed", true, true),
                ] {
                    let mut with = CallArguments { other, event, memory: 0, page };
                    cu!(self.cuMemAlloc_v2(&raw mut with.memory, PAGE));
                    // SAFETY: the stream is alive.
                    let begun = unsafe { (self.graphs.begin)(captured, mode) };
                    let code = match elsewhere {
                        false => self.in_mode(relaxed, call, with),
                        true => self.elsewhere(context, relaxed, call, with),
                    };
                    let mut graph = DriverHandle::NULL;
                    // SAFETY: the stream is alive; the graph is written to a variable of this function.
                    let ended = unsafe { (self.graphs.end)(captured, &raw mut graph) };
                    if ended == 0 {
                        // SAFETY: the graph was made above, and is destroyed once.
                        unsafe { (self.graphs.destroy)(graph) };
                    }
                    let [begun, code, ended] = [begun, code, ended].map(super::named);
                    self.line(&format!(
                        "{name}, a capture {mode_name}, {by}: begun {begun}, {code}, ended {ended}"
                    ));
                    // Only a successful `cuMemFree` has already freed the memory.
                    if name != "cuMemFree" || code != "SUCCESS" {
                        cu!(self.cuMemFree_v2(with.memory));
                    }
                    cu!(self.cuMemHostUnregister(page.0));
                }
            }
        }
        self.say("cuEventDestroy", cu!(self.cuEventDestroy_v2(event)));
        self.say("cuStreamDestroy", cu!(self.cuStreamDestroy_v2(captured)));
        self.say("cuStreamDestroy", cu!(self.cuStreamDestroy_v2(other)));
    }

    fn in_mode(&self, relaxed: bool, call: Call, with: CallArguments) -> u32 {
        if !relaxed {
            return call(self, with);
        }
        let mut mode = RELAXED;
        newer!(self.cuThreadExchangeStreamCaptureMode(&raw mut mode));
        let code = call(self, with);
        newer!(self.cuThreadExchangeStreamCaptureMode(&raw mut mode));
        code
    }

    /// Creates, maps, unmaps and releases a slab. Returns the largest result of these calls.
    fn maps_and_unmaps(&self) -> u32 {
        let prop = AllocationProp::shareable(0);
        let (mut handle, mut at) = (0, 0);
        let access = AccessDesc { location: Location { kind: 1, id: 0 }, flags: 3 };
        let made = newer!(self.cuMemCreate(&raw mut handle, SLAB, &raw const prop, 0));
        let reserved = newer!(self.cuMemAddressReserve(&raw mut at, SLAB, 0, 0, 0));
        let mapped = newer!(self.cuMemMap(at, SLAB, 0, handle, 0));
        let set = newer!(self.cuMemSetAccess(at, SLAB, &raw const access, 1));
        let unmapped = newer!(self.cuMemUnmap(at, SLAB));
        let freed = newer!(self.cuMemAddressFree(at, SLAB));
        let released = newer!(self.cuMemRelease(handle));
        [made, reserved, mapped, set, unmapped, freed, released].into_iter().max().unwrap_or(0)
    }

    /// Makes a call in a new thread, in which `context` is current. Makes the call in the relaxed mode if
    /// `relaxed` is set. Returns the result of the call.
    fn elsewhere(&self, context: DriverHandle, relaxed: bool, call: Call, with: CallArguments) -> u32 {
        let run = || {
            cu!(self.cuCtxSetCurrent(context));
            self.in_mode(relaxed, call, with)
        };
        std::thread::scope(|scope| scope.spawn(run).join()).unwrap()
    }
}
