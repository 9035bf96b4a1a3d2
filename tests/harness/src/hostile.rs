//! Bytes that no sender writes: what the real encoders make, changed at random. Each crate with a parser has targets, functions
//! that give it such bytes and say what has to hold; its unit tests try them for a moment ([`short`]), and `cargo xtask fuzz` for
//! as long as is wanted.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any};
use proptest::test_runner::TestRunner;

/// Its name; what it does with bytes, which panics where something is wrong; and what the real encoders make.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// Inputs have no more bytes.
pub const LONGEST: usize = 1 << 16;

/// The same numbers from the same seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next one.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// One below this, or 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.number() % end as u64) as usize }
    }

    /// A part of this many bytes, mostly a short one.
    fn part(&mut self, len: usize) -> std::ops::Range<usize> {
        let most = if self.below(4) == 0 { len } else { 16 };
        let start = self.below(len + 1);
        start..(start + self.below(most + 1)).min(len)
    }
}

/// Numbers at which lengths, counts and signs change.
const EDGES: [u64; 24] = [
    0,
    1,
    2,
    7,
    8,
    15,
    16,
    31,
    32,
    63,
    127,
    128,
    254,
    255,
    256,
    4095,
    4096,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// Bytes that mean something in the formats: MessagePack's lengths and its free byte, and the first of a number.
const BYTES: [u8; 20] = [
    0, 1, 2, 5, 0x7f, 0x80, 0x81, 0x90, 0x91, 0xa0, 0xc0, 0xc1, 0xc4, 0xc6, 0xcf, 0xdb, 0xdd, 0xdf, 0xfe,
    0xff,
];

/// One of these, changed in one to eight places.
pub fn changed(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = seeds.get(random.below(seeds.len())).cloned().unwrap_or_default();
    for _ in 0..=random.below(8) {
        change(&mut bytes, seeds, random);
        bytes.truncate(LONGEST);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let len = bytes.len();
    let at = random.below(len);
    match random.below(12) {
        0 if len > 0 => bytes[at] ^= 1 << random.below(8),
        1 if len > 0 => bytes[at] = BYTES[random.below(BYTES.len())],
        2 if len > 0 => bytes[at] = random.number() as u8,
        // A length: an edge, or what is there and a little more or less; in either order of bytes.
        3 | 4 if len > 0 => {
            let width = [1, 2, 4, 8][random.below(4)].min(len - at);
            let mut number = [0; 8];
            number[..width].copy_from_slice(&bytes[at..at + width]);
            let swap = random.below(3) == 0;
            if swap {
                number[..width].reverse();
            }
            let near = u64::from_le_bytes(number).wrapping_add(random.below(9) as u64).wrapping_sub(4);
            let new = match random.below(4) {
                0 => near,
                1 => (len - at) as u64,
                _ => EDGES[random.below(EDGES.len())],
            };
            let mut new = new.to_le_bytes();
            if swap {
                new[..width].reverse();
            }
            bytes[at..at + width].copy_from_slice(&new[..width]);
        }
        5 => bytes.truncate(at),
        6 => drop(bytes.drain(random.part(len))),
        7 => {
            let new: Vec<u8> = (0..1 + random.below(12)).map(|_| random.number() as u8).collect();
            bytes.splice(at..at, new);
        }
        // Again, mostly once, and sometimes so often that it is deep.
        8 | 9 => {
            let times = if random.below(4) == 0 { 1 + random.below(1000) } else { 1 };
            let part = random.part(len);
            let times = times.min(LONGEST / part.len().max(1));
            let again = bytes[part].repeat(times);
            bytes.splice(at..at, again);
        }
        10 => bytes.splice(at..at, [BYTES[random.below(BYTES.len())]]).for_each(drop),
        _ => {
            let other = &seeds[random.below(seeds.len())];
            bytes.truncate(at);
            bytes.extend_from_slice(&other[random.below(other.len())..]);
        }
    }
}

/// As text.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// From text, in which white space means nothing, and a line that begins with `#` is a comment.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let digits: Vec<u8> = lines.flat_map(str::bytes).filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(byte).collect())?
}

/// Where inputs are kept that once were findings: in `tools/fuzz/regressions`, a folder for each target.
pub fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/fuzz/regressions")
}

/// Those of one target.
///
/// # Panics
/// When a file there is no hex.
pub fn regressions(target: &str) -> Vec<Vec<u8>> {
    let Ok(folder) = std::fs::read_dir(kept().join(target)) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read =
        |path: &PathBuf| unhex(&std::fs::read_to_string(path).unwrap()).expect("a file with hex digits");
    paths.iter().map(read).collect()
}

/// How long one input may take, on a machine that is busy with something else.
const LONG: Duration = Duration::from_secs(60);
/// How long random changes of a target's seeds are tried, if there is time for fewer than [`CASES`].
const A_MOMENT: Duration = Duration::from_secs(5);
/// How many random changes are tried.
const CASES: u32 = 3000;

/// Prints the input if it is dropped in a panic.
struct Shown<'a>(&'a str, &'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("target `{}`, {} bytes: {}", self.0, self.1.len(), hex(self.1));
        }
    }
}

/// Ends this process when an input takes too long: no panic ends a loop. It gets the inputs that begin.
fn watched(name: &'static str) -> Sender<Vec<u8>> {
    let (begun, begins) = channel::<Vec<u8>>();
    std::thread::spawn(move || {
        let mut last = Vec::new();
        loop {
            match begins.recv_timeout(LONG) {
                Ok(bytes) => last = bytes,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!("target `{name}` takes more than {LONG:?} for {}", hex(&last));
                    std::process::abort();
                }
            }
        }
    });
    begun
}

/// Each of a crate's targets for a moment: its seeds, each of them cut at each place, what once was a finding, and random changes.
///
/// # Panics
/// When one finds something.
pub fn short(targets: &[Target]) {
    for &(name, run, seeds) in targets {
        let (seeds, watched) = (seeds(), watched(name));
        let run = |bytes: &[u8]| {
            _ = watched.send(bytes.to_vec());
            let _shown = Shown(name, bytes);
            run(bytes);
        };
        assert!(!seeds.is_empty(), "{name}");
        regressions(name).iter().chain(&seeds).for_each(|bytes| run(bytes));
        for seed in &seeds {
            (0..seed.len()).take(500).for_each(|end| run(&seed[..end]));
        }
        // The input is printed; shrinking its seed would lead nowhere.
        let config = ProptestConfig {
            cases: CASES,
            max_shrink_iters: 0,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let (began, tried) = (Instant::now(), Cell::new(0));
        let ended =
            TestRunner::new(config).run(&(any::<u64>(), vec(any::<u8>(), 0..200)), |(seed, bytes)| {
                if began.elapsed() < A_MOMENT {
                    run(&changed(&seeds, &mut Random(seed)));
                    run(&bytes);
                    tried.set(tried.get() + 1);
                }
                Ok(())
            });
        ended.unwrap_or_else(|why| panic!("{name}: {why}"));
        println!("{name}: {} random changes of {} seeds", tried.get(), seeds.len());
    }
}

/// That these bytes, by their names, are what a file says, and all that it says. Its first line says the versions that another form
/// of the bytes has to change. With `GOLDEN` in the environment it is written anew.
///
/// # Panics
/// When they are not.
pub fn golden(file: &str, head: &str, samples: &[(&str, Vec<u8>)]) {
    let line = |(name, bytes): &(&str, Vec<u8>)| format!("{name}: {}\n", hex(bytes));
    let found = format!("{head}\n{}", samples.iter().map(line).collect::<String>());
    if std::env::var_os("GOLDEN").is_some() {
        return std::fs::write(file, found).unwrap();
    }
    let expected = std::fs::read_to_string(file).unwrap_or_else(|why| panic!("{file}: {why}"));
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(
            found, expected,
            "{file}: other bytes need another version, docs/reference/wire.md, and this file anew"
        );
    }
    assert_eq!(found, expected, "{file}");
}
