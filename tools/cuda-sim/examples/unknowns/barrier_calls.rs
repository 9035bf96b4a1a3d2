//! Calls to measure: preparation of each, the call, and the clean-up afterwards, with all streams idle.

use std::os::fd::AsRawFd;

use mp_cuda::driver::api::DriverHandle;

use crate::barriers::{BLOCK, Bench, PIECE};
use crate::gpu::{Outcome, ProbeError};

type Step = fn(&mut Bench) -> Outcome;

pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) before: Step,
    pub(crate) call: Step,
    pub(crate) after: Step,
}

const fn call(name: &'static str, before: Step, call: Step, after: Step) -> Call {
    Call { name, before, call, after }
}

fn nothing(_: &mut Bench) -> Outcome {
    Ok(())
}

fn register(me: &mut Bench) -> Outcome {
    me.gpu.register(me.pages.host, me.pages.bytes).map(drop)
}

fn unregister(me: &mut Bench) -> Outcome {
    me.gpu.unregister(me.pages.host)
}

fn create(me: &mut Bench) -> Outcome {
    me.handle = me.gpu.create(BLOCK)?;
    Ok(())
}

fn map(me: &mut Bench) -> Outcome {
    me.at = me.gpu.mapped(me.handle, BLOCK)?;
    Ok(())
}

fn create_and_map(me: &mut Bench) -> Outcome {
    create(me)?;
    map(me)
}

fn release(me: &mut Bench) -> Outcome {
    me.file = None;
    me.gpu.release(me.handle)
}

fn unmap_only(me: &mut Bench) -> Outcome {
    me.gpu.unmap(me.at, BLOCK)
}

fn unmap(me: &mut Bench) -> Outcome {
    unmap_only(me)?;
    me.gpu.give_back(me.at, BLOCK)?;
    release(me)
}

fn import(me: &mut Bench) -> Outcome {
    me.handle = me.gpu.import(me.their_file.as_raw_fd())?;
    map(me)
}

fn alloc(me: &mut Bench) -> Outcome {
    me.at = me.gpu.alloc(PIECE)?;
    Ok(())
}

fn free(me: &mut Bench) -> Outcome {
    me.gpu.free(me.at)
}

fn alloc_async(me: &mut Bench) -> Outcome {
    me.at = me.gpu.alloc_async(PIECE, me.b)?;
    Ok(())
}

fn free_async(me: &mut Bench) -> Outcome {
    me.gpu.free_async(me.at, me.b)
}

fn load(me: &mut Bench) -> Outcome {
    me.object = me.gpu.module(mp_cuda_sim::KERNELS)?;
    Ok(())
}

fn unload(me: &mut Bench) -> Outcome {
    me.gpu.unload(me.object)
}

fn function(me: &mut Bench) -> Outcome {
    me.gpu.function(me.object, "sum_f32").map(drop)
}

/// Launches the function for the first time in its module.
fn launch(me: &mut Bench, function: DriverHandle) -> Outcome {
    me.gpu.launch(function, me.b, (1, 32), vec![me.buffer, me.buffer + 4096, 16])
}

fn load_and_get(me: &mut Bench) -> Outcome {
    load(me)?;
    function(me)?;
    me.gpu.set_bytes(me.buffer, 0, 8192, me.b)
}

fn first_launch(me: &mut Bench) -> Outcome {
    let function = me.gpu.function(me.object, "sum_f32")?;
    launch(me, function)
}

fn stream(me: &mut Bench) -> Outcome {
    me.object = me.gpu.stream()?;
    Ok(())
}

fn destroy_stream(me: &mut Bench) -> Outcome {
    me.gpu.destroy_stream(me.object)
}

fn new_b(me: &mut Bench) -> Outcome {
    me.stream = Some(me.gpu.stream()?);
    Ok(())
}

fn old_b(me: &mut Bench) -> Outcome {
    let stream = me.stream.take().ok_or_else(|| ProbeError("no stream".to_owned()))?;
    me.gpu.destroy_stream(stream)
}

fn event(me: &mut Bench) -> Outcome {
    me.object = me.gpu.event()?;
    Ok(())
}

fn destroy_event(me: &mut Bench) -> Outcome {
    me.gpu.destroy_event(me.object)
}

fn open_event(me: &mut Bench) -> Outcome {
    me.object = me.gpu.open_event(me.their_event)?;
    Ok(())
}

fn open_memory(me: &mut Bench) -> Outcome {
    me.at = me.gpu.open_memory(me.their_memory)?;
    Ok(())
}

fn close_memory(me: &mut Bench) -> Outcome {
    me.gpu.close_memory(me.at)
}

pub(crate) const CALLS: &[Call] = &[
    call("nothing", nothing, nothing, nothing),
    call("cuLaunchKernel on B", nothing, |me| me.gpu.fill(me.b, me.buffer, 4096, 1.0), nothing),
    call("cuMemHostRegister of 256 KiB", nothing, register, unregister),
    call("cuMemHostUnregister", register, unregister, nothing),
    call("cuMemCreate, Reserve, Map, SetAccess of 32 MiB", nothing, create_and_map, unmap),
    call("  cuMemCreate alone", nothing, create, release),
    call("  Reserve, Map, SetAccess alone", create, map, unmap),
    call(
        "cuMemExportToShareableHandle",
        create,
        |me| {
            me.file = Some(me.gpu.export(me.handle)?);
            Ok(())
        },
        release,
    ),
    call("import, Reserve, Map, SetAccess of another's", nothing, import, unmap),
    call("cuMemUnmap, AddressFree, Release", create_and_map, unmap, nothing),
    call("  cuMemUnmap alone", create_and_map, unmap_only, |me| {
        me.gpu.give_back(me.at, BLOCK)?;
        release(me)
    }),
    call("cuMemAlloc of 8 MiB", nothing, alloc, free),
    call("cuMemFree", alloc, free, nothing),
    call("cuMemAllocAsync on B", nothing, alloc_async, free_async),
    call("cuMemFreeAsync on B", alloc_async, free_async, nothing),
    call("cuMemsetD8Async on B", nothing, |me| me.gpu.set_bytes(me.buffer, 1, PIECE, me.b), nothing),
    call("cuMemsetD32Async on B", nothing, |me| me.gpu.set_words(me.buffer, 1, PIECE / 4, me.b), nothing),
    call(
        "cuMemcpyHtoDAsync, pageable, 1 MiB, on B",
        nothing,
        |me| me.gpu.to_device(me.buffer, me.bytes, me.b),
        nothing,
    ),
    call("  the same of 1 KiB", nothing, |me| me.gpu.to_device(me.buffer, &me.bytes[..1024], me.b), nothing),
    call(
        "cuMemcpyHtoD without a stream, 1 KiB",
        nothing,
        |me| me.gpu.to_device_now(me.buffer, &me.bytes[..1024]),
        nothing,
    ),
    call(
        "cuMemcpyDtoHAsync, pageable, 1 MiB, on B",
        |me| me.gpu.set_bytes(me.buffer, 1, PIECE, me.b),
        |me| me.gpu.to_host_async(Box::leak(vec![0; 1 << 20].into_boxed_slice()), me.buffer, me.b),
        nothing,
    ),
    call(
        "cuMemcpyDtoDAsync on B",
        |me| me.gpu.set_bytes(me.buffer, 1, PIECE, me.b),
        |me| me.gpu.on_device(me.buffer + PIECE as u64, me.buffer, PIECE, me.b),
        nothing,
    ),
    call("cuModuleLoadData", nothing, load, unload),
    call("cuModuleGetFunction, not loaded yet", load, function, unload),
    call("  its first launch on B", load_and_get, first_launch, unload),
    call("cuModuleUnload", load, unload, nothing),
    call("cuStreamCreate, the write on the new one", nothing, new_b, old_b),
    call("cuStreamDestroy of an idle third", stream, destroy_stream, nothing),
    call("cuEventCreate, between processes", nothing, event, destroy_event),
    call("cuIpcGetEventHandle", event, |me| me.gpu.event_handle(me.object).map(drop), destroy_event),
    call("cuIpcOpenEventHandle of another's", nothing, open_event, destroy_event),
    call("cuEventDestroy of another's", open_event, destroy_event, nothing),
    call("cuIpcGetMemHandle", alloc, |me| me.gpu.memory_handle(me.at).map(drop), free),
    call("cuIpcOpenMemHandle of another's", nothing, open_memory, close_memory),
    call("cuIpcCloseMemHandle", open_memory, close_memory, nothing),
    call("cuLaunchHostFunc on B", nothing, |me| me.gpu.host_function(me.b), nothing),
    call(
        "cuMemHostAlloc of 256 KiB and cuMemFreeHost",
        nothing,
        |me| me.gpu.free_host(me.gpu.host_alloc(256 << 10)?),
        nothing,
    ),
    call("cuMemGetInfo", nothing, |me| me.gpu.free_bytes().map(drop), nothing),
];
