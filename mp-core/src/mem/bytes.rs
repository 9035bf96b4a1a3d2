//! Byte access to memory that is only accessed as 64-bit words.
//!
//! A process that reads while another process writes gets a mixture of old and new bytes. The behavior is
//! never undefined, because all accesses are atomic and of one width. A write preserves the neighboring
//! bytes, including bytes of the same word that another process writes at the same time.

use crate::mem::{Mem, Word};

/// Copies bytes into `to`, from byte `at` of the words that begin at `base`. The caller has checked the
/// range.
pub fn read<M: Mem + ?Sized>(m: &M, base: Word, at: u64, to: &mut [u8]) {
    let mut at = at;
    let mut rest = to;
    while !rest.is_empty() {
        let skip = (at % 8) as usize;
        let n = rest.len().min(8 - skip);
        let word = m.load_relaxed(base.plus(at / 8)).to_ne_bytes();
        let (now, later) = rest.split_at_mut(n);
        match <&mut [u8; 8]>::try_from(&mut *now) {
            Ok(whole) => *whole = word,
            Err(_) => now.copy_from_slice(&word[skip..skip + n]),
        }
        (at, rest) = (at + n as u64, later);
    }
}

/// Copies `from` to position `at` of the words that begin at `base`. The caller has checked the range.
pub fn write<M: Mem + ?Sized>(m: &M, base: Word, at: u64, from: &[u8]) {
    let mut at = at;
    let mut rest = from;
    while !rest.is_empty() {
        let skip = (at % 8) as usize;
        let n = rest.len().min(8 - skip);
        let (now, later) = rest.split_at(n);
        let w = base.plus(at / 8);
        if let Ok(whole) = now.try_into() {
            m.store_relaxed(w, u64::from_ne_bytes(whole));
        } else {
            part(m, w, skip, now);
        }
        (at, rest) = (at + n as u64, later);
    }
}

/// Replaces the bytes of a word from byte `skip` on by `bytes`.
fn part<M: Mem + ?Sized>(m: &M, w: Word, skip: usize, bytes: &[u8]) {
    let mut seen = m.load_relaxed(w);
    loop {
        let mut word = seen.to_ne_bytes();
        word[skip..skip + bytes.len()].copy_from_slice(bytes);
        match m.cas(w, seen, u64::from_ne_bytes(word)) {
            Ok(()) => return,
            Err(now) => seen = now,
        }
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;
    use crate::mem::HeapMem;

    #[test]
    fn unaligned_bytes_round_trip_without_overflow() {
        let base = Word::at(8);
        for at in 0..17_u64 {
            for len in 0..20_usize {
                let m = HeapMem::new(8);
                write(&m, base, 0, &[0xee; 48]);
                let bytes: Vec<u8> = (1..=len as u8).collect();
                write(&m, base, at, &bytes);
                let mut all = [0; 48];
                read(&m, base, 0, &mut all);
                let mut expected = [0xee; 48];
                expected[at as usize..at as usize + len].copy_from_slice(&bytes);
                assert_eq!(all, expected, "{len} bytes at {at}");
                let mut back = vec![0; len];
                read(&m, base, at, &mut back);
                assert_eq!(back, bytes);
                assert_eq!((m.load(Word::at(0)), m.load(Word::at(56))), (0, 0));
            }
        }
    }
}
