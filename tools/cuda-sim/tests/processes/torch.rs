//! Scenarios of PyTorch's tests of CUDA tensors between processes. The documentation of each test names the
//! test of PyTorch.

use mp_core::DType;
use mp_core::bytemuck::{Zeroable, cast_slice, cast_slice_mut};
use mp_cuda::{
    AnyCudaTensor, CudaStorageId, CudaStream, CudaTensor, Device, Frozen, FrozenCudaTensor, Shared,
    SharedCudaTensor,
};
use mp_harness::DEADLINE;
use mp_queue::Queue;
use mp_tensor::{bf16, dispatch};

use crate::support::{
    Outcome, join, kernels, nothing_is_left, profile, run, setup, stat, stream, taken, under,
    under_each_order, with_gpu,
};

fn fills((tensors, done): (Queue<Vec<SharedCudaTensor<f32>>>, Queue<()>)) -> Outcome {
    let (stream, all) = (stream(), taken(&tensors));
    let [whole, part] = all.as_slice() else { return Err("two were sent".into()) };
    assert_eq!(whole.storage(), part.storage(), "two views of one storage still share it");
    assert_eq!((whole.shape(), part.shape()), ([5, 5].as_slice(), [5].as_slice()));
    let on = whole.on_mut(&stream)?;
    kernels().fill(&stream, on.ptr(), on.len(), 5.0);
    drop(on);
    let on = part.on_mut(&stream)?;
    assert!(on.is_contiguous());
    kernels().fill(&stream, on.ptr(), on.len(), 7.0);
    drop(on);
    stream.synchronize()?;
    done.put(()).unwrap();
    Ok(())
}

fn sees_what_is_filled((tensors, done): (Queue<Vec<SharedCudaTensor<f32>>>, Queue<()>)) -> Outcome {
    let stream = stream();
    let whole = CudaTensor::<f32>::zeros([5, 5], &stream)?.share();
    let part = whole.select(0, 1)?;
    tensors.put(vec![whole.clone(), part.clone()]).unwrap();
    taken(&done);
    let seen = whole.to_vec(&stream)?;
    assert!(seen.iter().enumerate().all(|(i, x)| *x == if i / 5 == 1 { 7.0 } else { 5.0 }), "{seen:?}");
    assert_eq!(part.to_vec(&stream)?, [7.0; 5]);
    Ok(())
}

under_each_order! {
/// Scenario of `test_cuda_simple` of PyTorch.
fn shared_views_are_written_by_the_receiver(order: Order) {
    let session = under(order);
    let (tensors, done) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(sees_what_is_filled, (tensors.clone(), done.clone())).unwrap();
    let other = with_gpu(&session).spawn(fills, (tensors, done)).unwrap();
    join(maker);
    join(other);
    nothing_is_left(&session);
}
}

fn makes_and_drops((tensors, go): (Queue<CudaTensor<f32>>, Queue<()>)) -> Outcome {
    let stream = stream();
    for i in 0..10_u8 {
        tensors.put(CudaTensor::full([1 << 18], f32::from(i), &stream)?).unwrap();
    }
    // This process has no handle of the tensors.
    taken(&go);
    Ok(())
}

fn keeps((tensors, go): (Queue<CudaTensor<f32>>, Queue<()>)) -> Outcome {
    let stream = stream();
    let kept: Vec<_> = (0..10).map(|_| taken(&tensors)).collect();
    for (i, t) in kept.iter().enumerate() {
        assert!(t.to_vec(&stream)?.iter().all(|x| *x == i as f32), "tensor {i}");
    }
    go.put(()).unwrap();
    Ok(())
}

under_each_order! {
/// Scenario of `test_cuda_memory_allocation` of PyTorch.
fn receiver_keeps_tensors_dropped_by_the_sender(order: Order) {
    let session = under(order);
    let (tensors, go) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
    let maker = with_gpu(&session).spawn(makes_and_drops, (tensors.clone(), go.clone())).unwrap();
    let other = with_gpu(&session).spawn(keeps, (tensors, go)).unwrap();
    join(maker);
    join(other);
    nothing_is_left(&session);
}
}

fn puts_ones((tensors, count): (Queue<CudaTensor<f32>>, usize)) -> Outcome {
    let stream = stream();
    for _ in 0..count {
        tensors.put(CudaTensor::full([5], 1.0, &stream)?).unwrap();
    }
    Ok(())
}

fn takes_ones((tensors, count): (Queue<CudaTensor<f32>>, usize)) -> Outcome {
    let stream = stream();
    for _ in 0..count {
        assert_eq!(taken(&tensors).to_vec(&stream)?, [1.0; 5]);
    }
    Ok(())
}

under_each_order! {
/// Scenario of `test_cuda_ipc_deadlock` of PyTorch.
fn full_queue_delays_no_other_process(order: Order) {
    let session = under(order);
    let tensors = Queue::bounded(1).unwrap();
    let puts = |n| with_gpu(&session).spawn(puts_ones, (tensors.clone(), n)).unwrap();
    let (one, another) = (puts(5), puts(5));
    let taker = with_gpu(&session).spawn(takes_ones, (tensors.clone(), 10)).unwrap();
    join(one);
    join(another);
    join(taker);
    nothing_is_left(&session);
}
}

type Numbers = Queue<Option<SharedCudaTensor<f32>>>;

fn sends_many((out, count): (Numbers, usize)) -> Outcome {
    let stream = stream();
    for i in 0..count {
        out.put(Some(CudaTensor::full([1 << 14], (i % 100) as f32, &stream)?.share())).unwrap();
    }
    out.put(None).unwrap();
    Ok(())
}

fn relays((from, to): (Numbers, Numbers)) -> Outcome {
    while let Some(t) = taken(&from) {
        to.put(Some(t)).unwrap();
    }
    to.put(None).unwrap();
    Ok(())
}

fn sums((from, count): (Numbers, usize)) -> Outcome<f64> {
    let (stream, mut sum, mut received) = (stream(), 0.0, 0);
    while let Some(t) = taken(&from) {
        sum += t.narrow(0, 9, 5)?.to_vec(&stream)?.iter().map(|x| f64::from(*x)).sum::<f64>();
        received += 1;
    }
    assert_eq!(received, count);
    Ok(sum)
}

under_each_order! {
/// Scenario of `test_cuda_send_many` of PyTorch: tensors pass through three processes, the second of which
/// only forwards. More tensors are sent than there are clocks.
fn many_tensors_pass_through_a_relay(order: Order) {
    const COUNT: usize = 5000;
    let session = under(order);
    let (one, two) = (Queue::bounded(16).unwrap(), Queue::bounded(16).unwrap());
    let maker = with_gpu(&session).spawn(sends_many, (one.clone(), COUNT)).unwrap();
    let relay = with_gpu(&session).spawn(relays, (one, two.clone())).unwrap();
    let end = with_gpu(&session).spawn(sums, (two, COUNT)).unwrap();
    mp_harness::eventually("there is memory", || !session.has_figures() || stat(&session, "bytes") > 0);
    let early = stat(&session, "bytes");
    assert_eq!(join(end), (0..COUNT).map(|i| 5.0 * (i % 100) as f64).sum::<f64>());
    // All tensors together have 313 MiB.
    let late = stat(&session, "bytes");
    assert!(late <= early && early <= 64 << 20, "{early} bytes became {late}");
    join(relay);
    join(maker);
    nothing_is_left(&session);
}
}

fn small(out: Queue<Vec<CudaTensorOfAny>>) -> Outcome {
    let streams = [0, 1].map(|i| CudaStream::new(&Device::new(i).unwrap()).unwrap());
    let mut all = Vec::new();
    for i in 0..5_u8 {
        for stream in &streams {
            all.push(AnyCudaTensor::from(CudaTensor::full([2], f32::from(i), stream)?).share());
        }
    }
    out.put(all).unwrap();
    Ok(())
}

type CudaTensorOfAny = AnyCudaTensor<Shared>;

fn reads_small(from: Queue<Vec<CudaTensorOfAny>>) -> Outcome {
    let devices = Device::all()?;
    let all = taken(&from);
    assert_eq!(all.len(), 10);
    for (i, t) in all.into_iter().enumerate() {
        let device = &devices[i % 2];
        assert_eq!(t.device(), Some(device.uuid()));
        let value = (i / 2) as f32;
        assert_eq!(t.downcast::<f32>()?.to_vec(&CudaStream::new(device)?)?, [value; 2]);
    }
    Ok(())
}

under_each_order! {
/// Scenario of `test_cuda_small_tensors` of PyTorch.
fn small_tensors_of_one_slab_keep_their_values(order: Order) {
    let session = setup().set("PROFILE", format!("two-gpus,{}", profile(order))).start().unwrap();
    let queue = Queue::unbounded().unwrap();
    let maker = with_gpu(&session).spawn(small, queue.clone()).unwrap();
    let other = with_gpu(&session).spawn(reads_small, queue).unwrap();
    join(maker);
    join(other);
    nothing_is_left(&session);
}
}

fn of_all_types((): ()) -> Outcome<Vec<AnyCudaTensor<Frozen>>> {
    let stream = stream();
    let make = |dtype: &DType| -> Outcome<_> {
        let t = AnyCudaTensor::zeros([3, 2], *dtype, &stream)?;
        let t = dispatch!(*dtype, T => {
            let mut t = t.downcast::<T>()?;
            let bytes: Vec<u8> = (0..t.nbytes()).map(|i| (i % 2) as u8).collect();
            let mut values = vec![<T as Zeroable>::zeroed(); t.len()];
            cast_slice_mut(&mut values).copy_from_slice(&bytes);
            t.write_from(&values, &stream)?;
            AnyCudaTensor::from(t)
        });
        Ok(t.freeze())
    };
    DType::ALL.iter().map(make).collect()
}

fn reads_all_types(all: Vec<AnyCudaTensor<Frozen>>) -> Outcome {
    let stream = stream();
    for (t, dtype) in all.into_iter().zip(DType::ALL) {
        assert_eq!(t.dtype(), *dtype);
        let bytes: Vec<u8> = dispatch!(*dtype, T => {
            cast_slice(&t.downcast::<T>()?.to_vec(&stream)?).to_vec()
        });
        assert!(bytes.iter().enumerate().all(|(i, byte)| usize::from(*byte) == i % 2), "{dtype}");
    }
    Ok(())
}

under_each_order! {
/// Scenario of `test_mixed_types_cuda_sharing` of PyTorch.
fn tensors_of_all_types_keep_their_values(order: Order) {
    let session = under(order);
    // The tensors pass through this process, which has no GPU.
    let all = run(&session, of_all_types, ());
    run(&session, reads_all_types, all);
    nothing_is_left(&session);
}
}

fn chunks((): ()) -> Outcome<Vec<FrozenCudaTensor<bf16>>> {
    let values: Vec<bf16> = (0..60).map(|i| bf16::from_f32(i as f32)).collect();
    let t = CudaTensor::from_slice(&values, [6, 10], &stream())?.freeze();
    Ok(t.chunk(3, 0)?)
}

fn reads_chunks(chunks: Vec<FrozenCudaTensor<bf16>>) -> Outcome {
    let stream = stream();
    for (i, chunk) in chunks.iter().enumerate() {
        assert_eq!((chunk.shape(), chunk.offset()), ([2, 10].as_slice(), 20 * i));
        let seen: Vec<f32> = chunk.to_vec(&stream)?.iter().map(|x| x.to_f32()).collect();
        assert_eq!(seen, (20 * i..20 * i + 20).map(|x| x as f32).collect::<Vec<_>>());
        let column = chunk.select(1, 3)?;
        assert_eq!(column.to_vec(&stream)?.len(), 2);
    }
    assert!(chunks.iter().all(|chunk| chunk.storage() == chunks[0].storage() && chunk.storage().is_some()));
    Ok(())
}

under_each_order! {
/// Scenario of `test_rebuild_cuda_tensor` of PyTorch.
fn chunks_of_a_device_tensor_arrive_as_views(order: Order) {
    let session = under(order);
    let chunks = run(&session, chunks, ());
    let ids: Vec<Option<CudaStorageId>> = chunks.iter().map(FrozenCudaTensor::storage).collect();
    assert!(ids[0].is_some() && ids.iter().all(|id| *id == ids[0]));
    run(&session, reads_chunks, chunks);
    nothing_is_left(&session);
}
}

fn bytes((): ()) -> Outcome<AnyCudaTensor> {
    Ok(CudaTensor::from_slice(&[1_u8, 2, 3, 250], [4], &stream())?.into())
}

fn reads_bytes(bytes: AnyCudaTensor) -> Outcome {
    assert_eq!(bytes.dtype(), DType::U8);
    assert_eq!(bytes.downcast::<u8>()?.to_vec(&stream())?, [1, 2, 3, 250]);
    Ok(())
}

under_each_order! {
/// Scenario of `test_rebuild_cuda_tensor` of PyTorch, for a storage without a tensor.
fn tensor_of_bytes_is_received_without_a_type(order: Order) {
    let session = under(order);
    let t = run(&session, bytes, ());
    run(&session, reads_bytes, t);
    nothing_is_left(&session);
}
}

fn grads((): ()) -> Outcome<Vec<FrozenCudaTensor<f32>>> {
    let stream = stream();
    let mut leaf = CudaTensor::<f32>::zeros([3], &stream)?;
    leaf.set_requires_grad(true)?;
    let leaf = leaf.freeze();
    let refused = Queue::unbounded()?.put(leaf.narrow(0, 0, 1)?).unwrap_err().to_string();
    assert!(refused.contains("leaf"), "{refused}");
    assert!(leaf.is_shared());
    Ok(vec![leaf, CudaTensor::<f32>::zeros([3], &stream)?.freeze()])
}

under_each_order! {
/// Scenarios of `test_cuda_variable_sharing`, `test_non_leaf_variable_sharing` and `test_is_shared_cuda` of
/// PyTorch.
fn requires_grad_is_sent_and_non_leaf_is_refused(order: Order) {
    let session = under(order);
    let all = run(&session, grads, ());
    assert_eq!(all.iter().map(FrozenCudaTensor::requires_grad).collect::<Vec<_>>(), [true, false]);
    assert!(all.iter().all(|t| t.is_leaf() && t.is_shared()));
    drop(all);
    nothing_is_left(&session);
}
}

fn empties((): ()) -> Outcome<(FrozenCudaTensor<f32>, SharedCudaTensor<i64>)> {
    let stream = stream();
    Ok((CudaTensor::zeros([0, 3], &stream)?.freeze(), CudaTensor::from_slice(&[], [0], &stream)?.share()))
}

fn reads_empties((one, other): (FrozenCudaTensor<f32>, SharedCudaTensor<i64>)) -> Outcome {
    let stream = stream();
    assert_eq!((one.shape(), other.shape()), ([0, 3].as_slice(), [0].as_slice()));
    assert_eq!((one.to_vec(&stream)?, other.to_vec(&stream)?), (Vec::new(), Vec::new()));
    assert_eq!((one.on(&stream)?.ptr(), other.on_mut(&stream)?.len()), (0, 0));
    other.fill(3, &stream)?;
    let queue = Queue::unbounded()?;
    let mut exclusive = CudaTensor::<u8>::zeros([2, 0], &stream)?;
    exclusive.fill(1, &stream)?;
    queue.put(exclusive).unwrap();
    assert_eq!(queue.get_timeout(DEADLINE)?.unwrap().shape(), [2, 0]);
    Ok(())
}

under_each_order! {
/// Scenario of `test_empty_tensor_sharing_cuda` of PyTorch.
fn empty_tensors_call_no_driver(order: Order) {
    let session = under(order);
    let before = {
        run(&session, only_a_stream, ());
        stat(&session, "calls")
    };
    let all = run(&session, empties, ());
    let after_one = stat(&session, "calls");
    run(&session, reads_empties, all);
    let after_two = stat(&session, "calls");
    // The number of calls equals that of a process that only makes a stream.
    let only = before;
    assert!(
        after_one - before <= only + 2 && after_two - after_one <= only + 2,
        "{before} {after_one} {after_two}"
    );
    nothing_is_left(&session);
}
}

fn only_a_stream((): ()) -> Outcome {
    drop(stream());
    Ok(())
}
