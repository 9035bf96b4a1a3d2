//! Fuzz target for hostile bytes in messages with device tensors and events. No driver is loaded or called,
//! because a process without a GPU can forward these messages.

use mp_core::clocks::{Clock, Tick};
use mp_core::message::Outgoing;
use mp_core::{Arena, Messages};
use mp_cuda::fuzz::{check, check_any, pending, tensor};
use mp_cuda::{AnyCudaTensor, CudaEvent, CudaTensor, Frozen, FrozenCudaTensor, SharedCudaTensor};
use mp_reduce::{Bundle, Error, Message, MessagePack, TypeFingerprint, pack, unpack};

/// Message with a device tensor of each kind, and an event.
#[derive(Message)]
#[message(crate = mp_reduce)]
struct Parcel {
    id: u64,
    own: CudaTensor<f32>,
    shared: SharedCudaTensor<u16>,
    frozen: Bundle<Vec<FrozenCudaTensor<f64>>>,
    any: AnyCudaTensor<Frozen>,
    moved: AnyCudaTensor,
    event: CudaEvent,
}

fn parcel(tick: Tick) -> Parcel {
    let frozen = tensor::<f64>(tick).unwrap().freeze();
    Parcel {
        id: 1 << 40,
        own: tensor(tick).unwrap(),
        shared: tensor(tick).unwrap().share(),
        frozen: Bundle(vec![frozen.narrow(0, 5, 9).unwrap(), frozen.reshape([16, 32]).unwrap(), frozen]),
        any: AnyCudaTensor::from(tensor::<i8>(tick).unwrap()).freeze(),
        moved: AnyCudaTensor::from(tensor::<i64>(tick).unwrap()),
        event: CudaEvent::new().unwrap(),
    }
}

/// Checks that all tensors lie within their memory.
fn look(parcel: &Parcel) {
    check(&parcel.own);
    check(&parcel.shared);
    parcel.frozen.0.iter().for_each(check);
    check_any(&parcel.any);
    check_any(&parcel.moved);
    std::hint::black_box((parcel.id, parcel.event.query().is_ok()));
}

/// Returns an encoded message, its value, and the clock whose tick the message contains.
fn written() -> (Outgoing, Parcel, Clock) {
    let (clock, tick) = pending().unwrap();
    let mut parcel = parcel(tick);
    let mut out = Outgoing::default();
    parcel.encode::<MessagePack>(&mut out).unwrap();
    (out, parcel, clock)
}

/// Decodes the bytes as a message, encodes the decoded value, and decodes the result again.
pub(super) fn devices(bytes: &[u8]) {
    let (mut out, kept, mut clock) = written();
    out.bytes().clear();
    out.bytes().extend_from_slice(bytes);
    let type_of = TypeFingerprint::<Parcel>::new().get();
    let envelope = Arena::current().and_then(|arena| Messages(arena).pack(&mut out, type_of)).unwrap();
    match unpack::<Parcel>(envelope) {
        Ok(parcel) => {
            look(&parcel);
            look(&unpack::<Parcel>(pack(parcel).unwrap()).unwrap());
        }
        Err(Error::Memory(mp_core::Error::Undecodable(_))) => {}
        Err(other) => panic!("hostile bytes caused another kind of error: {other:?}"),
    }
    drop(kept);
    // A clock with unfinished work stays in use, and there are only 4,096 clocks.
    let last = clock.last().expect("it has ticked");
    clock.complete(last).unwrap();
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let (mut out, kept, mut clock) = written();
    let bytes = out.bytes().clone();
    drop((out, kept));
    clock.complete(clock.last().expect("it has ticked")).unwrap();
    vec![bytes]
}
