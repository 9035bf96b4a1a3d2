//! Fuzz target: the bytes of a tensor's handle.

use std::num::NonZero;

use mp_core::{DType, Error};
use mp_harness::hostile::Target;
use mp_tensor::MAX_RANK;
use mp_tensor::parts::{MOST_HANDLE, TensorHandle, TensorHeader, View};

/// Name, function under test, and generator of valid inputs.
#[allow(unreachable_pub, reason = "`tools/fuzz` includes this file")]
pub const TARGETS: &[Target] = &[("handles", handles, seeds)];

fn handles(bytes: &[u8]) {
    let handle = match TensorHandle::read(bytes) {
        Ok(handle) => handle,
        // The reader formats each of these errors together with the message's bytes.
        Err(
            Error::Malformed(_) | Error::LimitExceeded(_) | Error::OutOfBounds(_) | Error::Unsupported(_),
        ) => return,
        Err(other) => panic!("an error not about the bytes: {other:?}"),
    };
    // The length follows from the flags, as documented in docs/reference/wire.md.
    let (flags, rank) = (bytes[0], usize::from(bytes[0] & 15));
    assert!(rank <= MAX_RANK && handle.view.shape().len() == rank, "{handle:?}");
    let numbers = 1 + rank * if flags & 0x40 == 0 { 1 } else { 2 };
    let width = if flags & 0x20 == 0 { 4 } else { 8 };
    let sized = if flags & 0x80 == 0 { 0 } else { 8 };
    assert_eq!(bytes.len(), 6 + numbers * width + sized, "{handle:?}");
    // A view is checked before its elements are accessed.
    for bytes in [0, 1, 4096, usize::MAX] {
        _ = handle.view.within(bytes);
    }
    _ = handle.dtype();
    let mut room = [0; MOST_HANDLE];
    let written = TensorHandle { header: handle.header, view: &*handle.view, storage: handle.storage };
    let again =
        TensorHandle::read(written.write(&mut room)).unwrap_or_else(|why| panic!("{why}: {handle:?}"));
    assert_eq!(format!("{again:?}"), format!("{handle:?}"));
}

fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let of = |offset, shape: &[usize], strides: &[isize], storage: Option<u64>| {
        let view = View::from_parts(offset, shape, strides, usize::MAX).unwrap();
        let header = TensorHeader::new(7, DType::F32.code(), storage.is_some());
        TensorHandle { header, view: &view, storage: storage.and_then(NonZero::new) }
            .write(&mut [0; MOST_HANDLE])
            .to_vec()
    };
    vec![
        ("row-major", of(0, &[3, 4], &[4, 1], None)),
        ("strided", of(5, &[2, 3], &[1, 2], None)),
        ("sized, with gradients", of(0, &[6], &[1], Some(1 << 20))),
        ("wide", of(1 << 40, &[2], &[1 << 33], None)),
        ("scalar", of(3, &[], &[], None)),
        ("of the largest rank", of(0, &[1; MAX_RANK], &[9; MAX_RANK], Some(4))),
    ]
}

fn seeds() -> Vec<Vec<u8>> {
    samples().into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn mutated_tensor_handles_parse_or_fail() {
    mp_harness::hostile::short(TARGETS);
}

#[test]
fn tensor_handle_bytes_match_golden_file() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/handles.txt");
    mp_harness::hostile::golden(file, "tensors' handles, wire version 6", &samples());
}
