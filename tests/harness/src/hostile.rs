//! Malformed input: output of the real encoders with random changes. Each crate with a parser has targets:
//! functions that parse such bytes and check properties. Unit tests run the targets for a few seconds
//! ([`short`]), and `cargo xtask fuzz` runs them for a given time.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any};
use proptest::test_runner::TestRunner;

/// Name of the target, function that parses bytes and panics if it finds a fault, and output of real
/// encoders.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// Maximum length of an input in bytes.
pub const LONGEST: usize = 1 << 16;

/// Random numbers that depend on the seed only (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.number() % end as u64) as usize }
    }

    /// Returns a random range within `len` bytes. Short ranges are more frequent than long ones.
    fn part(&mut self, len: usize) -> std::ops::Range<usize> {
        let most = if self.below(4) == 0 { len } else { 16 };
        let start = self.below(len + 1);
        start..(start + self.below(most + 1)).min(len)
    }
}

/// Boundary values of lengths, counts and signs.
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

/// Bytes with a meaning in MessagePack (types and lengths, and the unused byte 0xc1), and edge values.
const BYTES: [u8; 20] = [
    0, 1, 2, 5, 0x7f, 0x80, 0x81, 0x90, 0x91, 0xa0, 0xc0, 0xc1, 0xc4, 0xc6, 0xcf, 0xdb, 0xdd, 0xdf, 0xfe,
    0xff,
];

/// Returns a random seed with one to eight changes.
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
        // Changes a length to an edge, or to a number close to the existing value, in either byte order.
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
        // Repeats a part, mostly once, sometimes often enough for deep nesting.
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

/// Encodes bytes as hexadecimal text.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes hexadecimal text. White space, and lines that begin with `#`, are ignored.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let digits: Vec<u8> = lines.flat_map(str::bytes).filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(byte).collect())?
}

/// Returns the folder of inputs that once caused a finding: `tools/fuzz/regressions`, with a folder for each
/// target.
pub fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/fuzz/regressions")
}

/// Returns the stored inputs of one target.
///
/// # Panics
/// If a file with an input isn't hexadecimal.
pub fn regressions(target: &str) -> Vec<Vec<u8>> {
    let Ok(folder) = std::fs::read_dir(kept().join(target)) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read =
        |path: &PathBuf| unhex(&std::fs::read_to_string(path).unwrap()).expect("a file with hex digits");
    paths.iter().map(read).collect()
}

/// Time limit for one input, on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// Maximum duration of the random changes for one target. On a slow machine, fewer than [`CASES`] inputs are
/// tried.
const A_MOMENT: Duration = Duration::from_secs(5);
/// Number of randomly changed inputs for each target.
const CASES: u32 = 3000;

/// Name of a target and its current input. The drop prints both if the target has panicked.
struct Shown<'a>(&'a str, &'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("target `{}`, {} bytes: {}", self.0, self.1.len(), hex(self.1));
        }
    }
}

/// Starts a thread that ends this process if parsing an input takes too long, because a panic can't end a
/// loop. The caller sends each input to the returned sender before it parses the input.
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

/// Runs each target for a few seconds: with its seeds, with each seed truncated at each position, with
/// earlier findings, and with random changes.
///
/// # Panics
/// If a target finds a fault.
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
        // The failed input is printed, so shrinking its seed would not help.
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

/// Checks that `samples`, bytes with names, equal the contents of a file. The first line of the file names
/// the versions that must change with the format. If `GOLDEN` is set in the environment, the file is written.
///
/// # Panics
/// If the bytes and the file differ.
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
