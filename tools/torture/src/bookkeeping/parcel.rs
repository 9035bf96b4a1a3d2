//! Messages with numbers, bytes and tensors of all sizes. The contents are computed from the number of the
//! message, so the receiver can check them.

use mp::{FrozenTensor, Message, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::random::{Random, mix};

/// Message that may be delivered several times, to one worker after another.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) number: u64,
    /// Mark of the worker that sent the message.
    pub(crate) from: u64,
    bytes: Vec<u8>,
    tensors: Vec<FrozenTensor<u64>>,
    /// Tensor that is shared by thousands of messages.
    common: Option<FrozenTensor<u64>>,
    /// Pause in the encoding and decoding. This is the last field, so during the pause the process holds all
    /// memory of the message.
    pause: Pause,
}

/// Value whose encoding and decoding yield the processor if the flag is `true`. So signals often reach the
/// process during encoding or decoding. Without the pause this would hardly ever happen.
#[derive(Clone, Copy)]
struct Pause(bool);

impl Serialize for Pause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 {
            std::thread::yield_now();
        }
        self.0.serialize(serializer)
    }
}

impl<'a> Deserialize<'a> for Pause {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        let pause = bool::deserialize(deserializer)?;
        if pause {
            std::thread::yield_now();
        }
        Ok(Self(pause))
    }
}

/// Message with an exclusive tensor, which moves with the message.
#[derive(Message)]
pub(crate) struct Parcel {
    pub(crate) job: Job,
    own: Tensor<u64>,
}

/// Value of the elements of the shared tensor.
pub(crate) const COMMON: u64 = 77;

fn elements(number: u64, i: u64, random: &mut Random) -> mp::AnyResult<Tensor<u64>> {
    let len = match random.below(1000) {
        0..2 => 400_000,
        2..20 => 70_000,
        20..200 => 1 + random.below(3000),
        _ => random.below(40),
    };
    Ok(Tensor::full([len as usize], mix(number ^ i << 48))?)
}

fn check_elements(number: u64, i: u64, elements: &[u64]) -> mp::AnyResult<()> {
    let expected = mix(number ^ i << 48);
    match elements.iter().position(|&e| e != expected) {
        None => Ok(()),
        Some(at) => {
            let (found, len) = (elements[at], elements.len());
            Err(format!(
                "torn: element {at} of {len} of tensor {i} of message {number} is {found:#x} instead of \
                 {expected:#x}"
            )
            .into())
        }
    }
}

impl Job {
    pub(crate) fn new(
        number: u64,
        from: u64,
        common: &FrozenTensor<u64>,
        random: &mut Random,
    ) -> mp::AnyResult<Self> {
        let bytes = match random.below(100) {
            0..3 => 1000 + random.below(9000),
            _ => random.below(120),
        };
        let count = match random.below(100) {
            0..60 => 0,
            60..98 => 1 + random.below(3),
            // More attachments than the list of an envelope can hold.
            _ => 40,
        };
        let tensors: mp::AnyResult<Vec<_>> =
            (0..count).map(|i| Ok(elements(number, i + 1, random)?.freeze())).collect();
        Ok(Self {
            number,
            from,
            bytes: vec![mix(number) as u8; bytes as usize],
            tensors: tensors?,
            common: random.percent(20).then(|| common.clone()),
            pause: Pause(random.percent(1)),
        })
    }

    pub(crate) fn check(&self) -> mp::AnyResult<()> {
        let number = self.number;
        if self.bytes.iter().any(|&b| b != mix(number) as u8) {
            return Err(format!("torn: bytes of message {number}").into());
        }
        for (i, tensor) in self.tensors.iter().enumerate() {
            check_elements(number, i as u64 + 1, tensor.as_slice()?)?;
        }
        match &self.common {
            Some(t) if t.iter().any(|v| v != COMMON) => {
                Err(format!("torn: the tensor that all have, in message {number}").into())
            }
            _ => Ok(()),
        }
    }
}

impl Parcel {
    pub(crate) fn new(
        number: u64,
        from: u64,
        common: &FrozenTensor<u64>,
        random: &mut Random,
    ) -> mp::AnyResult<Self> {
        Self::answer(Job::new(number, from, common, random)?, random)
    }

    /// Creates a message that contains this job, and in some cases an exclusive tensor.
    pub(crate) fn answer(job: Job, random: &mut Random) -> mp::AnyResult<Self> {
        let own = if random.percent(30) { elements(job.number, 0, random)? } else { Tensor::zeros([0])? };
        Ok(Self { job, own })
    }

    pub(crate) fn check(&self) -> mp::AnyResult<()> {
        check_elements(self.job.number, 0, self.own.as_slice()?)?;
        self.job.check()
    }
}
