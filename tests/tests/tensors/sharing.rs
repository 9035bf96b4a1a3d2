//! Memory with several handles. Views, clones and messages of one storage stay views of one storage in
//! another process, and writes to a shared tensor in that process are visible here.

use mp::{FrozenTensor, Queue, SharedTensor, SpawnOptions, Tensor, start_processes};
use mp_tests::{Outcome, give, join, next, one_process, send, take};

type Frozen = FrozenTensor<i32>;

fn matrix() -> Frozen {
    Tensor::from_fn(&[4, 6], |i| i as i32).unwrap().freeze()
}

/// Returns a matrix and five views of it.
fn views(x: &Frozen) -> Vec<Frozen> {
    vec![
        x.clone(),
        x.select(0, 2).unwrap(),
        x.select(1, 5).unwrap(),
        x.transpose(0, 1).unwrap(),
        x.narrow(1, 2, 3).unwrap(),
        x.chunk(2, 0).unwrap().remove(1),
    ]
}

#[test]
fn views_arrive_as_views_of_one_storage() {
    fn worker(_: usize, (there, back): (Queue<Vec<Frozen>>, Queue<Vec<Vec<i32>>>)) -> Outcome {
        let got = next(&there)?.ok_or("nothing came")?;
        assert!(got.iter().all(|v| v.storage() == got[0].storage()), "not one storage");
        assert_eq!(got[0].storage().hold().count(), 6, "not one hold, counted six times");
        // Offsets of the elements in the storage are the same in both processes.
        let first = got[0].as_slice()?.as_ptr();
        assert_eq!(got[1].as_slice()?.as_ptr(), first.wrapping_add(12));
        assert_eq!(got[5].as_slice()?.as_ptr(), first.wrapping_add(12));
        assert!(got[2].as_slice().is_err() && got[3].as_slice().is_err() && got[4].as_slice().is_err());
        send(&back, got.iter().map(Frozen::to_vec).collect())
    }
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(worker, (there.clone(), back.clone()));
    let x = matrix();
    let expected: Vec<Vec<i32>> = views(&x).iter().map(Frozen::to_vec).collect();
    assert_eq!(expected[2], [5, 11, 17, 23]);
    give(&there, views(&x));
    assert_eq!(take(&back), expected);
    join(&context).unwrap();
}

#[test]
fn storage_sent_in_two_messages_stays_one() {
    fn worker(_: usize, (there, done): (Queue<Frozen>, Queue<()>)) -> Outcome {
        let (a, b) = (next(&there)?.ok_or("no first")?, next(&there)?.ok_or("no second")?);
        let other = next(&there)?.ok_or("no third")?;
        assert!(a.storage() == b.storage() && a.storage() != other.storage());
        assert_eq!(a.storage().as_ptr(), b.storage().as_ptr());
        // Dropping one of two handles keeps the memory.
        drop(a);
        assert_eq!(b.to_vec(), [0, 1, 2, 3, 4, 5]);
        send(&done, ())
    }
    let (there, done) = (Queue::bounded(3).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(worker, (there.clone(), done.clone()));
    {
        let x = matrix();
        give(&there, x.clone());
        give(&there, x.select(0, 0).unwrap());
        give(&there, matrix());
    }
    take(&done);
    join(&context).unwrap();
}

#[test]
fn shared_tensor_writes_are_visible_in_both_processes() {
    type Args = (SharedTensor<f32>, Queue<SharedTensor<f32>>, Queue<()>);
    fn worker(rank: usize, (whole, rows, done): Args) -> Outcome {
        let row = next(&rows)?.ok_or("no row")?;
        // The argument and the message use the same memory.
        row.store(0, 10.0);
        assert_eq!((whole.load(3), whole.storage() == row.storage()), (10.0, true));
        for _ in 0..1000 {
            whole.fetch_add(0, 1.0);
        }
        whole.set(&[1, 2], rank as f32 + 0.5)?;
        send(&done, ())
    }
    let whole = Tensor::<f32>::zeros([2, 3]).unwrap().share();
    let (rows, done) = (Queue::bounded(2).unwrap(), Queue::bounded(2).unwrap());
    let args = (whole.clone(), rows.clone(), done.clone());
    let context = start_processes(worker, args, SpawnOptions::nprocs(2)).unwrap();
    (0..2).for_each(|_| give(&rows, whole.select(0, 1).unwrap()));
    (0..2).for_each(|_| take(&done));
    // Writes before the put are visible after the get, and no addition is lost.
    assert_eq!((whole.load(0), whole.get(&[1, 0]).unwrap()), (2000.0, 10.0));
    assert!([0.5, 1.5].contains(&whole.get(&[1, 2]).unwrap()));
    join(&context).unwrap();
}

#[test]
fn exclusive_tensor_moves_between_writers_uncopied() {
    fn worker(_: usize, (there, back): (Queue<Tensor<u64>>, Queue<Tensor<u64>>)) -> Outcome {
        while let Some(mut t) = next(&there)? {
            t.as_mut_slice()?.iter_mut().for_each(|v| *v += 1);
            send(&back, t)?;
        }
        Ok(())
    }
    let (there, back) = (Queue::bounded(1).unwrap(), Queue::bounded(1).unwrap());
    let context = start_processes(worker, (there.clone(), back.clone()), SpawnOptions::nprocs(2)).unwrap();
    let mut t = Tensor::from_fn(&[100_000], |i| i as u64).unwrap();
    let at = t.storage().as_ptr();
    for round in 0..50 {
        t.as_mut_slice().unwrap()[0] += 10;
        give(&there, t);
        t = take(&back);
        assert_eq!(t.storage().as_ptr(), at, "the tensor was copied in round {round}");
    }
    assert_eq!((t.get(&[0]).unwrap(), t.get(&[99_999]).unwrap()), (50 * 11, 99_999 + 50));
    there.close();
    join(&context).unwrap();
}
