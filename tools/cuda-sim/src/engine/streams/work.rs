//! Work of a device: copies, and the kernels that the simulator implements. Work runs in pieces, so that the
//! work of different streams interleaves. The accesses of work are known before the work begins.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Number of bytes in one piece of work.
const PIECE: u64 = 64 << 10;

/// Memory that the work of a stream accesses.
pub(crate) trait AddressSpace {
    /// Reads memory. An error ends the context.
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Fault>;
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault>;
    /// Reads registered memory at the host's address.
    fn read_host(&self, address: u64, to: &mut [u8]) -> Result<(), Fault>;
    fn write_host(&self, address: u64, from: &[u8]) -> Result<(), Fault>;
}

/// Error of an access to memory.
#[derive(Debug)]
pub(crate) struct Fault;

/// Source of a copy.
#[derive(Clone, Debug)]
pub(crate) enum CopySource {
    Device(u64),
    Bytes(Rc<Vec<u8>>),
    Host(u64),
}

/// Destination of a copy.
#[derive(Clone, Debug)]
pub(crate) enum CopyTarget {
    Device(u64),
    Answer(Rc<RefCell<Vec<u8>>>),
    Host(u64),
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    Copy { from: CopySource, to: CopyTarget, bytes: u64 },
    Set { to: u64, pattern: Vec<u8>, count: u64 },
    Add { to: u64, a: u64, b: u64, n: u64 },
    Multiply { to: u64, a: u64, n: u64, factor: f32 },
    Sum { to: u64, a: u64, n: u64 },
    Strided { to: u64, from: u64, rows: u64, columns: u64, row_stride: u64, column_stride: u64 },
    Spin { time: Duration },
    Check { to: u64, from: u64, n: u64, expected: u64 },
}

/// Progress of work.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Number of bytes or elements that have been processed.
    done: u64,
    sum: f32,
    wrong: u64,
    until: Option<Instant>,
}

/// Range that work reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) writes: bool,
}

/// Names of the kernels, and sizes of their parameters in bytes.
pub(crate) const KERNELS: &[(&str, &[u32])] = &[
    ("fill_f32", &[8, 8, 4]),
    ("add_f32", &[8, 8, 8, 8]),
    ("mul_f32", &[8, 8, 8, 4]),
    ("sum_f32", &[8, 8, 8]),
    ("copy_strided", &[8, 8, 8, 8, 8, 8]),
    ("spin_ns", &[8]),
    ("check_u64", &[8, 8, 8, 8]),
];

/// Returns the work of a kernel launch. Returns `None` for an unknown name or invalid arguments.
pub(crate) fn kernel(name: &str, arguments: &[Vec<u8>]) -> Option<Work> {
    let long = |i: usize| Some(u64::from_le_bytes(arguments.get(i)?.as_slice().try_into().ok()?));
    let float = |i: usize| Some(f32::from_le_bytes(arguments.get(i)?.as_slice().try_into().ok()?));
    let (_, sizes) = KERNELS.iter().find(|(known, _)| *known == name)?;
    if arguments.len() != sizes.len() {
        return None;
    }
    Some(match name {
        "fill_f32" => Work::Set { to: long(0)?, count: long(1)?, pattern: float(2)?.to_le_bytes().to_vec() },
        "add_f32" => Work::Add { to: long(0)?, a: long(1)?, b: long(2)?, n: long(3)? },
        "mul_f32" => Work::Multiply { to: long(0)?, a: long(1)?, n: long(2)?, factor: float(3)? },
        "sum_f32" => Work::Sum { to: long(0)?, a: long(1)?, n: long(2)? },
        "copy_strided" => Work::Strided {
            to: long(0)?,
            from: long(1)?,
            rows: long(2)?,
            columns: long(3)?,
            row_stride: long(4)?,
            column_stride: long(5)?,
        },
        "spin_ns" => Work::Spin { time: Duration::from_nanos(long(0)?) },
        "check_u64" => Work::Check { to: long(0)?, from: long(1)?, n: long(2)?, expected: long(3)? },
        _ => return None,
    })
}

impl Work {
    /// Returns all reads and writes of the work.
    pub(crate) fn accesses(&self) -> Vec<Access> {
        let read = |address, bytes| Access { address, bytes, writes: false };
        let write = |address, bytes| Access { address, bytes, writes: true };
        let mut all = match self {
            Self::Copy { from, to, bytes } => {
                let mut all = Vec::new();
                if let CopySource::Device(from) = from {
                    all.push(read(*from, *bytes));
                }
                if let CopyTarget::Device(to) = to {
                    all.push(write(*to, *bytes));
                }
                all
            }
            Self::Set { to, pattern, count } => vec![write(*to, count.saturating_mul(pattern.len() as u64))],
            Self::Add { to, a, b, n } => {
                let bytes = n.saturating_mul(4);
                vec![read(*a, bytes), read(*b, bytes), write(*to, bytes)]
            }
            Self::Multiply { to, a, n, .. } => {
                vec![read(*a, n.saturating_mul(4)), write(*to, n.saturating_mul(4))]
            }
            Self::Sum { to, a, n } => vec![read(*a, n.saturating_mul(4)), write(*to, 4)],
            Self::Strided { to, from, rows, columns, row_stride, column_stride } => {
                let mut all = Vec::new();
                for row in 0..*rows {
                    let start = from.wrapping_add(row.wrapping_mul(*row_stride).wrapping_mul(4));
                    match column_stride {
                        1 => all.push(read(start, columns.saturating_mul(4))),
                        stride => all.extend((0..*columns).map(|column| {
                            read(start.wrapping_add(column.wrapping_mul(*stride).wrapping_mul(4)), 4)
                        })),
                    }
                }
                all.push(write(*to, rows.saturating_mul(*columns).saturating_mul(4)));
                all
            }
            Self::Spin { .. } => Vec::new(),
            Self::Check { to, from, n, .. } => vec![read(*from, n.saturating_mul(8)), write(*to, 8)],
        };
        all.retain(|access| access.bytes > 0);
        all
    }

    /// Runs one piece of the work. Returns `true` after the last piece.
    pub(crate) fn step(&self, progress: &mut Progress, memory: &dyn AddressSpace) -> Result<bool, Fault> {
        let done = progress.done;
        let end = |all: u64, unit: u64| all.min(done + PIECE / unit);
        let floats = |address: u64, from: u64, to: u64| -> Result<Vec<f32>, Fault> {
            let mut bytes = vec![0; buffer((to - from) * 4)];
            memory.read(address + from * 4, &mut bytes)?;
            Ok(bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect())
        };
        let store = |address: u64, from: u64, values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            memory.write(address + from * 4, &bytes)
        };
        let (now, all) = match self {
            Self::Copy { from, to, bytes } => {
                let now = end(*bytes, 1);
                let mut piece = vec![0; buffer(now - done)];
                match from {
                    CopySource::Device(from) => memory.read(from + done, &mut piece)?,
                    CopySource::Host(from) => memory.read_host(from + done, &mut piece)?,
                    CopySource::Bytes(bytes) => piece.copy_from_slice(&bytes[buffer(done)..buffer(now)]),
                }
                match to {
                    CopyTarget::Device(to) => memory.write(to + done, &piece)?,
                    CopyTarget::Host(to) => memory.write_host(to + done, &piece)?,
                    CopyTarget::Answer(answer) => answer.borrow_mut().extend_from_slice(&piece),
                }
                (now, *bytes)
            }
            Self::Set { to, pattern, count } => {
                let unit = pattern.len() as u64;
                let now = end(*count, unit);
                memory.write(to + done * unit, &pattern.repeat(buffer(now - done)))?;
                (now, *count)
            }
            Self::Add { to, a, b, n } => {
                let now = end(*n, 4);
                let (a, b) = (floats(*a, done, now)?, floats(*b, done, now)?);
                store(*to, done, &a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<_>>())?;
                (now, *n)
            }
            Self::Multiply { to, a, n, factor } => {
                let now = end(*n, 4);
                let values: Vec<f32> = floats(*a, done, now)?.iter().map(|a| a * factor).collect();
                store(*to, done, &values)?;
                (now, *n)
            }
            Self::Sum { to, a, n } => {
                let now = end(*n, 4);
                progress.sum = floats(*a, done, now)?.iter().fold(progress.sum, |sum, value| sum + value);
                if now == *n {
                    store(*to, 0, &[progress.sum])?;
                }
                (now, *n)
            }
            Self::Strided { to, from, rows, columns, row_stride, column_stride } => {
                if done < *rows {
                    let element = |column: u64| {
                        floats(
                            *from,
                            done * row_stride + column * column_stride,
                            done * row_stride + column * column_stride + 1,
                        )
                    };
                    let row: Vec<f32> =
                        (0..*columns).map(|c| Ok(element(c)?[0])).collect::<Result<_, Fault>>()?;
                    store(*to, done * columns, &row)?;
                }
                (done + 1, *rows)
            }
            Self::Spin { time } => {
                let until = *progress.until.get_or_insert_with(|| Instant::now() + *time);
                return Ok(Instant::now() >= until);
            }
            Self::Check { to, from, n, expected } => {
                let now = end(*n, 8);
                let mut bytes = vec![0; buffer((now - done) * 8)];
                memory.read(from + done * 8, &mut bytes)?;
                let words = bytes.as_chunks::<8>().0.iter();
                progress.wrong += words.filter(|word| u64::from_le_bytes(**word) != *expected).count() as u64;
                if now == *n {
                    memory.write(*to, &progress.wrong.to_le_bytes())?;
                }
                (now, *n)
            }
        };
        progress.done = now;
        Ok(now >= all)
    }

    /// Returns `false` while the work only waits for time to pass.
    pub(crate) fn is_ready(&self, progress: &Progress) -> bool {
        !matches!(self, Self::Spin { .. }) || progress.until.is_none_or(|until| Instant::now() >= until)
    }
}

/// Converts a number of bytes to a length. The bytes are in memory, so the number fits into the address
/// space.
fn buffer(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
