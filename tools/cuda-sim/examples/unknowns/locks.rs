//! Calls of a thread that block while another thread of its process waits in a call for all work of the
//! device.

use std::time::{Duration, Instant};

use crate::barrier_calls::{CALLS, Call};
use crate::barriers::{Bench, PIECE};
use crate::gpu::{Gpu, Outcome, ProbeError};
use crate::helper::{ms, us};

const KERNEL_MS: u64 = 40;
/// Time until the other thread is in its call.
const BEFORE: Duration = Duration::from_millis(8);

pub(crate) fn ask() -> Outcome {
    let (mut bench, _maker) = Bench::start()?;
    println!(
        "a kernel of {KERNEL_MS} ms on A; a thread in cuMemFree; {} ms later the call:",
        BEFORE.as_millis()
    );
    bench.locks(&CALLS[0])?;
    for call in CALLS {
        let said = bench.locks(call).unwrap_or_else(|ProbeError(why)| why);
        println!("{:<54} | {said}", call.name);
    }
    Ok(())
}

impl Bench {
    fn locks(&mut self, call: &Call) -> Outcome<String> {
        (call.before)(self)?;
        let memory = self.gpu.alloc(PIECE)?;
        self.gpu.sync(self.b)?;
        self.gpu.spin(self.a, KERNEL_MS)?;
        let other = std::thread::spawn(move || {
            let gpu = Gpu::of_this_thread()?;
            let begin = Instant::now();
            gpu.free(memory).map(|()| begin.elapsed())
        });
        std::thread::sleep(BEFORE);
        let begin = Instant::now();
        let called = (call.call)(self);
        let time = begin.elapsed();
        let waited = other.join().map_err(|_| ProbeError("the thread panicked".to_owned()))??;
        self.gpu.sync(self.a)?;
        self.gpu.sync(self.stream.unwrap_or(self.b))?;
        (call.after)(self)?;
        called?;
        let held = if time > Duration::from_millis(KERNEL_MS / 2) { "WAITS" } else { "goes on" };
        Ok(format!("{:>10.1} us  {held:<8} (cuMemFree: {:.1} ms)", us(time), ms(waited)))
    }
}
