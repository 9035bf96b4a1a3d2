//! Use records of device memory under loom: every interleaving that the memory model allows, of two holders
//! and a creator, with three preemptions.
//!
//! `RUSTFLAGS="--cfg mp_loom" cargo test --release -p mp-core --test loom_rows`
#![cfg(mp_loom)]

use loom::sync::Arc;
use loom::thread;
use mp_core::mem::{HeapMem, Mem, Word, run};
use mp_core::steps::device::use_record::{
    EndUse, LastUseChange, ReadUseRecord, ResetUseRecord, UseRecord, UseRecordAt, begin_use, last_use_change,
    mark_mixed,
};
use mp_core::words::Tick;

const ROW: UseRecordAt = UseRecordAt(Word::at(0));
const SEATS: Word = Word::at(16);

fn tick(holder: u32, joins: bool) -> Tick {
    Tick::new(2 * holder + u32::from(joins), Tick::base(1) + 1)
}

/// Uses a piece and releases it, like a holder with write access whose work has not run.
fn leaves(m: &HeapMem, holder: u32) {
    begin_use(ROW, m);
    loop {
        let old = m.load(ROW.last_use());
        let how = last_use_change(Tick::from_raw(old), &[tick(holder, false)], |_| Some(false), |_| false);
        let LastUseChange::Swap { tick: own, mixes } = how else { unreachable!("no process is dead") };
        if mixes {
            mark_mixed(ROW, m);
        }
        let new = own.unwrap_or(tick(holder, true));
        if m.cas(ROW.last_use(), old, new.raw()).is_ok() {
            break;
        }
    }
    run(EndUse::new(ROW), m);
    m.and(SEATS, !(1 << holder));
}

fn held() -> Arc<HeapMem> {
    let m = Arc::new(HeapMem::new(3));
    m.store(SEATS, 0b11);
    m
}

/// A creator that finds no holder reads all uses of the previous holders. The read of the seats is the only
/// synchronization.
#[test]
fn loom_creator_reads_memory_uses_of_past_holders() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let m = held();
        let holders = [0, 1].map(|holder| {
            let m = Arc::clone(&m);
            thread::spawn(move || leaves(&m, holder))
        });
        if m.load(SEATS) == 0 {
            let UseRecord { last_use, is_complete, is_mixed } = run(ReadUseRecord::new(ROW), &*m);
            assert!(is_complete && is_mixed, "an ended use is missing");
            let last = Tick::from_raw(last_use).expect("a last use");
            assert!([0, 1].map(|holder| tick(holder, true)).contains(&last), "{last:?} follows one use only");
        }
        holders.into_iter().for_each(|holder| holder.join().unwrap());
    });
}

/// Uses that end at the same time are both counted.
#[test]
fn loom_concurrent_device_memory_uses_are_counted() {
    loom::model(|| {
        let m = held();
        let ends = |m: &HeapMem| {
            begin_use(ROW, m);
            run(EndUse::new(ROW), m);
        };
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || ends(&m))
        };
        ends(&m);
        other.join().unwrap();
        assert!(run(ReadUseRecord::new(ROW), &*m).is_complete);
        run(ResetUseRecord::new(ROW), &*m);
        assert_eq!((m.load(ROW.last_use()), m.load(ROW.uses())), (0, 0));
    });
}
