//! Handles are valid only inside of messages: writing or reading their bytes elsewhere is an error, and bytes
//! from elsewhere never become a handle.

use mp::message::{Message, Outgoing};
use mp::sync::{RawArray, RawValue};
use mp::tensor::{Frozen, Shared, TypedStorage};
use mp::{AnyTensor, Arena, Array, DType, FrozenTensor, Lock, Queue, ShareableList, SharedTensor, Tensor};
use mp_core::Messages;
use mp_reduce::MessagePack;
use serde::{Deserialize, Serialize};

fn tensor() -> Tensor<f32> {
    Tensor::zeros([4]).unwrap()
}

#[derive(Serialize, Deserialize)]
struct Saved<T> {
    epoch: u32,
    of: T,
}

#[test]
fn serializing_outside_a_message_is_an_error() {
    fn refused(kind: &str, value: &impl Serialize) {
        let error = rmp_serde::to_vec(value).unwrap_err().to_string();
        assert!(error.contains(kind) && error.contains("inside of a message"), "{error}");
    }
    refused("a FrozenTensor", &tensor().freeze());
    refused("a SharedTensor", &tensor().share());
    refused("a Queue", &Queue::<u8>::bounded(1).unwrap());
    refused("a Lock", &Lock::new(1_u8).unwrap());
    refused("an Array", &Array::<u8>::zeros(1).unwrap());
    refused("a RawValue", &RawValue::new(1_u8).unwrap());
    refused("a RawArray", &RawArray::<u8>::zeros(1).unwrap());
    refused("a ShareableList", &ShareableList::new([]).unwrap());
    refused("a FrozenTensor", &Saved { epoch: 3, of: vec![Some(tensor().freeze())] });
}

/// Encoding of a tensor's handle in a message.
struct Handle(Vec<u8>);

impl Serialize for Handle {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Handle {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        unreachable!("it is only sent")
    }
}

/// Returns the encoding of a tensor's handle: rank and flags (32: numbers of 8 bytes instead of 4; 64:
/// strides follow), element type, attachment, offset, shape, and strides if they are not the usual ones.
fn handle(dtype: DType, offset: u64, shape: &[u64], strides: &[i64]) -> Handle {
    let numbers: Vec<u64> =
        [&[offset], shape, &strides.iter().map(|s| *s as u64).collect::<Vec<_>>()].concat();
    let wide = numbers.iter().any(|n| *n > u64::from(u32::MAX));
    let flags = shape.len() as u8 | u8::from(wide) << 5 | u8::from(!strides.is_empty()) << 6;
    let mut bytes = vec![flags, dtype as u8, 0, 0, 0, 0];
    numbers.iter().for_each(|n| bytes.extend(&n.to_le_bytes()[..if wide { 8 } else { 4 }]));
    Handle(bytes)
}

/// Extends the encoding of a handle by a storage with a claimed size in bytes.
fn handle_of(mut handle: Handle, storage: u64) -> Handle {
    handle.0[0] |= 1 << 7;
    handle.0.extend(storage.to_le_bytes());
    handle
}

/// Returns the bytes of two handles, encoded as in a message with one attachment.
fn handle_bytes() -> [Vec<u8>; 2] {
    let tensor = rmp_serde::to_vec(&handle(DType::F32, 0, &[4], &[])).unwrap();
    [tensor, rmp_serde::to_vec(&0_u32).unwrap()]
}

#[test]
fn handle_bytes_outside_of_a_message_are_an_error() {
    fn refused<T: for<'de> Deserialize<'de>>(kind: &str, bytes: &[u8]) {
        let error = rmp_serde::from_slice::<T>(bytes).err().unwrap().to_string();
        assert!(error.contains(kind) && error.contains("inside of a message"), "{error}");
    }
    let [tensor, queue] = handle_bytes();
    refused::<FrozenTensor<f32>>("a FrozenTensor", &tensor);
    refused::<SharedTensor<f32>>("a SharedTensor", &tensor);
    refused::<Queue<u8>>("a Queue", &queue);
    refused::<Lock<u8>>("a Lock", &queue);
    refused::<Array<u8>>("an Array", &queue);
    refused::<RawValue<u8>>("a RawValue", &queue);
    refused::<RawArray<u8>>("a RawArray", &queue);
}

/// Reads bytes as a message without attachments.
fn read<T: Message>(mut value: impl Message) -> mp_core::Result<T> {
    let mut out = Outgoing::default();
    value.encode::<MessagePack>(&mut out)?;
    T::decode::<MessagePack>(&mut out.into_incoming())
}

#[test]
fn handle_without_its_attachment_is_an_error() {
    fn refused<T: Message>(value: impl Message) {
        let error = read::<T>(value).err().unwrap().to_string();
        assert!(error.contains("attachment 0") && error.contains("does not exist"), "{error}");
    }
    let handle = || handle(DType::F32, 0, &[4], &[]);
    // The bytes are valid: with the attachment, they can be read as a tensor.
    let mut out = Outgoing::default();
    tensor().freeze().encode::<MessagePack>(&mut out).unwrap();
    let mut plain = Outgoing::default();
    handle().encode::<MessagePack>(&mut plain).unwrap();
    assert_eq!(out.bytes(), plain.bytes());
    refused::<FrozenTensor<f32>>(handle());
    refused::<SharedTensor<f32>>(handle());
    refused::<Tensor<f32>>(handle());
    refused::<Queue<u8>>(0_u32);
}

/// Calls `encode`, which attaches memory to a message. Then decodes a `T` from `bytes`, with these
/// attachments.
fn reread<T: Message>(encode: impl Fn(&mut Outgoing), mut bytes: impl Message) -> mp_core::Result<T> {
    let mut attached = Outgoing::default();
    encode(&mut attached);
    let mut out = Outgoing::default();
    bytes.encode::<MessagePack>(&mut out)?;
    *out.attached() = std::mem::take(attached.attached());
    T::decode::<MessagePack>(&mut out.into_incoming())
}

/// Returns the largest accepted size of a storage, which is the size of its block.
fn block_of(attach: impl Fn(&mut Outgoing)) -> u64 {
    let read = |bytes| {
        reread::<FrozenTensor<u8>>(&attach, handle_of(handle(DType::U8, 0, &[0], &[]), bytes)).is_ok()
    };
    (1..=1 << 16).rev().find(|bytes| read(*bytes)).unwrap()
}

#[test]
fn tensor_views_beyond_their_storage_are_refused() {
    let frozen = tensor().freeze();
    let attach = |out: &mut Outgoing| frozen.clone().encode::<MessagePack>(out).unwrap();
    let read = |offset: u64, shape: &[u64], strides: &[i64]| {
        reread::<FrozenTensor<f32>>(attach, handle(DType::F32, offset, shape, strides))
    };
    assert_eq!(read(0, &[4], &[1]).unwrap().to_vec(), [0.0; 4]);
    assert_eq!(read(0, &[4], &[]).unwrap().to_vec(), [0.0; 4]);
    // The block may be larger than the tensor, and a handle may claim the whole block.
    let block = block_of(attach) / 4;
    for (offset, shape, strides) in [
        (block, &[1][..], &[1][..]),
        (0, &[block + 1], &[1]),
        (0, &[2], &[-1]),
        (3, &[4], &[-1]),
        (u64::MAX, &[1], &[1]),
        (0, &[u64::MAX], &[0]),
        (0, &[1 << 40, 1 << 40], &[0, 0]),
        (0, &[2, 2], &[i64::MAX, i64::MAX]),
        (0, &[2], &[i64::MIN]),
        (0, &[1, 1], &[1]),
        (0, &[1; 9], &[1; 9]),
    ] {
        let error = read(offset, shape, strides).map(drop).unwrap_err();
        assert!(matches!(error, mp::Error::Undecodable(_)), "{offset} {shape:?} {strides:?}: {error:?}");
    }
}

#[test]
fn empty_view_with_huge_dimensions_does_not_panic() {
    let frozen = tensor().freeze();
    let attach = |out: &mut Outgoing| frozen.clone().encode::<MessagePack>(out).unwrap();
    let view = handle(DType::F32, 0, &[0, 1 << 40, 1 << 40], &[1, 1, 1]);
    match reread::<FrozenTensor<f32>>(attach, view) {
        Ok(empty) => assert!(empty.is_empty()),
        Err(error) => assert!(matches!(error, mp::Error::Undecodable(_)), "{error:?}"),
    }
}

#[test]
fn message_attachment_is_not_read_as_another_kind() {
    let handle = || handle(DType::F32, 0, &[1], &[1]);
    let refused = |error: mp_core::Error| {
        let text = error.to_string();
        assert!(text.contains("was sent as") && text.contains("is read as"), "{text}");
    };
    let frozen = |out: &mut Outgoing| tensor().freeze().encode::<MessagePack>(out).unwrap();
    refused(reread::<Tensor<f32>>(frozen, handle()).map(drop).unwrap_err());
    refused(reread::<SharedTensor<f32>>(frozen, handle()).map(drop).unwrap_err());
    refused(reread::<Queue<u8>>(frozen, 0_u32).map(drop).unwrap_err());
    let shared = |out: &mut Outgoing| tensor().share().encode::<MessagePack>(out).unwrap();
    refused(reread::<FrozenTensor<f32>>(shared, handle()).map(drop).unwrap_err());
    refused(reread::<Tensor<f32>>(shared, handle()).map(drop).unwrap_err());
    // Attaches a block that isn't a queue as if it were a queue.
    let object =
        |out: &mut Outgoing| assert_eq!(out.attached().attach_object(tensor().storage().hold()).unwrap(), 0);
    refused(reread::<FrozenTensor<f32>>(object, handle()).map(drop).unwrap_err());
    let error = reread::<Queue<u8>>(object, 0_u32).map(drop).unwrap_err().to_string();
    assert!(error.contains("not a queue"), "{error}");
}

#[test]
fn element_type_mismatch_error_names_both_types() {
    let frozen = |out: &mut Outgoing| tensor().freeze().encode::<MessagePack>(out).unwrap();
    let shared = |out: &mut Outgoing| tensor().share().encode::<MessagePack>(out).unwrap();
    let exclusive = |out: &mut Outgoing| tensor().encode::<MessagePack>(out).unwrap();
    let text = |error: mp_core::Error| error.to_string();
    let f32s = || handle(DType::F32, 0, &[1], &[]);
    let names = |error: String| assert!(error.contains("of f32 where one of f64"), "{error}");
    names(text(reread::<FrozenTensor<f64>>(frozen, f32s()).map(drop).unwrap_err()));
    names(text(reread::<SharedTensor<f64>>(shared, f32s()).map(drop).unwrap_err()));
    names(text(reread::<Tensor<f64>>(exclusive, f32s()).map(drop).unwrap_err()));
    // The bytes claim another type than the sent handle. For shared memory, the width of the type matters.
    let f64s = || handle(DType::F64, 0, &[1], &[]);
    for error in [
        reread::<SharedTensor<f64>>(shared, f64s()).map(drop).unwrap_err(),
        reread::<Tensor<f64>>(exclusive, f64s()).map(drop).unwrap_err(),
        reread::<AnyTensor<Shared>>(shared, f64s()).map(drop).unwrap_err(),
        reread::<AnyTensor>(exclusive, f64s()).map(drop).unwrap_err(),
    ] {
        assert!(error.to_string().contains("was sent as"), "{error}");
    }
    // Frozen memory may be read as any type, within its bounds.
    assert_eq!(reread::<FrozenTensor<f64>>(frozen, f64s()).unwrap().to_vec(), [0.0]);
    let behind = block_of(frozen) / 8;
    assert!(reread::<FrozenTensor<f64>>(frozen, handle(DType::F64, behind, &[1], &[])).is_err());
    for unknown in [0, 21, 255] {
        let mut bytes = f32s();
        bytes.0[1] = unknown;
        let error = text(reread::<AnyTensor<Frozen>>(frozen, bytes).map(drop).unwrap_err());
        assert!(error.contains("unknown element type"), "{error}");
    }
}

#[test]
fn exclusive_tensor_with_overlap_is_refused() {
    let exclusive = |out: &mut Outgoing| tensor().encode::<MessagePack>(out).unwrap();
    let shared = |out: &mut Outgoing| tensor().share().encode::<MessagePack>(out).unwrap();
    for (shape, strides) in [(&[2, 3][..], &[1, 1][..]), (&[4], &[0]), (&[2, 2], &[0, 1]), (&[2, 3], &[2, 1])]
    {
        let overlapping = || handle(DType::F32, 0, shape, strides);
        for error in [
            reread::<Tensor<f32>>(exclusive, overlapping()).map(drop).unwrap_err(),
            reread::<AnyTensor>(exclusive, overlapping()).map(drop).unwrap_err(),
        ] {
            assert!(error.to_string().contains("overlap"), "{error}");
        }
        assert!(reread::<SharedTensor<f32>>(shared, overlapping()).is_ok());
    }
}

#[test]
fn storage_handle_of_a_part_is_refused() {
    let frozen = |out: &mut Outgoing| tensor().freeze().encode::<MessagePack>(out).unwrap();
    let read = |offset, shape: &[u64], strides: &[i64]| {
        reread::<TypedStorage<f32>>(frozen, handle(DType::F32, offset, shape, strides))
    };
    assert_eq!(read(0, &[4], &[]).unwrap().len(), 4);
    for (offset, shape, strides) in [
        (0, &[1 << 40][..], &[0][..]),
        (1, &[2], &[]),
        (0, &[2, 2], &[]),
        (0, &[2], &[2]),
        (0, &[1 << 40], &[]),
    ] {
        assert!(read(offset, shape, strides).is_err(), "{offset} {shape:?} {strides:?}");
    }
}

#[test]
fn storage_size_is_between_view_and_block() {
    let frozen = |out: &mut Outgoing| tensor().freeze().encode::<MessagePack>(out).unwrap();
    let read = |bytes| {
        reread::<FrozenTensor<f32>>(frozen, handle_of(handle(DType::F32, 1, &[2], &[]), bytes))
            .map(|tensor| tensor.storage().len())
    };
    assert_eq!((read(12).unwrap(), read(16).unwrap()), (12, 16));
    for bytes in [0, 1, 11, 1 << 20, u64::MAX] {
        let error = read(bytes).unwrap_err().to_string();
        assert!(
            error.contains("storage of") || error.contains("not a handle to a tensor"),
            "{bytes}: {error}"
        );
    }
}

#[test]
fn exclusive_tensor_is_taken_from_a_message_once() {
    let exclusive = |out: &mut Outgoing| tensor().encode::<MessagePack>(out).unwrap();
    let handle = || handle(DType::F32, 0, &[1], &[1]);
    type Pair = mp::Bundle<(Tensor<f32>, Tensor<f32>)>;
    let twice = mp::Bundle((handle(), handle()));
    let error = reread::<Pair>(exclusive, twice).map(drop).unwrap_err().to_string();
    assert!(error.contains("taken already"), "{error}");
    assert!(reread::<Tensor<f32>>(exclusive, handle()).is_ok());
}

/// `take_back` gets the envelope of another message, whose memory is too small for the tensor. So the tensor
/// stays empty.
#[test]
fn tensor_takes_back_only_fitting_storage() {
    let arena = Arena::current().unwrap();
    let (mut large, mut small) = (Tensor::<f32>::zeros([1000]).unwrap(), Tensor::<f32>::zeros([1]).unwrap());
    let (mut one, mut other) = (Outgoing::default(), Outgoing::default());
    large.encode::<MessagePack>(&mut one).unwrap();
    small.encode::<MessagePack>(&mut other).unwrap();
    let envelope = Messages(arena).pack(&mut other, 1).unwrap();
    large.take_back(&mut one.returned(Some(envelope)));
    assert!(large.is_empty() && small.is_empty());
}
