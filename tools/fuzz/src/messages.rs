//! Fuzz target for hostile bytes in messages with tensors, buffers and nested messages. The attachments are
//! not changed.

use mp_core::message::Outgoing;
use mp_core::{Arena, Messages};
use mp_reduce::{Bundle, Error, Message, MessagePack, TypeFingerprint, pack, unpack};
use mp_tensor::{FrozenTensor, SharedTensor, Tensor};

/// Message with an attachment of each kind.
#[derive(Message)]
#[message(crate = mp_reduce)]
struct Parcel {
    id: u64,
    row: Vec<u32>,
    text: String,
    own: Tensor<u8>,
    shared: SharedTensor<u16>,
    frozen: Bundle<Vec<FrozenTensor<f32>>>,
    children: Bundle<Vec<Parcel>>,
}

fn parcel(children: usize) -> Parcel {
    let frozen = Tensor::from_fn(&[4, 5], |i| i as f32).unwrap().freeze();
    Parcel {
        id: 1 << 40,
        row: vec![1; 5000],
        text: "x".repeat(20_000),
        own: Tensor::full([9], 7).unwrap(),
        shared: Tensor::full([6], 3).unwrap().share(),
        frozen: Bundle(vec![frozen.select(0, 1).unwrap(), frozen.transpose(0, 1).unwrap(), frozen]),
        children: Bundle((0..children).map(|_| parcel(0)).collect()),
    }
}

/// Reads all memory to which the decoded value refers.
fn look(parcel: &Parcel) {
    /// Limit on the number of elements that are read of a view, because a view may contain one element any
    /// number of times.
    const MOST: usize = 1 << 16;
    let own = parcel.own.as_slice().map_or(0, |all| all.iter().take(MOST).map(|x| usize::from(*x)).sum());
    let shared = if parcel.shared.len() < MOST { parcel.shared.to_vec().len() } else { 0 };
    let some = parcel.frozen.0.iter().filter(|frozen| frozen.len() < MOST);
    let frozen: usize = some.map(|frozen| frozen.to_vec().iter().filter(|x| **x > 1.0).count()).sum();
    std::hint::black_box(own + shared + frozen);
    parcel.children.0.iter().for_each(look);
}

fn written(value: &mut Parcel) -> Outgoing {
    let mut out = Outgoing::default();
    value.encode::<MessagePack>(&mut out).unwrap();
    out
}

/// Decodes the bytes as a message, encodes the decoded value, and decodes the result again. The first byte is
/// the number of nested messages.
pub(super) fn messages(bytes: &[u8]) {
    let Some((children, bytes)) = bytes.split_first() else { return };
    let mut out = written(&mut parcel(usize::from(children % 2)));
    out.bytes().clear();
    out.bytes().extend_from_slice(bytes);
    let type_of = TypeFingerprint::<Parcel>::new().get();
    let envelope = Arena::current().and_then(|arena| Messages(arena).pack(&mut out, type_of)).unwrap();
    match unpack::<Parcel>(envelope) {
        Ok(parcel) => {
            look(&parcel);
            unpack::<Parcel>(pack(parcel).unwrap()).unwrap();
        }
        Err(Error::Memory(mp_core::Error::Undecodable(_))) => {}
        Err(other) => panic!("hostile bytes caused another kind of error: {other:?}"),
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let of = |children: u8| [&[children], &written(&mut parcel(children.into())).bytes()[..]].concat();
    vec![of(0), of(1)]
}
