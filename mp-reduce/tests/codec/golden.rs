//! Golden file for the bytes of messages. A change that alters these bytes must also change the version of
//! the wire, docs/reference/wire.md and `golden.txt`.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::Arc;

use mp_core::message::Outgoing;
use mp_reduce::{Bundle, Message, MessagePack};
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::buffers::Blob;
use super::parts::Mentions;

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Unit;

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Point {
    x: i32,
    y: Option<f64>,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
enum Shape {
    None,
    Circle(Point),
    Line(i8, i8),
    Box { from: u8, to: u8 },
}

/// Text of the golden file: for each message its name, its bytes and its number of attachments. Each added
/// message is also decoded and compared.
#[derive(Default)]
struct Book(String);

impl Book {
    fn add<T: Message + Clone + PartialEq + Debug>(&mut self, name: &str, value: T) {
        let mut out = Outgoing::default();
        value.clone().encode::<MessagePack>(&mut out).unwrap();
        let mut inc = self.note(name, out);
        assert_eq!(T::decode::<MessagePack>(&mut inc).unwrap(), value, "{name}");
    }

    fn note(&mut self, name: &str, mut out: Outgoing) -> mp_core::message::Incoming {
        write!(self.0, "{name}:").unwrap();
        let bytes = out.bytes();
        let shown = bytes.len().min(64);
        bytes[..shown].iter().for_each(|byte| write!(self.0, " {byte:02x}").unwrap());
        if bytes.len() > shown {
            write!(self.0, " … {} bytes", bytes.len()).unwrap();
        }
        let inc = out.into_incoming();
        match inc.blocks().count() {
            0 => {}
            n => write!(self.0, " +{n}").unwrap(),
        }
        self.0.push('\n');
        inc
    }
}

#[test]
fn message_encoding_matches_the_golden_file() {
    let mut book = Book::default();
    book.add("u64 small", 7_u64);
    book.add("u64 large", u64::MAX);
    book.add("i64", -1_000_000_i64);
    book.add("f32", 0.5_f32);
    book.add("u128", 1_u128 << 100);
    book.add("bool", true);
    book.add("char", 'ä');
    book.add("nothing", ((), None::<u8>, Some(None::<u8>), Some(()), Some(Some(())), Unit));
    book.add("text", "text".to_owned());
    book.add("text of 300", "t".repeat(300));
    book.add("bytes", Blob(vec![1, 2, 3]));
    book.add("struct", Point { x: -3, y: Some(0.25) });
    let line = Shape::Line(1, -1);
    book.add(
        "variants",
        vec![Shape::None, Shape::Circle(Point { x: 1, y: None }), line, Shape::Box { from: 1, to: 2 }],
    );
    book.add("map", BTreeMap::from([(1_u16, "one".to_owned()), (300, "many".to_owned())]));
    book.add("bundle", Bundle((7_u8, "text".to_owned())));
    book.add("few numbers", vec![1_u32, 70_000]);
    book.add("row of u8", vec![7_u8; 256]);
    book.add("row of u16", vec![0x0102_u16; 128]);
    book.add("row of u32", vec![0x0102_0304_u32; 64]);
    book.add("row of u64", vec![1_u64; 32]);
    book.add("row of usize", vec![1_usize; 32]);
    book.add("row of u128", vec![1_u128; 16]);
    book.add("row of i8", vec![-1_i8; 256]);
    book.add("row of i16", vec![-2_i16; 128]);
    book.add("row of i32", vec![-2_i32; 64]);
    book.add("row of i64", vec![-2_i64; 32]);
    book.add("row of i128", vec![-2_i128; 16]);
    book.add("row of f32", vec![0.5_f32; 64]);
    book.add("row of f64", Some(vec![0.5_f64; 32]));
    book.add("attached row of f32", Some(vec![0.5_f32; 5000]));
    book.add("attached text", "t".repeat(20_000));
    book.add("attached bytes", Blob(vec![7; 20_000]));
    book.add("attached rows", (vec![vec![1_u8; 20_000]; 2], vec![2_i64; 3000], 7_u8));
    let five = Arc::new(5_u8);
    book.add("shared parts", Mentions(vec![five.clone(), Arc::new(6), five]));
    let tensor = Tensor::<f32>::zeros([3, 4]).unwrap().freeze();
    let mut out = Outgoing::default();
    (tensor.clone(), tensor.t().unwrap()).encode::<MessagePack>(&mut out).unwrap();
    book.note("two views of a tensor", out);
    let expected = include_str!("golden.txt");
    if std::env::var_os("GOLDEN").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/codec/golden.txt"), &book.0).unwrap();
        return;
    }
    for (found, expected) in book.0.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(book.0, expected);
}
