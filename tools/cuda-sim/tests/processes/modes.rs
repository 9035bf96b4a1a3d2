//! Modes of tensors: permitted and refused operations, views and copies.

use std::time::Duration;

use mp_core::message::{Incoming, Message, Outgoing};
use mp_cuda::{AnyCudaTensor, CudaTensor, Frozen, FrozenCudaTensor, Shared, SharedCudaTensor};
use mp_queue::{PutError, Queue};
use mp_reduce::{Bundle, MessagePack};
use mp_spawn::Process;

use crate::support::{
    Outcome, join, kernels, nothing_is_left, on_the_device, profile, run, stream, taken, under,
    under_each_order, with_gpu,
};

fn copies((): ()) -> Outcome {
    let (stream, other) = (stream(), stream());
    let values: Vec<f32> = (0..24).map(|x| x as f32).collect();
    let t = CudaTensor::from_slice(&values, [4, 6], &stream)?.freeze();
    assert_eq!(t.to_vec(&other)?, values);
    let part = t.slice(1, 1..5, 2)?.t()?;
    let expected = [1.0, 7.0, 13.0, 19.0, 3.0, 9.0, 15.0, 21.0];
    assert_eq!((part.shape(), part.to_vec(&stream)?), ([2, 4].as_slice(), expected.to_vec()));
    // A copy on the device, with strides on both sides.
    let whole = CudaTensor::<f32>::zeros([4, 6], &stream)?.share();
    whole.slice(1, 0..6, 3)?.t()?.copy_from(&part, &other)?;
    let seen = whole.to_vec(&other)?;
    assert_eq!((seen[0], seen[3], seen[6], seen[9]), (1.0, 3.0, 7.0, 9.0));
    assert_eq!(seen.iter().filter(|x| **x == 0.0).count(), 16);
    // Copies between rows of one memory: rows that don't overlap, and rows that do.
    whole.select(0, 0)?.copy_from(&whole.select(0, 1)?, &other)?;
    assert_eq!(whole.select(0, 0)?.to_vec(&other)?, [7.0, 0.0, 0.0, 9.0, 0.0, 0.0]);
    let error = whole.narrow(0, 0, 2)?.copy_from(&whole.narrow(0, 1, 2)?, &other).unwrap_err();
    assert!(error.to_string().contains("overlaps"), "{error}");
    let error = whole.copy_from(&part, &other).unwrap_err();
    assert!(error.to_string().contains("shape"), "{error}");
    // Types of each size, filled and copied.
    let mut long = CudaTensor::<i64>::full([5], -7, &stream)?;
    long.fill(1 << 40, &stream)?;
    assert_eq!(long.to_vec(&stream)?, [1 << 40; 5]);
    let ints = CudaTensor::<i32>::full([3], 0x0102_0304, &stream)?;
    let copy = ints.to_device(&other)?;
    assert_eq!(copy.to_vec(&other)?, [0x0102_0304; 3]);
    assert_eq!(copy.to_host(&other)?.as_slice()?, [0x0102_0304; 3]);
    assert_ne!(copy.storage(), ints.storage());
    let mut bytes = CudaTensor::<u8>::zeros([7], &stream)?;
    bytes.write_from(&[1, 2, 3, 4, 5, 6, 7], &stream)?;
    assert_eq!(bytes.narrow(0, 2, 3)?.to_vec(&stream)?, [3, 4, 5]);
    assert!(CudaTensor::from_slice(&[1_u8], [2], &stream).is_err());
    Ok(())
}

under_each_order! {
fn views_and_copies_of_device_tensors_keep_elements(order: Order) {
    let session = under(order);
    run(&session, copies, ());
    nothing_is_left(&session);
}
}

fn moves((): ()) -> Outcome {
    let (stream, queue) = (stream(), Queue::bounded(1)?);
    queue.put(CudaTensor::<f32>::full([1000], 1.0, &stream)?).unwrap();
    let second = CudaTensor::<f32>::full([10, 100], 2.0, &stream)?;
    let id = second.storage();
    // The queue is full, so the message is returned unchanged.
    let back = match queue.try_put(second) {
        Err(PutError::Full(back)) => back,
        other => return Err(format!("{other:?}").into()),
    };
    assert_eq!((back.storage(), back.shape()), (id, [10, 100].as_slice()));
    assert_eq!(back.to_vec(&stream)?, [2.0; 1000]);
    let first = taken(&queue);
    assert_eq!(first.to_vec(&stream)?, [1.0; 1000]);
    queue.put(back).unwrap();
    let back = taken(&queue);
    assert_eq!((back.storage(), back.to_vec(&stream)?), (id, vec![2.0; 1000]));
    Ok(())
}

under_each_order! {
fn exclusive_tensor_returns_from_full_queue(order: Order) {
    let session = under(order);
    run(&session, moves, ());
    nothing_is_left(&session);
}
}

/// Encodes a value, and decodes it as another type.
fn read_as<A: Message, B: Message>(mut value: A) -> mp_core::Result<B> {
    let mut out = Outgoing::default();
    value.encode::<MessagePack>(&mut out)?;
    drop(value);
    let mut inc: Incoming = out.into_incoming();
    B::decode::<MessagePack>(&mut inc)
}

fn misread((): ()) -> Outcome {
    let stream = stream();
    let made = || CudaTensor::<f32>::zeros([8], &stream);
    let frozen = || Ok::<_, mp_cuda::Error>(AnyCudaTensor::from(made()?.freeze()));
    assert!(read_as::<_, AnyCudaTensor<Frozen>>(frozen()?).is_ok());
    assert!(read_as::<_, AnyCudaTensor<Shared>>(frozen()?).is_err(), "a frozen tensor has no writer");
    assert!(read_as::<_, AnyCudaTensor>(frozen()?).is_err());
    assert!(read_as::<_, FrozenCudaTensor<f32>>(made()?.share()).is_err());
    assert!(read_as::<_, SharedCudaTensor<f32>>(made()?).is_err());
    assert!(read_as::<_, FrozenCudaTensor<i32>>(made()?.freeze()).is_err(), "another type of elements");
    let t = read_as::<_, CudaTensor<f32>>(made()?)?;
    assert_eq!(t.to_vec(&stream)?, [0.0; 8]);
    // Outside of a message, memory can't be attached. An empty tensor is refused as well.
    for len in [0, 4] {
        let refused = serde_json::to_string(&CudaTensor::<f32>::zeros([len], &stream)?.freeze()).unwrap_err();
        assert!(refused.to_string().contains("message"), "{len} elements: {refused}");
    }
    Ok(())
}

under_each_order! {
fn tensor_in_another_mode_is_refused(order: Order) {
    let session = under(order);
    run(&session, misread, ());
    nothing_is_left(&session);
}
}

fn broadcasts(queues: Vec<Queue<FrozenCudaTensor<f32>>>) -> Outcome {
    let stream = stream();
    let weights = CudaTensor::<f32>::full([100, 100], 0.25, &stream)?.freeze();
    for queue in &queues {
        queue.put(weights.clone()).unwrap();
    }
    Ok(())
}

fn reads_weights(from: Queue<FrozenCudaTensor<f32>>) -> Outcome<f64> {
    let (stream, weights) = (stream(), taken(&from));
    Ok(weights.to_vec(&stream)?.iter().map(|x| f64::from(*x)).sum())
}

under_each_order! {
fn frozen_weights_outlive_their_maker(order: Order) {
    let session = under(order);
    let queues: Vec<Queue<FrozenCudaTensor<f32>>> = (0..4).map(|_| Queue::unbounded().unwrap()).collect();
    run(&session, broadcasts, queues.clone());
    let readers: Vec<Process<f64>> =
        queues.into_iter().map(|queue| with_gpu(&session).spawn(reads_weights, queue).unwrap()).collect();
    assert!(readers.into_iter().all(|reader| join(reader) == 2500.0));
    nothing_is_left(&session);
}
}

fn uses_two_devices((): ()) -> Outcome<FrozenCudaTensor<f32>> {
    let stream = stream();
    Ok(CudaTensor::<f32>::full([64], 4.0, &stream)?.freeze())
}

fn reads_on_the_other(t: FrozenCudaTensor<f32>) -> Outcome {
    let other = mp_cuda::CudaStream::new(&mp_cuda::Device::new(1)?)?;
    assert_eq!(t.to_vec(&other)?, [4.0; 64]);
    let copy = t.to_device(&other)?;
    assert_eq!((copy.device(), copy.to_vec(&other)?), (Some(other.device().uuid()), vec![4.0; 64]));
    Ok(())
}

under_each_order! {
fn tensor_is_read_and_copied_by_another_device(order: Order) {
    let two = format!("two-gpus,{}", profile(order));
    let session = crate::support::setup().set("PROFILE", two).start().unwrap();
    let t = run(&session, uses_two_devices, ());
    run(&session, reads_on_the_other, t);
    nothing_is_left(&session);
}
}

fn weakly((): ()) -> Outcome {
    let stream = stream();
    let t = CudaTensor::<f32>::full([6], 1.0, &stream)?.freeze();
    let part = t.narrow(0, 2, 3)?.downgrade();
    assert!(!part.expired());
    assert_eq!(part.upgrade().map(|part| (part.len(), part.storage())), Some((3, t.storage())));
    drop(t);
    assert!(part.expired() && part.upgrade().is_none());
    Ok(())
}

under_each_order! {
fn weak_reference_keeps_no_device_memory(order: Order) {
    let session = under(order);
    run(&session, weakly, ());
    nothing_is_left(&session);
}
}

fn crafted((): ()) -> Outcome {
    let stream = stream();
    let mut t = CudaTensor::<f32>::zeros([4, 4], &stream)?;
    let on = t.on_mut(&stream)?;
    kernels().spin(&stream, Duration::from_millis(500));
    kernels().fill(&stream, on.ptr(), on.len(), 1.0);
    drop(on);
    let t = t.freeze();
    let written = || -> Outcome<Outgoing> {
        let mut out = Outgoing::default();
        t.clone().encode::<MessagePack>(&mut out)?;
        Ok(out)
    };
    let read = |out: Outgoing| FrozenCudaTensor::<f32>::decode::<MessagePack>(&mut out.into_incoming());
    assert!(read(written()?).is_ok());
    // The last bytes contain a tick. The changed tick was never made.
    let mut future = written()?;
    *future.bytes().last_mut().unwrap() += 1;
    let error = read(future).unwrap_err().to_string();
    assert!(error.contains("is not a tick of a stream"), "{error}");
    for at in 0..written()?.bytes().len() {
        for with in [0, 1, 0x7F, 0xFF] {
            let mut other = written()?;
            // After the kernel has run, the message contains no tick.
            other.bytes().get_mut(at).into_iter().for_each(|byte| *byte ^= with);
            // All reads are within the attached memory.
            if let Ok(t) = read(other) {
                assert!(t.len() <= 16 && t.to_vec(&stream).is_ok(), "{t:?}");
            }
        }
    }
    Ok(())
}

on_the_device! {
fn forged_device_tensor_bytes_stay_in_their_memory(order: Order) {
    let session = under(order);
    run(&session, crafted, ());
    nothing_is_left(&session);
}
}

fn by_threads((): ()) -> Outcome {
    let main = stream();
    let t = CudaTensor::<f32>::full([1 << 12], 2.0, &main)?.freeze();
    let queue = Queue::unbounded()?;
    std::thread::scope(|threads| {
        for _ in 0..4 {
            let (t, queue) = (t.clone(), queue.clone());
            threads.spawn(move || {
                let stream = stream();
                for _ in 0..20 {
                    let mut sink = CudaTensor::<f32>::empty([1 << 12], &stream).unwrap();
                    let (on, to) = (t.on(&stream).unwrap(), sink.on_mut(&stream).unwrap());
                    kernels().multiply(&stream, to.ptr(), on.ptr(), on.len(), 0.5);
                    drop((on, to));
                    queue.put(sink).unwrap();
                }
            });
        }
    });
    for _ in 0..80 {
        assert_eq!(taken(&queue).to_vec(&main)?, [1.0; 1 << 12]);
    }
    Ok(())
}

under_each_order! {
fn threads_use_and_send_tensors_concurrently(order: Order) {
    let session = under(order);
    run(&session, by_threads, ());
    nothing_is_left(&session);
}
}

type Mixed = Bundle<(u32, Bundle<Vec<CudaTensor<f32>>>, Option<SharedCudaTensor<i64>>)>;

fn makes_a_bundle((): ()) -> Outcome<Mixed> {
    let stream = stream();
    let all = (0..3_u8).map(|i| CudaTensor::full([4], f32::from(i), &stream)).collect::<Result<_, _>>()?;
    Ok(Bundle((7, Bundle(all), Some(CudaTensor::full([2], 9, &stream)?.share()))))
}

fn reads_a_bundle(Bundle((number, Bundle(all), shared)): Mixed) -> Outcome {
    let stream = stream();
    for (t, value) in all.iter().zip(0_u8..) {
        assert_eq!(t.to_vec(&stream)?, [f32::from(value); 4]);
    }
    assert_eq!((number, all.len(), shared.ok_or("none")?.to_vec(&stream)?), (7, 3, vec![9, 9]));
    Ok(())
}

under_each_order! {
fn message_carries_tensors_and_other_values(order: Order) {
    let session = under(order);
    let bundle = run(&session, makes_a_bundle, ());
    run(&session, reads_a_bundle, bundle);
    nothing_is_left(&session);
}
}
