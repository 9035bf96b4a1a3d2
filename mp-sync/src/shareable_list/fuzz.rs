//! Fuzz target for the memory layout of lists.

use mp_core::mem::{HeapMem, Mem, Word};

use super::slots::{ListSlots, find, lay_out, room, room_in, size};
use super::{ListError, ListItem};

/// Fuzz targets: for each, a name, the function under test, and a function that creates valid inputs.
#[allow(
    clippy::type_complexity,
    reason = "the type of the test harness, which this crate can name in tests only"
)]
pub const TARGETS: &[(&str, fn(&[u8]), fn() -> Vec<Vec<u8>>)] = &[("lists", lists, seeds)];

fn lists(bytes: &[u8]) {
    let words = bytes.as_chunks().0;
    let mem = HeapMem::new(words.len());
    words.iter().zip(0..).for_each(|(word, at)| mem.store(Word::at(8 * at), u64::from_le_bytes(*word)));
    let base = Word::at(0);
    let ends = match find(&mem, base, 8 * words.len() as u64) {
        Ok(ends) => ends,
        Err(ListError::Malformed(_)) => return,
        Err(other) => panic!("an error not about the bytes: {other:?}"),
    };
    let slots = ListSlots { mem: &mem, base, ends: &ends };
    let all = || (0..slots.len()).map(|slot| slots.get(slot)).collect::<Vec<_>>();
    let before = all();
    for (slot, item) in before.iter().enumerate() {
        match item {
            // Writing an item back leaves all items unchanged.
            Ok(item) => {
                slots.set(slot, item).unwrap_or_else(|why| panic!("{why}: {item:?}"));
                assert_eq!(format!("{:?}", all()), format!("{before:?}"));
            }
            Err(ListError::Malformed(_) | ListError::Torn { .. } | ListError::NotText { .. }) => {}
            Err(other) => panic!("an error not about the bytes: {other:?}"),
        }
        assert!(room_in(&ends, slot).unwrap() <= bytes.len() as u64);
    }
}

fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let of = |items: &[ListItem]| {
        let rooms: Vec<u64> = items.iter().map(|item| room(item, 0)).collect();
        let (len, base) = (size(&rooms).div_ceil(8), Word::at(0));
        let mem = HeapMem::new(len as usize);
        let ends = lay_out(&mem, base, &rooms);
        let slots = ListSlots { mem: &mem, base, ends: &ends };
        items.iter().enumerate().for_each(|(slot, item)| slots.set(slot, item).unwrap());
        (0..len).flat_map(|at| mem.load(Word::at(8 * at)).to_le_bytes()).collect()
    };
    let kinds = [ListItem::None, true.into(), (-7_i64).into(), ListItem::Float(0.5), "text".into()];
    vec![
        ("one of each kind", of(&kinds)),
        (
            "bytes that end in NUL, and long text",
            of(&[ListItem::Bytes(vec![1, 0, 0]), "t".repeat(40).into()]),
        ),
        ("nothing", of(&[])),
    ]
}

/// Returns the samples, and one input that no encoder writes: a text longer than its slot.
fn seeds() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = samples().into_iter().map(|(_, bytes)| bytes).collect();
    let mut longer = all[1].clone();
    if let Some(at) = longer.windows(3).position(|format| format == b"48s") {
        longer[at..at + 3].copy_from_slice(b"49s");
    }
    all.push(longer);
    all
}

#[cfg(test)]
mod tests {
    #[test]
    fn mutated_shareable_lists_parse_or_fail() {
        mp_harness::hostile::short(super::TARGETS);
    }

    #[test]
    fn shareable_list_bytes_match_golden_file() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/shareable_list/golden.txt");
        mp_harness::hostile::golden(file, "ShareableList, as CPython 3.11 has it", &super::samples());
    }
}
