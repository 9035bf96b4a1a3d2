//! Tests of device memory: mappings, access, opening by other processes, and lifetime.

use mp_cuda_sim::codes;

use crate::support::{Client, UNIT, file, kinds, nothing_found, setup, stat, touches, until};

#[test]
fn virtual_memory_calls_follow_the_manual() {
    let session = setup().set("MEMORY", 8 * UNIT).start().unwrap();
    let a = Client::new(&session);
    assert_eq!(a.ok("cuMemGetAllocationGranularity", &[0]), UNIT);
    for size in [0, UNIT - 1, UNIT + 4096] {
        assert_eq!(a.code("cuMemCreate", &[size, 0]), codes::INVALID_VALUE, "{size}");
        assert_eq!(a.code("cuMemAddressReserve", &[size, 0]), codes::INVALID_VALUE, "{size}");
    }
    assert_eq!(a.code("cuMemCreate", &[UNIT, 1]), codes::INVALID_DEVICE);
    let (handle, at) = (a.ok("cuMemCreate", &[2 * UNIT, 0]), a.ok("cuMemAddressReserve", &[2 * UNIT, 0]));
    let map = |at: u64, size: u64, offset: u64, handle: u64| a.code("cuMemMap", &[at, size, offset, handle]);
    assert_eq!(map(at, 2 * UNIT, UNIT, handle), codes::NOT_SUPPORTED, "an offset");
    assert_eq!(map(at, 4 * UNIT, 0, handle), codes::INVALID_VALUE, "beyond memory and addresses");
    assert_eq!(map(at + UNIT, 2 * UNIT, 0, handle), codes::INVALID_VALUE, "beyond the addresses");
    assert_eq!(map(at, 2 * UNIT, 0, 7), codes::INVALID_VALUE, "no handle");
    assert_eq!(map(at, 2 * UNIT, 0, handle), 0);
    assert_eq!(map(at, 2 * UNIT, 0, handle), codes::INVALID_VALUE, "mapped already");
    // A stream can't write a word that is not accessible yet.
    let stream = a.stream();
    assert_eq!(a.code("cuStreamWriteValue64", &[stream, at, 1]), codes::INVALID_VALUE);
    assert_eq!(a.ok("cuMemGetAccess", &[at, 0]), 0);
    assert_eq!(a.code("cuMemSetAccess", &[at, UNIT, 0, 3]), codes::INVALID_VALUE, "a part of it");
    a.ok("cuMemSetAccess", &[at, 2 * UNIT, 0, 3]);
    assert_eq!(a.ok("cuMemGetAccess", &[at, 0]), 3);
    assert_eq!(a.code("cuStreamWriteValue64", &[stream, at, 1]), 0);
    a.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(a.code("cuMemAddressFree", &[at, 2 * UNIT]), codes::INVALID_VALUE, "still mapped");
    assert_eq!(a.code("cuMemUnmap", &[at, UNIT]), codes::INVALID_VALUE, "a part of it");
    a.ok("cuMemUnmap", &[at, 2 * UNIT]);
    a.ok("cuMemAddressFree", &[at, 2 * UNIT]);
    a.ok("cuMemRelease", &[handle]);
    assert_eq!(a.code("cuMemRelease", &[handle]), codes::INVALID_VALUE);
    assert_eq!(kinds(&session), ["refused"; 3], "{:?}", session.findings());
}

#[test]
fn device_memory_is_freed_with_its_last_reference() {
    let session = setup().set("MEMORY", 4 * UNIT).start().unwrap();
    let a = Client::new(&session);
    let (handle, at) = a.memory(UNIT);
    let export = a.export(handle);
    a.ok("cuMemRelease", &[handle]);
    assert_eq!(stat(&session, "bytes"), UNIT, "it is mapped");
    a.ok("cuMemUnmap", &[at, UNIT]);
    assert_eq!(stat(&session, "bytes"), UNIT, "it is exported");
    assert_eq!(a.code("cuMemCreate", &[4 * UNIT, 0]), codes::OUT_OF_MEMORY);
    let info = a.call("cuMemGetInfo", &[], &[]);
    assert_eq!((info.number, info.other), (3 * UNIT, 4 * UNIT));
    // The maker is killed. Another process opens the memory by the descriptor.
    a.kill();
    until(&session, "processes", 0);
    let b = Client::new(&session);
    let imported = b.import(&export);
    assert_eq!((imported.code, stat(&session, "bytes")), (0, UNIT));
    b.ok("cuMemRelease", &[imported.number]);
    drop(export);
    assert_eq!(stat(&session, "bytes"), UNIT, "the other process still has the descriptor");
    b.ok("close-files", &[]);
    until(&session, "bytes", 0);
    assert_eq!(b.import(&file(4096)).code, codes::INVALID_VALUE, "a descriptor of something else");
    nothing_found(&session);
}

#[test]
fn address_of_memory_differs_per_process() {
    let session = setup().start().unwrap();
    let (a, b) = (Client::new(&session), Client::new(&session));
    let (handle, at) = a.memory(UNIT);
    let export = a.export(handle);
    let before = b.ok("open-files", &[]);
    let there = b.import(&export);
    // The descriptor that the test passed stays open in the caller.
    assert_eq!(b.ok("open-files", &[]), before + 1);
    let there = b.map(there.number, UNIT);
    assert_ne!(at, there);
    assert!(!touches(at) && b.ok("touch", &[there]) == 0, "no host reaches a device's memory");
    let stream = a.stream();
    a.fill(stream, at, 1000, 2.5);
    a.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(b.floats(there, 1000), vec![2.5; 1000]);
    assert_eq!(b.code("cuMemcpyDtoH", &[at, 4]), codes::INVALID_VALUE, "the other process's address");
    // The retained handle refers to the same memory.
    let again = b.ok("cuMemRetainAllocationHandle", &[there + 100]);
    b.ok("cuMemRelease", &[again]);
    nothing_found(&session);
}

#[test]
fn peer_mapping_requires_enabled_access() {
    let session = setup().set("PROFILE", "two-gpus").start().unwrap();
    let a = Client::new(&session);
    let (_, at) = a.memory(UNIT);
    let second = a.ok("cuDevicePrimaryCtxRetain", &[1]);
    a.ok("cuCtxSetCurrent", &[second]);
    assert_eq!(a.code("cuMemcpyDtoH", &[at, 4]), codes::INVALID_VALUE);
    a.ok("cuMemSetAccess", &[at, UNIT, 1, 1]);
    assert_eq!(a.code("cuMemcpyHtoD", &[at]), 0, "nothing to copy");
    assert_eq!(a.call("cuMemcpyHtoD", &[at], &[1; 4]).code, codes::INVALID_VALUE, "it may only read");
    a.ok("cuMemSetAccess", &[at, UNIT, 1, 3]);
    assert_eq!(a.call("cuMemcpyHtoD", &[at], &[1; 4]).code, 0);
    assert_eq!(a.call("cuMemcpyDtoH", &[at, 4], &[]).bytes, [1; 4]);
    nothing_found(&session);
}

#[test]
fn visible_devices_follow_the_environment() {
    let session = setup().set("PROFILE", "two-gpus").start().unwrap();
    let both = Client::new(&session);
    let uuids = [0, 1].map(|device| both.call("cuDeviceGetUuid", &[device], &[]).bytes);
    assert_ne!(uuids[0], uuids[1]);
    let second = Client::with(&session, &[("CUDA_VISIBLE_DEVICES", "1")]);
    assert_eq!(
        (second.ok("cuDeviceGetCount", &[]), second.call("cuDeviceGetUuid", &[0], &[]).bytes),
        (1, uuids[1].clone())
    );
    let none = Client::bare(Some(&session), &[("CUDA_VISIBLE_DEVICES", "-1")]);
    assert_eq!(none.code("cuInit", &[0]), codes::NO_DEVICE);
    // Memory of a device that is not visible to the process.
    let handle = both.ok("cuMemCreate", &[UNIT, 0]);
    assert_eq!(second.import(&both.export(handle)).code, codes::INVALID_DEVICE);
}

#[test]
fn legacy_handle_opens_the_whole_block() {
    let session = setup().start().unwrap();
    let (a, b) = (Client::new(&session), Client::new(&session));
    let (one, two) = (a.ok("cuMemAlloc", &[1000]), a.ok("cuMemAlloc", &[1000]));
    assert_eq!((two - one, stat(&session, "bytes")), (1024, UNIT), "side by side");
    let range = a.call("cuMemGetAddressRange", &[two + 10], &[]);
    assert_eq!((range.number, range.other), (two, 1000));
    a.call("cuMemcpyHtoD", &[two], &[7; 1000]);
    let handle = a.call("cuIpcGetMemHandle", &[one], &[]).bytes;
    assert_eq!(a.call("cuIpcOpenMemHandle", &[], &handle).code, codes::INVALID_CONTEXT, "its own handle");
    let open = || b.call("cuIpcOpenMemHandle", &[], &handle).number;
    let there = open();
    assert_eq!(open(), there, "opened once, and counted");
    assert_eq!(b.call("cuMemcpyDtoH", &[there + 1024, 1000], &[]).bytes, [7; 1000]);
    assert_eq!(b.ok("cuPointerGetAttribute", &[10, there]), 0, "it can't be sent on");
    b.ok("cuIpcCloseMemHandle", &[there]);
    nothing_found(&session);
    // Memory is freed while another process has it open.
    a.ok("cuMemFree", &[one]);
    a.ok("cuMemFree", &[two]);
    assert_eq!(kinds(&session), ["freed-while-open"]);
    b.ok("cuIpcCloseMemHandle", &[there]);
    assert_eq!(b.code("cuIpcCloseMemHandle", &[there]), codes::INVALID_VALUE);
    assert_eq!(kinds(&session), ["freed-while-open", "refused"]);
    until(&session, "bytes", 0);
    assert_eq!(b.call("cuIpcOpenMemHandle", &[], &handle).code, codes::INVALID_HANDLE);
}

/// Opening a handle returns the address of its piece, not of the block that contains the piece.
#[test]
fn ipc_handle_opens_at_the_address_of_its_piece() {
    let session = setup().start().unwrap();
    let (a, b) = (Client::new(&session), Client::new(&session));
    let (one, two) = (a.ok("cuMemAlloc", &[1000]), a.ok("cuMemAlloc", &[1000]));
    a.call("cuMemcpyHtoD", &[two], &[7; 1000]);
    let handle = a.call("cuIpcGetMemHandle", &[two], &[]).bytes;
    let there = b.call("cuIpcOpenMemHandle", &[], &handle).number;
    assert_eq!(b.call("cuMemcpyDtoH", &[there, 1000], &[]).bytes, [7; 1000]);
    b.ok("cuIpcCloseMemHandle", &[there]);
    a.ok("cuMemFree", &[one]);
    a.ok("cuMemFree", &[two]);
    nothing_found(&session);
}

#[test]
fn pools_and_managed_memory_have_no_handles() {
    let session = setup().start().unwrap();
    let a = Client::new(&session);
    let stream = a.stream();
    let (pool, managed) = (a.ok("cuMemAllocAsync", &[100, stream]), a.ok("cuMemAllocManaged", &[100]));
    let attribute = |number: u64, at: u64| a.ok("cuPointerGetAttribute", &[number, at]);
    assert_eq!(
        [pool, managed].map(|at| [8, 10, 14].map(|number| attribute(number, at))),
        [[0; 3], [1, 0, 0]]
    );
    assert_eq!([pool, managed].map(|at| attribute(17, at) != 0), [true, false]);
    for at in [pool, managed] {
        assert_eq!(a.call("cuIpcGetMemHandle", &[at], &[]).code, codes::INVALID_VALUE);
    }
    assert_eq!(a.code("cuMemFreeAsync", &[managed, stream]), codes::INVALID_VALUE);
    // The memory is freed at the stream's turn, and not before.
    a.call("cuMemcpyHtoD", &[pool], &[7; 100]);
    a.ok("cuMemFreeAsync", &[pool, stream]);
    assert_eq!(a.code("cuMemFreeAsync", &[pool, stream]), codes::INVALID_VALUE, "twice");
    a.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(stat(&session, "bytes"), UNIT);
    assert_eq!(a.code("cuMemFree", &[pool]), codes::INVALID_VALUE);
    a.ok("cuMemFree", &[managed]);
    assert_eq!(stat(&session, "bytes"), 0);
    // Refused calls: a pool's call for managed memory, a second free, and another free for a pool's memory.
    assert_eq!(kinds(&session), ["refused"; 3]);
}

#[test]
fn pointer_attributes_name_the_memory_kind() {
    let session = setup().start().unwrap();
    let a = Client::new(&session);
    let (_, mapped) = a.memory(UNIT);
    let legacy = a.ok("cuMemAlloc", &[100]);
    let (host, device) = a.register(&file(4096), 4096);
    let attribute = |number: u64, at: u64| a.call("cuPointerGetAttribute", &[number, at], &[]);
    assert_eq!([mapped, legacy, device, host].map(|at| attribute(2, at).number), [2, 2, 1, 1]);
    assert_eq!([mapped, legacy].map(|at| attribute(10, at).number), [0, 1], "legacy handles");
    assert_eq!([mapped, legacy].map(|at| attribute(14, at).number), [1, 0], "descriptors");
    assert_eq!((attribute(18, mapped + 5).number, attribute(19, mapped + 5).number), (UNIT, mapped));
    assert_eq!((attribute(11, legacy + 5).number, attribute(12, legacy + 5).number), (legacy, 100));
    assert_eq!(attribute(3, host + 8).number, device + 8);
    assert_eq!(attribute(2, 4096).code, codes::INVALID_VALUE);
    nothing_found(&session);
}

#[test]
fn registered_memory_is_shared_with_the_host() {
    let session = setup().start().unwrap();
    let a = Client::new(&session);
    let shared = file(8192);
    let (host, device) = a.register(&shared, 8192);
    assert_ne!(host, device, "the simulator gives different addresses");
    assert_eq!(a.code("cuMemHostRegister", &[host, 4096]), codes::HOST_MEMORY_ALREADY_REGISTERED);
    let stream = a.stream();
    a.ok("store", &[host + 8, 41]);
    a.ok("cuStreamWaitValue64", &[stream, device + 8, 42, 0]);
    a.ok("cuStreamWriteValue64", &[stream, device, 9]);
    assert_eq!(a.code("cuStreamQuery", &[stream]), codes::NOT_READY);
    a.ok("store", &[host + 8, 42]);
    a.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(a.ok("load", &[host]), 9);
    // Another process has registered the same file. A stream of that process releases this stream.
    let b = Client::new(&session);
    let (_, there) = b.register(&shared, 8192);
    let theirs = b.stream();
    b.ok("cuStreamWaitValue64", &[theirs, there + 16, 5, 0]);
    b.begin("cuStreamSynchronize", &[theirs]);
    assert!(!b.is_over_within(20));
    a.ok("cuStreamWriteValue64", &[stream, device + 16, 5]);
    assert_eq!(b.end().0.code, 0);
    a.ok("cuMemHostUnregister", &[host]);
    assert_eq!(a.code("cuMemHostUnregister", &[host]), codes::HOST_MEMORY_NOT_REGISTERED);
    assert_eq!(a.code("cuStreamWriteValue64", &[stream, device, 9]), codes::INVALID_VALUE);
    assert_eq!(kinds(&session), ["refused"]);
}

#[test]
fn long_device_copies_round_trip() {
    let session = setup().set("LAZY_MS", 60_000).start().unwrap();
    let a = Client::new(&session);
    let at = a.ok("cuMemAlloc", &[150_000]);
    let bytes: Vec<u8> = (0..150_000_u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(a.call("cuMemcpyHtoD", &[at], &bytes).code, 0);
    assert!(a.call("cuMemcpyDtoH", &[at, 150_000], &[]).bytes == bytes);
    let other = a.ok("cuMemAlloc", &[150_000]);
    a.ok("cuMemcpyDtoDAsync", &[other, at, 150_000, 0]);
    assert!(a.call("cuMemcpyDtoH", &[other, 150_000], &[]).bytes == bytes);
    // Copies of memory that the device accesses directly are made when the stream reaches them.
    let pinned = a.ok("cuMemHostAlloc", &[4096]);
    a.ok("store", &[pinned, 1]);
    let stream = a.stream();
    a.ok("cuMemcpyHtoDAsync", &[at, stream, 8, pinned]);
    a.ok("store", &[pinned, 2]);
    a.ok("cuMemcpyDtoHAsync", &[at, stream, 8, pinned + 8]);
    a.ok("cuStreamSynchronize", &[stream]);
    assert_eq!(a.ok("load", &[pinned + 8]), 2, "read late");
    a.ok("cuMemFreeHost", &[pinned]);
    nothing_found(&session);
}
