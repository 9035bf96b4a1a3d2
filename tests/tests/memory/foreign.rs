//! Memory of other programs as tensors: memfds, files, named memory, storages of a real PyTorch. Also this
//! library's memory in other programs.
#![allow(unsafe_code)]
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use mp::memory::MappedFile;
use mp::{Error, SharedMemory, Tensor};
use mp_tests::limits::{Resource, limit};
use mp_tests::python::{self, Python, number};
use mp_tests::{Outcome, join, one_process};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};

fn memfd(bytes: &[u8]) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    File::from(fd.try_clone().unwrap()).write_all(bytes).unwrap();
    fd
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

#[test]
fn files_and_memfds_are_copied_into_tensors() {
    let _alone = mp_tests::alone();
    let fd = memfd(&[&[9][..], &bytes_of(&[1.0, 2.0, 3.0, 4.0])].concat());
    let t = Tensor::<f32>::from_fd(&fd, 1, [2, 2]).unwrap();
    assert_eq!(t.to_vec(), [1.0, 2.0, 3.0, 4.0]);
    // The tensor is a copy, so the file is no longer needed.
    ftruncate(&fd, 0).unwrap();
    assert_eq!(t.get(&[1, 1]).unwrap(), 4.0);
    let short = Tensor::<f32>::from_fd(&fd, 0, [1]).unwrap_err();
    assert!(short.to_string().contains("1 element of f32 at byte 0 of a file that has 0 bytes"), "{short}");
    let pipe = rustix::pipe::pipe().unwrap().0;
    assert!(matches!(Tensor::<u8>::from_fd(&pipe, 0, [1]), Err(Error::NotShareable(_))));
    let huge = Tensor::<u64>::from_fd(&fd, u64::MAX, [usize::MAX, 2]);
    assert!(matches!(huge, Err(Error::OutOfBounds(_))));
}

#[test]
fn exported_file_and_memfd_round_trip() {
    let _alone = mp_tests::alone();
    let path = std::env::temp_dir().join(format!("mp-foreign-{}", std::process::id()));
    let t = Tensor::<i16>::from_fn(&[3, 4], |i| i as i16).unwrap();
    t.to_file(&path).unwrap();
    assert!(matches!(t.to_file(&path), Err(Error::Os { .. })), "the file exists already");
    let back = Tensor::<i16>::from_file(&path, 8, [2, 4]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(back.unwrap().to_vec(), (4..12).collect::<Vec<_>>());

    let name = SharedMemory::new(1).unwrap().unlink_on_drop().name().to_owned();
    let memory = t.freeze().transpose(0, 1).unwrap().to_shm(&name).unwrap().unlink_on_drop();
    assert_eq!(memory.len(), 24);
    assert_eq!(Tensor::<i16>::from_shm(&name, 0, [4]).unwrap().to_vec(), [0, 4, 8, 1]);

    let shared = Tensor::<i16>::full([5], 3).unwrap().share();
    let fd = shared.to_memfd().unwrap();
    let seals = fcntl_get_seals(&fd).unwrap();
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW) && !seals.contains(SealFlags::WRITE));
    shared.store(0, 4);
    assert_eq!(Tensor::<i16>::from_fd(&fd, 0, [5]).unwrap().to_vec(), [3; 5], "a copy");
    assert_eq!(
        Tensor::<u8>::zeros([0])
            .unwrap()
            .to_memfd()
            .map(|fd| MappedFile::<u8>::from_fd(fd, 0, 0).unwrap().len())
            .unwrap(),
        0
    );
}

#[test]
fn memfds_are_mapped_in_place() {
    let _alone = mp_tests::alone();
    let fd = memfd(&bytes_of(&[1.0, 2.0, 3.0]));
    let here = MappedFile::<f32>::from_fd(&fd, 4, 2).unwrap();
    let there = MappedFile::<f32>::from_fd(&fd, 0, 3).unwrap();
    assert!(fcntl_get_seals(&fd).unwrap().contains(SealFlags::SHRINK), "sealed by us");
    assert_eq!(rustix::fs::ftruncate(&fd, 4), Err(rustix::io::Errno::PERM));
    here.store(1, 30.0).unwrap();
    assert_eq!(there.to_vec(), [1.0, 2.0, 30.0]);
    assert!(there.as_slice().is_none(), "another process may write the memory");
    assert_eq!(there.to_tensor().unwrap().to_vec(), [1.0, 2.0, 30.0]);

    for (offset, len) in [(0, 4), (4, 3), (u64::MAX - 3, 1), (0, usize::MAX)] {
        let error = MappedFile::<f32>::from_fd(&fd, offset, len).unwrap_err();
        assert!(matches!(error, Error::OutOfBounds(_)), "{error}");
    }
    let misaligned = MappedFile::<f32>::from_fd(&fd, 2, 1).unwrap_err();
    assert!(misaligned.to_string().contains("not a multiple of 4"), "{misaligned}");
}

#[test]
fn small_element_writes_keep_their_neighbors() {
    let _alone = mp_tests::alone();
    let fd = memfd(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    let (bytes, shorts) =
        (MappedFile::<u8>::from_fd(&fd, 0, 11).unwrap(), MappedFile::<u16>::from_fd(&fd, 2, 4).unwrap());
    bytes.store(10, 110).unwrap();
    shorts.store(3, u16::from_ne_bytes([90, 100])).unwrap();
    assert_eq!(bytes.to_vec(), [1, 2, 3, 4, 5, 6, 7, 8, 90, 100, 110]);
}

#[test]
fn write_sealed_file_is_mapped_as_a_slice() {
    let _alone = mp_tests::alone();
    let fd = memfd(&bytes_of(&[1.0, 2.0]));
    fcntl_add_seals(&fd, SealFlags::WRITE | SealFlags::SHRINK).unwrap();
    let mapped = MappedFile::<f32>::from_fd(&fd, 0, 2).unwrap();
    assert_eq!(mapped.as_slice(), Some(&[1.0, 2.0][..]));
    assert!(!mapped.is_writable());
    assert!(matches!(mapped.store(0, 3.0), Err(Error::Unsupported(_))));
    assert_eq!(mapped.load(0), 1.0);
}

#[test]
fn unsealed_foreign_file_is_refused_by_safe_code() {
    let _alone = mp_tests::alone();
    let memory = SharedMemory::new(16).unwrap().unlink_on_drop();
    let error = MappedFile::<u64>::from_fd(&memory, 0, 2).unwrap_err();
    assert!(matches!(&error, Error::NotShareable(why) if why.contains("from_unsealed")), "{error}");
    let sealed = memfd(&[0; 16]);
    fcntl_add_seals(&sealed, SealFlags::SEAL).unwrap();
    assert!(matches!(MappedFile::<u64>::from_fd(&sealed, 0, 2), Err(Error::NotShareable(_))));
    // SAFETY: no other process knows the name, and this process does not shorten the file.
    let mapped = unsafe { MappedFile::<u64>::from_unsealed(&memory, 8, 1) }.unwrap();
    memory.write_at(8, &7_u64.to_ne_bytes()).unwrap();
    assert_eq!(mapped.load(0), 7);
    let read_only = File::open(format!("/dev/shm/{}", memory.name())).unwrap();
    // SAFETY: as above.
    let mapped = unsafe { MappedFile::<u64>::from_unsealed(&read_only, 0, 2) }.unwrap();
    assert!(matches!(mapped.store(0, 3), Err(Error::Unsupported(_))));
    assert_eq!(mapped.to_vec(), [0, 7]);
}

#[test]
fn torch_shared_storages_are_read() {
    let _alone = mp_tests::alone();
    if !python::has("torch") {
        return;
    }
    let script = "
import torch
a = torch.arange(10, dtype=torch.float32)
_, name, size = a.untyped_storage()._share_filename_cpu_()
say(name.decode()); say(size)
b = torch.arange(6, dtype=torch.int64).reshape(2, 3)
fd, size = b.untyped_storage()._share_fd_cpu_()
say(fd); say(size)
input()
say(b.tolist())
";
    let mut python = Python::run(script, &[]);
    let (name, size) = (python.line(), python.line());
    assert!(name.starts_with("/torch_"), "{name}");
    assert_eq!(size, "40");
    // The first 64 bytes are torch's count of holders.
    let a = Tensor::<f32>::from_shm(&name, 64, [2, 5]).unwrap();
    assert_eq!(a.to_vec(), (0..10).map(|i| i as f32).collect::<Vec<_>>());

    let (fd, size) = (python.line(), python.line());
    assert_eq!(size, "48");
    let path = format!("/proc/{}/fd/{fd}", python.pid());
    let file = File::options().read(true).write(true).open(path).unwrap();
    assert_eq!(Tensor::<i64>::from_fd(&file, 0, [2, 3]).unwrap().to_vec(), [0, 1, 2, 3, 4, 5]);
    assert!(MappedFile::<i64>::from_fd(&file, 0, 6).is_err(), "torch's files are not memfds");
    // SAFETY: torch keeps the length of its storages.
    let where_it_is = unsafe { MappedFile::<i64>::from_unsealed(&file, 0, 6) }.unwrap();
    where_it_is.store(5, -5).unwrap();
    python.report("look");
    assert_eq!(python.line(), "[[0, 1, 2], [3, 4, -5]]");
    python.end();
}

#[test]
fn torch_opens_our_storages() {
    let _alone = mp_tests::alone();
    if !python::has("torch") {
        return;
    }
    let fd = Tensor::from_slice(&[1.5_f32, 2.5, 3.5, 4.5], [4]).unwrap().to_memfd().unwrap();
    let there = MappedFile::<f32>::from_fd(&fd, 0, 4).unwrap();
    let script = "
import torch
storage = torch.UntypedStorage._new_shared_fd_cpu(int(sys.argv[1]), 16)
t = torch.empty(0, dtype=torch.float32).set_(storage)
say(t.tolist())
t[2] = 33
say('written')
";
    let mut python = Python::with_fd(script, &[&number(&fd)], Some(&fd));
    assert_eq!(python.line(), "[1.5, 2.5, 3.5, 4.5]");
    assert_eq!(python.line(), "written");
    assert_eq!(there.to_vec(), [1.5, 2.5, 33.0, 4.5]);
    python.end();
}

fn under_a_file_limit(_: usize, name: String) -> Outcome {
    let t = Tensor::<u8>::zeros([2 << 20])?;
    // Without the check of the limit, a write or `ftruncate` would raise SIGXFSZ.
    limit(Resource::Fsize, 1 << 20);
    let path = std::env::temp_dir().join(&name);
    let errors = [
        SharedMemory::create(&name, 2 << 20).err(),
        t.to_shm(&name).err(),
        t.to_memfd().err(),
        t.to_file(&path).err(),
    ];
    for error in errors.map(|e| e.expect("too large")) {
        let Error::OutOfMemory { asked, left, limit } = &error else { panic!("{error}") };
        assert_eq!((*asked, *left), (2 << 20, 1 << 20));
        assert!(limit.contains("RLIMIT_FSIZE"), "{error}");
    }
    assert!(!path.exists() && SharedMemory::open(&name).is_err(), "left behind");
    drop(SharedMemory::create(&name, 1 << 20)?.unlink_on_drop());
    Ok(())
}

#[test]
fn exceeded_file_size_limit_is_an_out_of_memory_error() {
    let _alone = mp_tests::alone();
    let name = format!("mp-limited-{}", std::process::id());
    join(&one_process(under_a_file_limit, name)).unwrap();
}

/// Mounts a private `/dev/shm` of 1 MiB. Returns `false` if that is not permitted.
fn small_dev_shm() -> bool {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    // SAFETY: mounts are no memory of this process.
    let own = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) };
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    own.is_ok()
        && mount_change("/", private).is_ok()
        && mount("none", "/dev/shm", "tmpfs", MountFlags::empty(), c"size=1m").is_ok()
}

fn with_a_small_dev_shm(_: usize, (): ()) -> Outcome {
    if !small_dev_shm() {
        mp_harness::skip("a small /dev/shm, which only root can mount");
        return Ok(());
    }
    let full = |error: Error| {
        let Error::OutOfMemory { asked, left, limit } = &error else { panic!("{error}") };
        assert!(*asked == 2 << 20 && *left <= 1 << 20 && limit.contains("/dev/shm"), "{error}");
    };
    full(SharedMemory::create("too_large", 2 << 20).unwrap_err());
    assert!(std::fs::read_dir("/dev/shm")?.next().is_none(), "left behind");
    // Memory of another program, most of which has no pages.
    File::create("/dev/shm/sparse")?.set_len(2 << 20)?;
    full(SharedMemory::open("sparse").unwrap_err());
    std::fs::remove_file("/dev/shm/sparse")?;
    let fits = SharedMemory::create("fits", 512 << 10)?;
    fits.write_at(0, &vec![1; 512 << 10])?;
    Ok(())
}

#[test]
fn full_dev_shm_is_an_out_of_memory_error() {
    let _alone = mp_tests::alone();
    join(&one_process(with_a_small_dev_shm, ())).unwrap();
}
