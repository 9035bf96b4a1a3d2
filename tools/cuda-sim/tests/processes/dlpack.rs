//! Tensors for other libraries by DLPack. Consumers in these tests use only the fields of the structure and
//! its deleter, like a C library.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mp_core::Error as CoreError;
use mp_cuda::{
    AnyCudaTensor, ConversionError, CudaStream, CudaTensor, DLDataType, DLDevice, DLManagedTensor,
    DLManagedTensorVersioned, DLPackVersion, DLTensor, Dlpack, DlpackUnversioned, Error, Frozen,
    FrozenCudaTensor, ShareMethod, memory_stats,
};
use mp_harness::eventually;
use mp_queue::Queue;

use crate::allocations::{Allocated, By, freed};
use crate::support::{Outcome, join, kernels, nothing_is_left, run, session, stream, taken, with_gpu};

const LEN: usize = 1 << 12;

/// Model of a C library that receives a tensor, and multiplies it by two on its own stream.
struct Consumer(*mut DLManagedTensorVersioned);

// SAFETY: DLPack's structures may be sent to other threads.
unsafe impl Send for Consumer {}

impl Consumer {
    fn said(&self) -> (DLPackVersion, u64, DLDevice, DLDataType, Vec<i64>, Vec<i64>, u64) {
        // SAFETY: the structure belongs to the consumer until the consumer calls the deleter.
        let DLManagedTensorVersioned { version, flags, dl_tensor: t, .. } = unsafe { &*self.0 };
        let rank = usize::try_from(t.ndim).unwrap();
        // SAFETY: the array has one number for each dimension.
        let of = |at: *mut i64| unsafe { std::slice::from_raw_parts(at, rank) }.to_vec();
        (*version, *flags, t.device, t.dtype, of(t.shape), of(t.strides), t.byte_offset)
    }

    fn data(&self) -> u64 {
        // SAFETY: the structure belongs to the consumer until the consumer calls the deleter.
        unsafe { (*self.0).dl_tensor.data }.addr() as u64
    }

    fn delete(self) {
        // SAFETY: the structure exists until its deleter is called.
        let deleter = unsafe { (*self.0).deleter }.unwrap();
        // SAFETY: called once, and the structure is not used afterwards.
        unsafe { deleter(self.0) };
    }
}

fn exports(out: Queue<FrozenCudaTensor<f32>>) -> Outcome {
    let (stream, other) = (stream(), stream());
    // A view of an exclusive tensor, on a stream that is dropped before another thread calls the deleter.
    let mut t = CudaTensor::<f32>::full([8, LEN], 3.0, &stream)?;
    let id = t.storage();
    let address = t.on_mut(&stream)?.ptr();
    let t = t.t()?;
    let export = Consumer(Dlpack::export(t, &other)?.into_raw());
    let (version, flags, device, dtype, shape, strides, offset) = export.said();
    assert_eq!((version.major, flags, offset), (1, 0, 0));
    assert_eq!(device, DLDevice { device_type: 2, device_id: 0 });
    assert_eq!(dtype, DLDataType { code: 2, bits: 32, lanes: 1 });
    assert_eq!((shape, strides), (vec![LEN as i64, 8], vec![1, LEN as i64]));
    assert_eq!(export.data(), address);
    kernels().multiply(&other, export.data(), export.data(), 8 * LEN, 2.0);
    drop(other);
    std::thread::spawn(move || export.delete()).join().unwrap();
    eventually("it is free", || memory_stats(stream.device()).pieces == 0);
    // Shared and frozen tensors: the work that the consumer submits before it calls the deleter is visible to
    // others.
    let shared = CudaTensor::<f32>::full([LEN], 3.0, &stream)?.share();
    let consumer = self::stream();
    let export = Consumer(Dlpack::export_any(AnyCudaTensor::from(shared.clone()), &consumer)?.into_raw());
    assert_eq!(export.said().1, 0);
    kernels().spin(&consumer, Duration::from_millis(20));
    kernels().multiply(&consumer, export.data(), export.data(), LEN, 2.0);
    export.delete();
    let (copy, _) = (shared.to_device(&consumer)?, drop(shared));
    let frozen = copy.freeze();
    assert_ne!(frozen.storage(), id);
    let export = Consumer(Dlpack::export(frozen.narrow(0, 5, 7)?, &consumer)?.into_raw());
    assert_eq!((export.said().1, export.said().4), (1, vec![7]), "read-only");
    out.put(frozen).unwrap();
    export.delete();
    // Tensors that DLPack can't express.
    let refused = DlpackUnversioned::export(CudaTensor::<f32>::zeros([3], &stream)?.freeze(), &stream);
    let refused = refused.unwrap_err();
    assert!(matches!(refused.error, Error::Core(CoreError::Unsupported(_))), "{refused}");
    assert_eq!(refused.value.to_vec(&stream)?, [0.0; 3]);
    let mut leaf = CudaTensor::<f32>::zeros([3], &stream)?;
    leaf.set_requires_grad(true)?;
    let refused = Dlpack::export(leaf, &stream).unwrap_err();
    assert!(refused.error.to_string().contains("gradients") && refused.value.len() == 3);
    // Tensors without elements, and without dimensions.
    let none = Consumer(Dlpack::export(CudaTensor::<f32>::zeros([0, 2], &stream)?, &stream)?.into_raw());
    assert_eq!((none.data(), none.said().4), (0, vec![0, 2]));
    none.delete();
    let scalar =
        Consumer(Dlpack::export(CudaTensor::<f32>::zeros([0_usize; 0], &stream)?, &stream)?.into_raw());
    assert_eq!(scalar.said().4, [0_i64; 0]);
    scalar.delete();
    // The structure is dropped by this process, without a consumer.
    drop(Dlpack::export(CudaTensor::<f32>::zeros([3], &stream)?, &stream)?);
    drop(DlpackUnversioned::export(CudaTensor::<f32>::zeros([3], &stream)?, &stream)?);
    Ok(())
}

fn reads(from: Queue<FrozenCudaTensor<f32>>) -> Outcome {
    let t = taken(&from);
    assert_eq!(t.to_vec(&stream())?, [6.0; LEN]);
    Ok(())
}

#[test]
fn dlpack_consumer_receives_tensors_of_each_mode() {
    let session = session();
    let out = Queue::unbounded().unwrap();
    let reader = with_gpu(&session).spawn(reads, out.clone()).unwrap();
    run(&session, exports, out);
    join(reader);
    nothing_is_left(&session);
}

/// Number of calls of deleters of the producer in this process.
static DELETED: AtomicUsize = AtomicUsize::new(0);

/// Owner of a producer's structure and memory.
struct Produced {
    _memory: Allocated,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: `produced` made the structure, and it is deleted once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: `produced` made the owner, and it is deleted once.
    drop(unsafe { Box::from_raw(managed.manager_ctx.cast::<Produced>()) });
    DELETED.fetch_add(1, Ordering::SeqCst);
}

/// Returns a matrix of 4 by 6 floats of another library, with the values 0 to 23. `change` modifies its
/// description.
fn produced(by: By, change: impl FnOnce(&mut DLManagedTensorVersioned)) -> Dlpack {
    let values: Vec<f32> = (0..24).map(|x| x as f32).collect();
    let memory = Allocated::new(by, 96).filled(&values);
    let data: *mut c_void = ptr::without_provenance_mut(usize::try_from(memory.address).unwrap());
    let mut context = Box::new(Produced { _memory: memory, shape: vec![4, 6], strides: vec![6, 1] });
    let dl_tensor = DLTensor {
        data,
        device: DLDevice { device_type: 2, device_id: 0 },
        ndim: 2,
        dtype: DLDataType { code: 2, bits: 32, lanes: 1 },
        shape: context.shape.as_mut_ptr(),
        strides: context.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let version = DLPackVersion { major: 1, minor: 3 };
    let manager_ctx = Box::into_raw(context).cast();
    let mut managed = Box::new(DLManagedTensorVersioned {
        version,
        manager_ctx,
        deleter: Some(delete),
        flags: 0,
        dl_tensor,
    });
    change(&mut managed);
    // SAFETY: the structure has the layout of the header, and valid contents except for the changes of a
    // test.
    unsafe { Dlpack::from_raw(Box::into_raw(managed)) }.unwrap()
}

fn deleted() -> usize {
    assert_eq!(DELETED.load(Ordering::SeqCst), freed());
    freed()
}

/// Imports the structure as an exclusive tensor.
fn import(
    produced: Dlpack,
    stream: &CudaStream,
) -> Result<(AnyCudaTensor, ShareMethod), ConversionError<Dlpack>> {
    // SAFETY: the structure's pointers are valid, the driver checks its address, and no other work uses the
    // memory.
    unsafe { produced.import(stream) }
}

/// Imports the structure as a frozen tensor.
fn import_frozen(
    produced: Dlpack,
    stream: &CudaStream,
) -> mp_cuda::Result<(AnyCudaTensor<Frozen>, ShareMethod)> {
    // SAFETY: the structure's pointers are valid, the driver checks its address, and no other work uses the
    // memory.
    Ok(unsafe { produced.import_frozen(stream) }?)
}

fn imports((): ()) -> Outcome {
    let stream = stream();
    let all: Vec<f32> = (0..24).map(|x| x as f32).collect();
    let (t, how) = import(produced(By::Legacy, |_| {}), &stream)?;
    assert_eq!((how, deleted()), (ShareMethod::LegacyIpc, 0));
    let t = t.downcast::<f32>()?;
    assert_eq!((t.shape(), t.to_vec(&stream)?), ([4, 6].as_slice(), all.clone()));
    drop(t);
    assert_eq!(deleted(), 1);
    // A structure with null strides and an offset, and a view of its tensor.
    let change = |m: &mut DLManagedTensorVersioned| {
        (m.dl_tensor.strides, m.dl_tensor.byte_offset) = (ptr::null_mut(), 24);
        rows(m, 3);
    };
    let (t, how) = import(produced(By::Shareable, change), &stream)?;
    assert_eq!((how, t.shape()), (ShareMethod::Exported, [3, 6].as_slice()));
    let t = t.downcast::<f32>()?.freeze();
    assert_eq!(t.to_vec(&stream)?, all[6..]);
    drop(t);
    // Memory of a pool is copied, and the producer's memory is freed at once.
    let (t, how) = import(produced(By::Pool, |_| {}), &stream)?;
    assert!(matches!(how, ShareMethod::Copied { .. }) && deleted() == 3, "{how:?}");
    assert_eq!(t.downcast::<f32>()?.to_vec(&stream)?, all);
    // Read-only memory is copied, or imported as a frozen tensor.
    let read_only = |m: &mut DLManagedTensorVersioned| m.flags |= 1;
    let (t, how) = import(produced(By::Legacy, read_only), &stream)?;
    assert!(matches!(how, ShareMethod::Copied { .. }) && deleted() == 4, "{how:?}");
    drop(t);
    let (t, how) = import_frozen(produced(By::Legacy, read_only), &stream)?;
    assert_eq!((how, deleted()), (ShareMethod::LegacyIpc, 4));
    assert_eq!(t.downcast::<f32>()?.to_vec(&stream)?, all);
    assert_eq!(deleted(), 5);
    // Rows that alias each other, and that no process writes.
    let change = |m: &mut DLManagedTensorVersioned| {
        // SAFETY: the array has two numbers.
        unsafe { *m.dl_tensor.strides = 0 };
    };
    let refused = import(produced(By::Legacy, change), &stream).unwrap_err();
    assert!(refused.to_string().contains("overlap"), "{refused}");
    let (t, _) = import_frozen(refused.value, &stream)?;
    assert_eq!(t.downcast::<f32>()?.select(0, 3)?.to_vec(&stream)?, all[..6]);
    // A tensor of this library, exported and imported again.
    let own = CudaTensor::from_slice(&all, [4, 6], &stream)?;
    // SAFETY: the structure is as this library has made it.
    let (t, how) = unsafe { DlpackUnversioned::export(own, &stream)?.import(&stream) }?;
    assert_eq!(how, ShareMethod::Exported);
    assert_eq!(t.downcast::<f32>()?.to_vec(&stream)?, all);
    eventually("no owner is retained", || memory_stats(stream.device()).foreign_owners == 0);
    assert_eq!(memory_stats(stream.device()).pieces, 0);
    Ok(())
}

#[test]
fn dlpack_tensors_of_other_libraries_are_imported() {
    let session = session();
    run(&session, imports, ());
    nothing_is_left(&session);
}

type Change = fn(&mut DLManagedTensorVersioned);

/// Changes the number of rows in the description.
fn rows(managed: &mut DLManagedTensorVersioned, rows: i64) {
    // SAFETY: the array has two numbers.
    unsafe { *managed.dl_tensor.shape = rows };
}

/// Changes that make a structure invalid, each with the expected error.
const WRONG: [(Change, &str); 17] = [
    (|m| m.version.major = 2, "DLPack 2.3"),
    (|m| m.version.major = 0, "DLPack 0.3"),
    (|m| m.dl_tensor.device.device_type = 1, "device type 1"),
    (|m| m.dl_tensor.device.device_type = -1, "device type -1"),
    (|m| m.dl_tensor.device.device_id = 1, "of device 1"),
    (|m| m.dl_tensor.dtype.lanes = 4, "4 lanes"),
    (|m| m.dl_tensor.dtype.lanes = 0, "0 lanes"),
    (|m| m.dl_tensor.dtype.bits = 4, "with 4 bits"),
    (|m| m.dl_tensor.dtype.code = 3, "type 3"),
    (|m| m.flags = 4, "less than a byte"),
    (|m| m.dl_tensor.ndim = -1, "-1 dimensions"),
    (|m| m.dl_tensor.ndim = i32::MAX, "dimensions: there may be"),
    (|m| m.dl_tensor.shape = ptr::null_mut(), "null pointer"),
    (|m| m.dl_tensor.byte_offset = u64::MAX, "beyond all memory"),
    (|m| m.dl_tensor.data = ptr::null_mut(), "does not know the address"),
    (|m| rows(m, -4), "a negative size"),
    (|m| rows(m, i64::MAX), "elements"),
];

fn wrong((): ()) -> Outcome {
    let stream = stream();
    for (change, said) in WRONG {
        let refused = import(produced(By::Legacy, change), &stream);
        let refused = refused.map(|(t, _)| panic!("{said}: {t:?}")).unwrap_err();
        assert!(refused.error.to_string().contains(said), "{said}: {refused}");
        assert!(matches!(refused.error, Error::Core(_) | Error::NotShareable { .. }), "{said}: {refused:?}");
        let before = deleted();
        // The caller must still call the structure's deleter.
        drop(refused.value);
        assert_eq!(deleted(), before + 1, "{said}");
    }
    for strides in [[-6, 1], [i64::MAX, 1], [i64::MIN, 1], [6, i64::MAX / 2]] {
        let change = |m: &mut DLManagedTensorVersioned| {
            // SAFETY: the array has two numbers.
            unsafe { m.dl_tensor.strides.cast::<[i64; 2]>().write(strides) };
        };
        let refused = import(produced(By::Legacy, change), &stream).unwrap_err();
        assert!(matches!(refused.error, Error::Core(_)), "{strides:?}: {refused:?}");
    }
    // The structure has one row too many.
    let change = |m: &mut DLManagedTensorVersioned| rows(m, 5);
    let refused = import(produced(By::Legacy, change), &stream).unwrap_err();
    assert!(refused.to_string().contains("more than the allocation has"), "{refused}");
    // SAFETY: null pointers are allowed.
    assert!(unsafe { Dlpack::from_raw(ptr::null_mut()) }.is_none());
    // SAFETY: null pointers are allowed.
    assert!(unsafe { DlpackUnversioned::from_raw(ptr::null_mut::<DLManagedTensor>()) }.is_none());
    assert_eq!(memory_stats(stream.device()).foreign_owners, 0);
    Ok(())
}

#[test]
fn invalid_dlpack_structure_is_refused_and_returned() {
    let session = session();
    run(&session, wrong, ());
    nothing_is_left(&session);
}
