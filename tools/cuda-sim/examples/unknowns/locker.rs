//! Lifetime of memory whose maker was killed, while only another process's duplicate of its descriptor
//! exists.

use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::gpu::{Gpu, Outcome};
use crate::helper::{self, Helper, ms, number, tell, timed};
use crate::host;

const VALUE: f32 = 1.5;

pub(crate) fn ask() -> Outcome {
    let (mine, theirs) = host::pair()?;
    let mut maker = Helper::start("locker", &["make".to_owned(), theirs.to_string()])?;
    let bytes = maker.hear()?;
    let file = host::receive(mine)?;
    println!(
        "made, filled, exported: {bytes} bytes; the maker killed, and gone after {:.1} ms",
        ms(maker.kill()?)
    );
    // This process has no context, and has the only descriptor.
    std::thread::sleep(Duration::from_secs(2));
    let mut taker = Helper::start("locker", &["take".to_owned(), file.as_raw_fd().to_string(), bytes])?;
    for _ in 0..5 {
        println!("{}", taker.hear()?);
    }
    taker.say("close")?;
    drop(file);
    println!("{}", taker.hear()?);
    taker.close()
}

pub(crate) fn help(arguments: &[String]) -> Outcome {
    let gpu = Gpu::start()?;
    let file = number(arguments, 1)?;
    if arguments.first().is_some_and(|part| part == "make") {
        let bytes = if gpu.simulated { 4 << 20 } else { 512 << 20 };
        let handle = gpu.create(bytes)?;
        let (at, stream) = (gpu.mapped(handle, bytes)?, gpu.stream()?);
        gpu.fill(stream, at, bytes as u64 / 4, VALUE)?;
        gpu.sync(stream)?;
        let exported = gpu.export(handle)?;
        host::send(file, &exported)?;
        drop(exported);
        tell(&bytes.to_string())?;
        return helper::heard().map(drop);
    }
    let bytes: usize = number(arguments, 2)?;
    let free = gpu.free_bytes()?;
    let handle = gpu.import(file)?;
    tell(&format!("first import: done; the descriptor is open after it: {}", host::is_open(file)))?;
    let at = gpu.mapped(handle, bytes)?;
    let (time, wrong) = timed(|| compare(&gpu, at, bytes))?;
    tell(&format!("  of {} words {wrong} differ (copied back in {:.1} ms)", bytes / 4, ms(time)))?;
    match gpu.import(file) {
        Ok(second) => {
            let again = gpu.mapped(second, bytes)?;
            tell(&format!("second import: done; another handle: {}", second != handle))?;
            tell(&format!("  of its words {} differ", compare(&gpu, again, bytes)?))?;
        }
        Err(why) => {
            tell(&format!("second import: {}", why.0))?;
            tell("  no second mapping")?;
        }
    }
    let taken = free.saturating_sub(gpu.free_bytes()?);
    tell(&format!("  free memory is less by {taken} bytes than before the imports"))?;
    helper::heard()?;
    tell("the last descriptor of another process closed")
}

/// Returns the number of words that differ from the fill value.
fn compare(gpu: &Gpu, at: u64, bytes: usize) -> Outcome<usize> {
    let mut words = vec![0_u32; bytes / 4];
    gpu.to_host(&mut words, at)?;
    Ok(words.iter().filter(|word| **word != VALUE.to_bits()).count())
}
