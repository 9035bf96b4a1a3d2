//! Counterpart of the other cases: correct code, which is compiled and run with the tests.
use mp::{Bundle, FrozenTensor, Message, Queue, Tensor};

#[derive(serde::Serialize, serde::Deserialize)]
struct Batch {
    name: String,
    images: FrozenTensor<u8>,
}

#[derive(Message)]
struct Job {
    tensor: Tensor<f32>,
    batch: Batch,
}

#[derive(mp_reduce::Message)]
#[message(crate = mp_reduce)]
struct Elsewhere<T>(T);

fn worker(_rank: usize, (): ()) {}

pub(crate) fn main() {
    let queue = Queue::<Job>::bounded(1).unwrap();
    let images = Tensor::zeros([4]).unwrap().freeze();
    let batch = Batch { name: "b".into(), images };
    queue.put(Job { tensor: Tensor::zeros([4]).unwrap(), batch }).unwrap();
    let Job { tensor, batch } = queue.get().unwrap().unwrap();
    assert_eq!((tensor.len(), batch.images.len(), batch.name.as_str()), (4, 4, "b"));
    let queue = Queue::<Bundle<(Tensor<f32>, Elsewhere<u8>)>>::bounded(1).unwrap();
    queue.put(Bundle((tensor, Elsewhere(3)))).unwrap();
    mp::spawn(worker, (), 1).unwrap();
    mp::spawn(|rank: usize, (): ()| assert_eq!(rank, 0), (), 1).unwrap();
}
