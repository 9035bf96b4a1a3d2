//! Address at which a legacy handle of a small allocation opens: the allocation, or the block that contains
//! it.

use crate::gpu::{Gpu, Outcome, ProbeError};
use crate::helper::{self, Helper, tell};

const BYTES: usize = 1000;
const WORDS: usize = 250;

pub(crate) fn ask() -> Outcome {
    let gpu = Gpu::start()?;
    let mut other = Helper::start("small_handles", &[])?;
    other.hear()?;
    let stream = gpu.stream()?;
    for value in [0x1111_1111, 0x2222_2222, 0x3333_3333] {
        let at = gpu.alloc(BYTES)?;
        gpu.set_words(at, value, WORDS, stream)?;
        gpu.sync(stream)?;
        let (base, size) = gpu.address_range(at)?;
        let handle = gpu.memory_handle(at)?;
        println!(
            "here  {at:#x}, in its 2 MiB {:#x}, of {value:#x}; its range {base:#x}, {size} bytes",
            at % (2 << 20)
        );
        match gpu.open_memory(handle) {
            Ok(at) => println!("      its own handle opened here: at {at:#x}"),
            Err(ProbeError(why)) => println!("      its own handle opened here: {why}"),
        }
        println!("there {}", other.ask(&helper::text(handle))?);
    }
    other.close()
}

/// Opens handles, and prints the contents. None is closed before the end.
pub(crate) fn help(_: &[String]) -> Outcome {
    let gpu = Gpu::start()?;
    tell("ready")?;
    while let Ok(line) = helper::heard() {
        match open(&gpu, &line) {
            Ok(text) => tell(&text)?,
            Err(ProbeError(why)) => tell(&why)?,
        }
    }
    Ok(())
}

fn open(gpu: &Gpu, line: &str) -> Outcome<String> {
    let at = gpu.open_memory(helper::handle(line)?)?;
    let mut words = [0_u32; 4];
    gpu.to_host(&mut words, at)?;
    let (base, size) = gpu.address_range(at)?;
    Ok(format!(
        "{at:#x}, in its 2 MiB {:#x}, words there {words:x?}; its range {base:#x}, {size} bytes",
        at % (2 << 20)
    ))
}
