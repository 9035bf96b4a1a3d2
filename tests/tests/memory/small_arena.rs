//! An arena without free addresses. Addresses of blocks of one size are reused for blocks of another size,
//! also if several processes reuse them at the same time, or are killed meanwhile.

use std::process::Command;

use mp::queue::{broadcast, watch};
use mp::{Arena, Error, FrozenTensor, PutError, SpawnError, SpawnOptions, Tensor, start_processes};
use mp_core::steps::INLINE_SEATS;
use mp_core::{Allocator, Structure, inject};
use mp_tests::limits::arena_of;
use mp_tests::{DEADLINE, Outcome, alone, eventually, in_use, join, one_process};
use rustix::process::Signal;

const SIZE: u64 = 64 << 20;
/// Unit of sizes: a 256th of the arena.
const PART: usize = SIZE as usize / 256;

/// Returns the arena of this test program.
fn arena() -> Arena {
    arena_of(SIZE)
}

/// Allocates tensors of this size, at most `most`, until there is no room. The first and the last element of
/// a tensor are its number.
fn fill(bytes: usize, most: usize) -> Vec<FrozenTensor<u64>> {
    let mut all = Vec::new();
    while all.len() < most {
        let len = bytes / 8;
        match Tensor::<u64>::empty([len]) {
            Ok(mut t) => {
                let number = all.len() as u64;
                let elements = t.as_mut_slice().unwrap();
                elements[0] = number;
                elements[len - 1] = number;
                all.push(t.freeze());
            }
            Err(Error::OutOfMemory { asked, .. }) => {
                assert!(asked >= bytes as u64);
                return all;
            }
            Err(Error::ArenaFull { .. }) => return all,
            Err(e) => panic!("{e}"),
        }
    }
    all
}

fn check(all: &[FrozenTensor<u64>]) {
    for (i, t) in all.iter().enumerate() {
        let ends = (t.get(&[0]).unwrap(), t.get(&[t.len() - 1]).unwrap());
        assert_eq!(ends, (i as u64, i as u64), "{} tensors overlap", all.len());
    }
}

#[test]
fn arena_addresses_are_reused_for_other_sizes() {
    let _alone = alone();
    arena();
    let before = in_use();
    for parts in [1, 24, 3, 100, 40, 7, 64, 1] {
        let all = fill(parts * PART, usize::MAX);
        check(&all);
        // At least two thirds fit: a size class may be a ninth larger, slabs start at 2 MiB, the last ones
        // don't fit.
        let got = all.len() * parts;
        assert!(got >= 160 || parts == 100 && got >= 100, "{got} parts in tensors of {parts}");
    }
    // Two sizes share the arena. The tensors of each size are in memory that the other size leaves free.
    let mut small = fill(3 * PART, usize::MAX);
    small.truncate(small.len() / 2);
    let large = fill(20 * PART, usize::MAX);
    check(&small);
    check(&large);
    assert!(large.len() >= 3, "{} of 20 parts beside {} of 3", large.len(), small.len());
    drop((small, large));
    assert_eq!(in_use(), before);
}

fn allocate_and_die(_: usize, at: u64) -> Outcome {
    arena();
    inject::arm_at_change(at, Signal::KILL.as_raw());
    drop(fill(24 * PART, 1));
    Ok(())
}

/// The test runs separate programs. In an arena that was full once, every address belongs to a slab.
#[test]
fn slab_rows_are_exhausted_before_addresses() {
    const KEPT: &str = "MP_TESTS_KEPT";
    let _alone = alone();
    let Some(kept) = std::env::var_os(KEPT) else {
        // The unused slabs are directly before the addresses that never had a slab, or elsewhere.
        for kept in ["none", "last"] {
            let mut program = Command::new(std::env::current_exe().unwrap());
            program.args(["slab_rows_are_exhausted_before_addresses", "--exact"]).env(KEPT, kept);
            let output = program.output().unwrap();
            assert!(output.status.success(), "{kept}: {}", String::from_utf8_lossy(&output.stdout));
        }
        return;
    };
    arena();
    let before = in_use();
    let mut tiny = fill(64, usize::MAX);
    check(&tiny);
    let kept = tiny.pop().filter(|_| kept == "last");
    drop(tiny);
    // Each process continues where the previous process was killed.
    let mut killed = 0;
    while mp_tests::kill::killed(&one_process(allocate_and_die, 1 + 97 * killed)) {
        killed += 1;
    }
    assert!(killed > 3, "{killed} were killed");
    let large = fill(24 * PART, usize::MAX);
    check(&large);
    assert!(large.len() >= 6, "{} are all that there is room for", large.len());
    drop((large, kept));
    eventually("all memory is released", || {
        arena().reclaim().unwrap();
        in_use() == before
    });
}

fn change_sizes(rank: usize, rounds: usize) -> Outcome {
    arena();
    for round in 0..rounds {
        let parts = [30, 5, 17, 60][(rank + round) % 4];
        let all = fill(parts * PART, 120 / parts);
        check(&all);
    }
    Ok(())
}

#[test]
fn concurrent_slab_size_changes_release_all_memory() {
    let _alone = alone();
    arena();
    let before = in_use();
    join(&start_processes(change_sizes, 20, SpawnOptions::nprocs(3)).unwrap()).unwrap();
    eventually("all memory is released", || {
        arena().reclaim().unwrap();
        in_use() == before
    });
    assert!(fill(24 * PART, usize::MAX).len() >= 6);
}

fn change_size_and_die(_: usize, at: u64) -> Outcome {
    arena();
    let all = fill(30 * PART, 4);
    inject::arm_at_change(at, Signal::KILL.as_raw());
    drop(all);
    // No addresses are left, so each size needs addresses of other sizes.
    drop(fill(21 * PART, usize::MAX));
    drop(fill(100 * PART, 1));
    Ok(())
}

#[test]
fn process_killed_while_changing_sizes_leaks_nothing() {
    const MOST: u64 = 200_000;
    let _alone = alone();
    arena();
    drop(fill(24 * PART, usize::MAX));
    let before = in_use();
    let mut killed = 0;
    // The process reads thousands of words before its first change, so a kill at each read would add nothing.
    let mut at = 1;
    loop {
        let context = one_process(change_size_and_die, at);
        let ended = match context.join_timeout(DEADLINE) {
            Ok(ended) => ended,
            Err(SpawnError::ProcessExited(_)) => false,
            Err(e) => panic!("{e}"),
        };
        eventually("all memory is released", || {
            arena().reclaim().unwrap();
            in_use() == before
        });
        if at % 16 == 1 {
            let all = fill(24 * PART, usize::MAX);
            check(&all);
            assert!(all.len() >= 6, "addresses leaked: {} of 24 parts, killed at change {at}", all.len());
        }
        if ended {
            break;
        }
        assert!(at < MOST, "a script of {at} changes");
        killed += 1;
        at += 1;
    }
    assert!(killed > 50, "{killed} kills");
    println!("{killed} kills, the last at change {at}");
}

/// A structure names its children in seats. The seats of the first children are in its header, and further
/// seats are in pages, which need memory.
#[test]
fn structure_gets_parent_after_arena_memory_is_freed() {
    let _alone = alone();
    let arena = arena();
    let before = in_use();
    let new = || Structure::new("test::Part", 1).unwrap();
    let (whole, mut part) = (new(), new());
    let mut parts: Vec<_> = (1..INLINE_SEATS).map(|_| new()).collect();
    parts.iter_mut().for_each(|part| part.set_parent(&whole).unwrap());
    let mut all = Vec::new();
    for parts in [64, 8, 1] {
        all.extend(fill(parts * PART, usize::MAX));
    }
    for bytes in [64 << 10, 4 << 10, 2 << 10, 64] {
        all.extend(fill(bytes, usize::MAX));
    }
    let full = part.set_parent(&whole).unwrap_err();
    assert!(matches!(full, Error::OutOfMemory { .. } | Error::ArenaFull { .. }), "{full}");
    let refused = Allocator(arena).parent_mark(part.hold()).unwrap_err().to_string();
    assert!(refused.contains("has no parent"), "{refused}");
    drop(all);
    part.set_parent(&whole).unwrap();
    assert_eq!(Allocator(arena).parent_mark(part.hold()).unwrap(), whole.mark());
    assert_eq!(whole.holders().children, parts.len() + 1);
    drop((whole, part, parts));
    assert_eq!(in_use(), before);
}

/// Several vectors, each in a separate block.
type Rows = (u64, Vec<Vec<u64>>);

const ROW: usize = 8 * PART;

fn rows(number: u64) -> Rows {
    (number, (0..3).map(|row| vec![10 * number + row; ROW / 8]).collect())
}

/// Returns the value that was not sent because memory was short.
#[track_caller]
fn unsent(sent: Result<(), PutError<Rows>>) -> Rows {
    let error = sent.unwrap_err();
    let text = error.to_string();
    let full = |error: &Error| matches!(error, Error::OutOfMemory { .. } | Error::ArenaFull { .. });
    assert!(
        matches!(&error, PutError::Failed { error: mp_reduce::Error::Memory(error), .. } if full(error)),
        "{text}"
    );
    assert!(text.contains("MiB") && text.contains("arena"), "what was asked for, and what is full: {text}");
    error.into_value()
}

/// The arena has room for one of the value's vectors, and not for the others.
#[test]
fn broadcast_in_a_full_arena_returns_its_value() {
    let _alone = alone();
    arena();
    let (cell, seen) = watch::channel(rows(1)).unwrap();
    let (sender, receiver) = broadcast::channel(4).unwrap();
    sender.send(rows(1)).unwrap();
    for left in [1, 2] {
        let before = in_use();
        let mut others = fill(ROW, usize::MAX);
        check(&others);
        assert!(others.len() > left);
        others.truncate(others.len() - left);
        let full = in_use();
        assert!(unsent(cell.send(rows(2))) == rows(2));
        assert!(unsent(cell.send_replace(rows(2)).map(drop)) == rows(2));
        let modified = cell.send_if_modified(|value| {
            *value = rows(2);
            true
        });
        assert!(matches!(modified, Err(mp_reduce::Error::Memory(_))), "{modified:?}");
        assert!(unsent(sender.send(rows(2))) == rows(2));
        // Nothing is left, not even the vectors that had found room.
        assert_eq!(in_use(), full, "with room for {left}");
        assert!(!seen.has_changed().unwrap());
        drop(others);
        assert_eq!(in_use(), before);
    }
    // The current value is unchanged, and the returned value can be sent.
    assert!(*seen.borrow().unwrap() == rows(1));
    cell.send(rows(3)).unwrap();
    sender.send(rows(3)).unwrap();
    assert!(seen.has_changed().unwrap() && *seen.borrow_and_update().unwrap() == rows(3));
    assert!(receiver.try_recv().unwrap() == rows(1) && receiver.try_recv().unwrap() == rows(3));
    assert!(receiver.try_recv().unwrap_err().is_empty());
}
