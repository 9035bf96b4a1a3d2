//! Memory that another library has allocated, as tensors that processes share.
#![allow(unsafe_code)]

use std::time::Duration;

use mp_core::{Error as CoreError, Recovery};
use mp_cuda::{
    CudaStream, CudaTensor, Error, ForeignMemory, FrozenCudaTensor, ShareMethod, ipc_collect, memory_stats,
};
use mp_harness::{DEADLINE, eventually};
use mp_queue::Queue;

use crate::allocations::{Allocated, By, freed};
use crate::support::{
    Outcome, join, kernels, nothing_is_left, run, session, stays, stream, taken, with_gpu, without_gpu,
};

pub(crate) const LEN: usize = 1 << 12;

/// Allocates memory by `by`, fills it with `value`, and shares it as a tensor. Returns the tensor, and the
/// method of sharing.
pub(crate) fn shared(by: By, value: f32, stream: &CudaStream) -> (CudaTensor<f32>, ShareMethod) {
    let memory = Allocated::new(by, 4 * LEN).filled(&[value; LEN]);
    let foreign = ForeignMemory::new(memory.address, [LEN]);
    // SAFETY: the memory has this many floats until it is dropped, and no other code uses them.
    unsafe { foreign.share(memory, stream) }.unwrap()
}

fn each_kind((): ()) -> Outcome {
    let stream = stream();
    for (i, by) in
        [By::Legacy, By::Shareable, By::Private, By::Pool, By::Managed, By::Host].into_iter().enumerate()
    {
        let (mut t, how) = shared(by, 3.0, &stream);
        let copied = matches!(how, ShareMethod::Copied { .. });
        let why = |text: &str| matches!(how, ShareMethod::Copied { why } if why.contains(text));
        let expected = match by {
            By::Legacy => how == ShareMethod::LegacyIpc,
            By::Shareable => how == ShareMethod::Exported,
            By::Private => why("without a handle for other processes"),
            By::Pool => why("of a memory pool"),
            By::Managed => why("managed memory"),
            By::Host => why("memory of the host"),
        };
        assert!(expected, "{by:?}: {how:?}");
        assert_eq!(freed(), i + usize::from(copied), "{by:?}: copied memory is free");
        let stats = memory_stats(stream.device());
        let kept = if copied { (0, 0) } else { (1, 4 * LEN as u64) };
        assert_eq!((stats.foreign_owners, stats.foreign, stats.foreign_retired), (kept.0, kept.1, 0));
        assert_eq!(t.to_vec(&stream)?, [3.0; LEN], "{by:?}");
        t.fill(4.0, &stream)?;
        let on = t.on_mut(&stream)?;
        kernels().multiply(&stream, on.ptr(), on.ptr(), LEN, 2.0);
        drop(on);
        assert_eq!(t.to_vec(&stream)?, [8.0; LEN], "{by:?}");
        drop(t);
        assert_eq!(freed(), i + 1, "{by:?}");
        assert_eq!(memory_stats(stream.device()).foreign_owners, 0);
    }
    // The memory is not released before a stream has run earlier work.
    let (t, _) = shared(By::Legacy, 1.0, &stream);
    let on = t.on(&stream)?;
    let gate = kernels().gate(&stream);
    drop(on);
    let before = freed();
    drop(t);
    assert_eq!((freed(), memory_stats(stream.device()).foreign_owners), (before, 1));
    drop(gate);
    stream.synchronize()?;
    assert_eq!(memory_stats(stream.device()).foreign_owners, 0);
    assert_eq!(freed(), before + 1);
    Ok(())
}

#[test]
fn each_kind_of_foreign_memory_is_shared_or_copied() {
    let session = session();
    run(&session, each_kind, ());
    nothing_is_left(&session);
}

fn refusals((): ()) -> Outcome {
    let stream = stream();
    let memory = Allocated::new(By::Legacy, 4 * LEN).filled(&[1.0; LEN]);
    let at = memory.address;
    let mut owner = Some(memory);
    let mut refused = |foreign: ForeignMemory| {
        // SAFETY: the memory belongs to this process, or is refused.
        let result = unsafe { foreign.share::<f32, _>(owner.take().unwrap(), &stream) };
        let refused = result.map(|(t, how)| panic!("{t:?} {how:?}")).unwrap_err();
        owner = Some(refused.value);
        refused.error
    };
    let text = refused(ForeignMemory::new(at, [LEN + 1])).to_string();
    assert!(text.contains("more than the allocation has there"), "{text}");
    let invalid = |error| matches!(error, Error::Core(CoreError::InvalidArgument(_)));
    assert!(invalid(refused(ForeignMemory::new(at + 4, [LEN]))));
    assert!(invalid(refused(ForeignMemory::new(at + 2, [2]))), "misaligned");
    assert!(invalid(refused(ForeignMemory::new(at, [4, 4]).strides([0, 1]))), "elements overlap");
    let error = refused(ForeignMemory::new(at, [4]).strides([-1]));
    assert!(matches!(error, Error::Core(CoreError::Unsupported(_))), "{error}");
    let error = refused(ForeignMemory::new(at, [4, 4]).strides([4]));
    assert!(matches!(error, Error::Core(CoreError::Shape(_))), "{error}");
    let error = refused(ForeignMemory::new(at, [usize::MAX, 2]));
    assert!(matches!(error, Error::Core(_)), "{error}");
    let error = refused(ForeignMemory::new(at, [2, 2]).strides([isize::MAX, 1]));
    assert!(matches!(error, Error::Core(_)), "{error}");
    for nothing in [0, 64, 0x7000_0000_0000] {
        let error = refused(ForeignMemory::new(nothing, [4]));
        assert!(matches!(error, Error::NotShareable { .. }), "{nothing}: {error}");
    }
    assert_eq!(freed(), 0, "each refusal returned the owner");
    // These kinds of memory would have to be copied.
    for by in [By::Private, By::Pool, By::Managed, By::Host] {
        let memory = Allocated::new(by, 4 * LEN);
        let foreign = ForeignMemory::new(memory.address, [LEN]).never_copied();
        // SAFETY: the memory has this many floats.
        let refused = unsafe { foreign.share::<f32, _>(memory, &stream) }.unwrap_err();
        assert!(matches!(refused.error, Error::NotShareable { .. }), "{by:?}: {refused}");
    }
    // Columns of a matrix, from its second row on.
    let memory = owner.take().unwrap().filled(&(0..LEN).map(|x| x as f32).collect::<Vec<f32>>());
    let foreign = ForeignMemory::new(at + 4 * 8, [8, 3]).strides([1, 8]).never_copied();
    // SAFETY: the memory has this many floats.
    let (t, _) = unsafe { foreign.share_any("float32".parse()?, memory, &stream) }?;
    let t = t.downcast::<f32>()?.freeze();
    assert_eq!(t.select(0, 1)?.to_vec(&stream)?, [9.0, 17.0, 25.0]);
    drop(t);
    // A tensor without elements.
    let before = freed();
    // SAFETY: the memory has no elements.
    let none = unsafe { ForeignMemory::new(0, [0, 3]).share::<f32, _>((), &stream) }?;
    assert!(none.0.is_empty() && freed() == before);
    Ok(())
}

#[test]
fn invalid_foreign_memory_is_refused_with_its_owner() {
    let session = session();
    run(&session, refusals, ());
    nothing_is_left(&session);
}

/// Queue of frozen tensors that view one allocation.
type Frozen = Queue<FrozenCudaTensor<f32>>;

fn exports((by, out, back, dropped): (By, Frozen, Frozen, Queue<()>)) -> Outcome {
    let stream = stream();
    let (t, how) = shared(by, 5.0, &stream);
    assert!(!matches!(how, ShareMethod::Copied { .. }));
    let t = t.freeze();
    let id = t.storage();
    for _ in 0..2 {
        out.put(t.clone()).unwrap();
    }
    drop(t);
    // A process without a GPU returns the tensor, and this process reads it at the address of the other
    // library.
    let t = taken(&back);
    assert_eq!((t.storage(), t.to_vec(&stream)?, freed()), (id, vec![5.0; LEN], 0));
    drop(t);
    assert_eq!((freed(), memory_stats(stream.device()).foreign_owners), (0, 1), "the reader has it");
    dropped.put(()).unwrap();
    eventually("the owner is dropped", || {
        ipc_collect();
        freed() == 1
    });
    assert_eq!(memory_stats(stream.device()).foreign, 0);
    Ok(())
}

fn relays((from, to): (Frozen, Frozen)) -> Outcome {
    to.put(taken(&from)).unwrap();
    Ok(())
}

fn reads((from, read, dropped): (Frozen, Queue<()>, Queue<()>)) -> Outcome {
    let stream = stream();
    let t = taken(&from);
    assert_eq!(t.to_vec(&stream)?, [5.0; LEN]);
    let stats = memory_stats(stream.device());
    assert_eq!((stats.mapped_slabs, stats.foreign_owners), (1, 0));
    read.put(()).unwrap();
    taken(&dropped);
    drop(t);
    // A thread unmaps the slab with its last piece.
    eventually("it is unmapped", || memory_stats(stream.device()).mapped_slabs == 0);
    Ok(())
}

#[test]
fn memory_owner_is_dropped_after_the_last_holder() {
    for by in [By::Legacy, By::Shareable] {
        let session = session();
        let (out, back): (Frozen, Frozen) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
        let (read, dropped) = (Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
        let exporter =
            with_gpu(&session).spawn(exports, (by, out.clone(), back.clone(), dropped.clone())).unwrap();
        let reader = with_gpu(&session).spawn(reads, (out.clone(), read.clone(), dropped)).unwrap();
        taken(&read);
        let relay = without_gpu().spawn(relays, (out, back)).unwrap();
        [exporter, reader, relay].into_iter().for_each(join);
        nothing_is_left(&session);
    }
}

/// Sends two parts of an allocation, before a pending kernel has written their contents.
fn parts((by, out): (By, Frozen)) -> Outcome {
    let stream = stream();
    let whole = std::sync::Arc::new(Allocated::new(by, 8 * LEN).filled(&[0.0; 2 * LEN]));
    for i in 0..2 {
        let at = whole.address + (4 * LEN * i) as u64;
        kernels().spin(&stream, Duration::from_millis(50));
        kernels().fill(&stream, at, LEN, 7.0);
        let foreign = ForeignMemory::new(at, [LEN]).never_copied();
        // SAFETY: the memory has this many floats until the last owner is dropped. The stream writes them.
        let (t, _) = unsafe { foreign.share::<f32, _>(std::sync::Arc::clone(&whole), &stream) }?;
        out.put(t.freeze()).unwrap();
    }
    drop(whole);
    eventually("the owners are dropped", || {
        ipc_collect();
        freed() == 1
    });
    Ok(())
}

fn reads_parts(from: Frozen) -> Outcome {
    let (stream, parts) = (stream(), [taken(&from), taken(&from)]);
    for part in &parts {
        assert_eq!(part.to_vec(&stream)?, [7.0; LEN]);
    }
    assert_eq!(memory_stats(stream.device()).mapped_slabs, 1, "opened once");
    Ok(())
}

#[test]
fn foreign_allocation_is_opened_once_for_all_pieces() {
    for by in [By::Legacy, By::Shareable] {
        let session = session();
        let out = Queue::unbounded().unwrap();
        let reader = with_gpu(&session).spawn(reads_parts, out.clone()).unwrap();
        run(&session, parts, (by, out));
        join(reader);
        nothing_is_left(&session);
    }
}

pub(crate) type Moved = Queue<CudaTensor<f32>>;

fn moves((by, out, reported, seen): (By, Moved, Queue<()>, Queue<()>)) -> Outcome {
    let stream = stream();
    out.put(shared(by, 1.0, &stream).0).unwrap();
    // The receiver has dropped the tensor, and has a pending kernel that writes to its memory. The memory is
    // still mapped after the kernel has run.
    for _ in 0..2 {
        taken(&reported);
        ipc_collect();
        assert_eq!((freed(), memory_stats(stream.device()).foreign_owners), (0, 1));
        seen.put(()).unwrap();
    }
    taken(&reported);
    eventually("the owner is dropped", || {
        ipc_collect();
        freed() == 1
    });
    seen.put(()).unwrap();
    Ok(())
}

fn writes((from, reported, seen): (Moved, Queue<()>, Queue<()>)) -> Outcome {
    let stream = stream();
    let mut t = taken(&from);
    assert_eq!(t.to_vec(&stream)?, [1.0; LEN]);
    let on = t.on_mut(&stream)?;
    kernels().spin(&stream, Duration::from_millis(100));
    kernels().fill(&stream, on.ptr(), LEN, 2.0);
    drop(on);
    drop(t);
    reported.put(()).unwrap();
    taken(&seen);
    stream.synchronize()?;
    reported.put(()).unwrap();
    taken(&seen);
    // `ipc_collect` unmaps memory that was dropped with pending work.
    ipc_collect();
    reported.put(()).unwrap();
    taken(&seen);
    Ok(())
}

#[test]
fn memory_owner_stays_until_the_receiver_unmaps() {
    for by in [By::Legacy, By::Shareable] {
        let session = session();
        let (out, reported, seen) =
            (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
        let args = (out.clone(), reported.clone(), seen.clone());
        let receiver = with_gpu(&session).spawn(writes, args).unwrap();
        run(&session, moves, (by, out, reported, seen));
        join(receiver);
        nothing_is_left(&session);
    }
}

/// Sends two tensors, reports that their contents are complete, and does not exit.
fn hands_out((by, out, complete): (By, Frozen, Queue<()>)) -> Outcome {
    let stream = stream();
    for value in [5.0, 6.0] {
        out.put(shared(by, value, &stream).0.freeze()).unwrap();
    }
    stream.synchronize()?;
    complete.put(()).unwrap();
    stays();
    Ok(())
}

fn reads_after_the_exporters_death((by, from, read, dead): (By, Frozen, Queue<()>, Queue<()>)) -> Outcome {
    let stream = stream();
    let (opened, other) = (taken(&from), taken(&from));
    assert_eq!(opened.to_vec(&stream)?, [5.0; LEN]);
    read.put(()).unwrap();
    taken(&dead);
    if by == By::Shareable {
        assert_eq!(opened.to_vec(&stream)?, [5.0; LEN]);
        assert_eq!(other.to_vec(&stream)?, [6.0; LEN]);
        return Ok(());
    }
    for _ in 0..2 {
        for t in [&opened, &other] {
            let results =
                [t.on(&stream).map(drop), t.to_vec(&stream).map(drop), t.to_device(&stream).map(drop)];
            for result in results {
                assert!(matches!(result, Err(Error::ProducerDied { pid: Some(_) })), "{result:?}");
            }
        }
    }
    Ok(())
}

/// Memory that is shared by descriptors outlives its maker. Memory that is shared by legacy handles does not:
/// uses of it return an error.
#[test]
fn killed_exporter_keeps_only_shareable_memory() {
    for by in [By::Legacy, By::Shareable] {
        let session = session();
        let (out, read, dead) =
            (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
        let complete = Queue::unbounded().unwrap();
        let args = (by, out.clone(), complete.clone());
        let exporter = with_gpu(&session).spawn(hands_out, args).unwrap();
        let args = (by, out, read.clone(), dead.clone());
        let reader = with_gpu(&session).spawn(reads_after_the_exporters_death, args).unwrap();
        taken(&read);
        taken(&complete);
        exporter.kill().unwrap();
        assert!(exporter.wait_timeout(DEADLINE));
        dead.put(()).unwrap();
        join(reader);
        eventually("all memory is free", || crate::support::stat(&session, "bytes") == 0);
        let kinds: Vec<_> = session.findings().unwrap().into_iter().map(|one| one.kind).collect();
        // Memory has undefined contents after its maker's death. The error reports that the memory was not
        // read.
        let expected = ["freed-while-open"].into_iter().filter(|_| by == By::Legacy && session.has_figures());
        assert_eq!(kinds, expected.collect::<Vec<_>>());
    }
}

fn waits_for_a_death((by, write, out, dead): (By, bool, Moved, Queue<()>)) -> Outcome {
    let stream = stream();
    out.put(shared(by, 1.0, &stream).0).unwrap();
    taken(&dead);
    let look = || memory_stats(stream.device());
    eventually("the death is detected", || {
        _ = Recovery(mp_core::Arena::current().unwrap()).reclaim_if_due();
        let stats = look();
        if write { stats.foreign_retired > 0 } else { stats.foreign_owners == 0 }
    });
    // Memory with pending writes is not released. Memory with pending reads is.
    assert_eq!(freed(), usize::from(!write));
    let (t, _) = shared(by, 2.0, &stream);
    assert_eq!(t.to_vec(&stream)?, [2.0; LEN]);
    drop(t);
    assert_eq!((freed(), look().foreign_owners), (1 + usize::from(!write), usize::from(write)));
    Ok(())
}

fn has_it((write, from, there): (bool, Moved, Queue<()>)) -> Outcome {
    let stream = stream();
    let mut t = taken(&from);
    if write {
        let on = t.on_mut(&stream)?;
        kernels().fill(&stream, on.ptr(), LEN, 3.0);
        drop(on);
        stream.synchronize()?;
    } else {
        t.to_vec(&stream)?;
    }
    there.put(()).unwrap();
    stays();
    Ok(())
}

#[test]
fn memory_written_by_killed_receiver_is_retained() {
    for (by, write) in
        [(By::Legacy, false), (By::Legacy, true), (By::Shareable, false), (By::Shareable, true)]
    {
        let session = session();
        let (out, there, dead) =
            (Queue::unbounded().unwrap(), Queue::unbounded().unwrap(), Queue::unbounded().unwrap());
        let exporter =
            with_gpu(&session).spawn(waits_for_a_death, (by, write, out.clone(), dead.clone())).unwrap();
        let receiver = with_gpu(&session).spawn(has_it, (write, out, there.clone())).unwrap();
        taken(&there);
        receiver.kill().unwrap();
        assert!(receiver.wait_timeout(DEADLINE));
        dead.put(()).unwrap();
        join(exporter);
        eventually("all memory is free", || crate::support::stat(&session, "bytes") == 0);
        let kinds: Vec<_> = session.findings().unwrap().into_iter().map(|one| one.kind).collect();
        // The process retains memory that it must not release before its end.
        let expected = ["left"].into_iter().filter(|_| write && session.has_figures());
        assert_eq!(kinds, expected.collect::<Vec<_>>(), "{by:?} {write}");
    }
}

/// Owner whose drop panics, with a panic value whose drop panics, too.
struct Angry(Allocated);

struct AngryStill;

impl Drop for AngryStill {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "the value of a panic is dropped");
    }
}

impl Drop for Angry {
    fn drop(&mut self) {
        assert!(self.0.address != 0);
        std::panic::panic_any(AngryStill);
    }
}

fn owners((): ()) -> Outcome {
    let stream = stream();
    std::panic::set_hook(Box::new(|_| {}));
    let memory = Allocated::new(By::Legacy, 4 * LEN);
    let foreign = ForeignMemory::new(memory.address, [LEN]);
    // SAFETY: the memory has this many floats until it is dropped.
    let (t, _) = unsafe { foreign.share::<f32, _>(Angry(memory), &stream) }?;
    drop(t);
    // The tick after the use must be complete.
    stream.synchronize()?;
    assert_eq!(memory_stats(stream.device()).foreign_owners, 0);
    assert_eq!(freed(), 1, "the owner's memory is dropped in spite of the panic");
    // An owner that holds another shared tensor, and drops it.
    let inner = shared(By::Shareable, 1.0, &stream).0;
    let memory = Allocated::new(By::Legacy, 4 * LEN).filled(&[2.0; LEN]);
    let foreign = ForeignMemory::new(memory.address, [LEN]);
    // SAFETY: the memory has this many floats until it is dropped.
    let (t, _) = unsafe { foreign.share::<f32, _>((memory, inner), &stream) }?;
    assert_eq!(memory_stats(stream.device()).foreign_owners, 2);
    drop(t);
    eventually("both are dropped", || memory_stats(stream.device()).foreign_owners == 0);
    assert_eq!(freed(), 3);
    Ok(())
}

#[test]
fn memory_owner_may_panic_and_hold_tensors() {
    let session = session();
    run(&session, owners, ());
    nothing_is_left(&session);
}

const MANY: usize = 600;

/// Sends more pieces of one allocation than the object of a slab has rows for. Then sends tensors of several
/// allocations, one after another.
fn streams_of_tensors((by, out): (By, Moved)) -> Outcome {
    let (stream, mut most) = (stream(), 0);
    let whole = std::sync::Arc::new(Allocated::new(by, 4 * LEN * 16));
    for i in 0..MANY {
        let at = whole.address + 4 * (LEN * (i % 16)) as u64;
        let mut t = if i % 4 > 0 {
            // SAFETY: the memory has this many floats until the last owner is dropped. Each write waits for
            // the previous one.
            unsafe { ForeignMemory::new(at, [16]).share::<f32, _>(std::sync::Arc::clone(&whole), &stream) }?.0
        } else {
            shared(by, 0.0, &stream).0
        };
        t.fill(i as f32, &stream)?;
        out.put(t).unwrap();
        most = most.max(memory_stats(stream.device()).foreign_owners);
    }
    assert!(most < 60, "{most} are kept at a time");
    drop(whole);
    eventually("all owners are dropped", || {
        ipc_collect();
        memory_stats(stream.device()).foreign_owners == 0
    });
    assert_eq!(freed(), MANY.div_ceil(4) + 1);
    Ok(())
}

fn drains(from: Moved) -> Outcome {
    let stream = stream();
    for i in 0..MANY {
        let t = taken(&from);
        assert_eq!(t.to_vec(&stream)?[15], i as f32);
    }
    ipc_collect();
    Ok(())
}

#[test]
fn memory_owners_are_retained_only_while_in_use() {
    for by in [By::Legacy, By::Shareable] {
        let session = session();
        let out = Queue::bounded(8).unwrap();
        let receiver = with_gpu(&session).spawn(drains, out.clone()).unwrap();
        run(&session, streams_of_tensors, (by, out));
        join(receiver);
        nothing_is_left(&session);
    }
}

fn many_at_once((): ()) -> Outcome {
    let stream = stream();
    let whole = std::sync::Arc::new(Allocated::new(By::Legacy, 4 * LEN));
    let mut all = Vec::new();
    for i in 0..1100_u64 {
        let foreign = ForeignMemory::new(whole.address + 4 * i, [1]);
        // SAFETY: the memory has one float.
        all.push(unsafe { foreign.share::<f32, _>(std::sync::Arc::clone(&whole), &stream) }?.0);
        all[usize::try_from(i)?].fill(i as f32, &stream)?;
    }
    for (i, t) in all.iter().enumerate().rev() {
        assert_eq!(t.to_vec(&stream)?, [i as f32]);
    }
    assert_eq!(memory_stats(stream.device()).foreign_owners, 1100);
    drop(whole);
    all.truncate(3);
    assert_eq!((freed(), memory_stats(stream.device()).foreign_owners), (0, 3));
    drop(all);
    assert_eq!((freed(), memory_stats(stream.device()).foreign_owners), (1, 0));
    Ok(())
}

#[test]
fn foreign_memory_with_more_pieces_than_rows_works() {
    let session = session();
    run(&session, many_at_once, ());
    nothing_is_left(&session);
}
