//! Reports of batches that do not arrive.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use mp_core::waits::{on_report, report_hangs_after};
use mp_data::{AnyResult, Context, DataLoader, Dataset, Item, WorkerInfo};
use mp_tensor::Tensor;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::common::eventually;
use crate::common::{DEADLINE, Fault, Samples, builder, builder_of, next, signal, threads_are};

// fork: no test of this program forks.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn said(what: &str) -> Option<String> {
    let said = SAID.lock().unwrap();
    said.iter().find(|text| text.contains(what)).cloned()
}

/// Returns the duration of the wait in a report.
fn waited(text: &str) -> Duration {
    let time = text.lines().next().unwrap().rsplit(' ').next().unwrap();
    let number = |unit| time.strip_suffix(unit).and_then(|number| number.parse::<f64>().ok());
    number("ms").map(|ms| ms / 1000.0).or_else(|| number("s")).map(Duration::from_secs_f64).expect(text)
}

fn listen() {
    on_report(|text, _| SAID.lock().unwrap().push(text.to_owned()));
}

/// Dataset of numbers for one worker: worker 1 can't start. Optionally, a worker is stopped in `init` until
/// the test continues it.
#[derive(Serialize, Deserialize)]
struct ForOne(usize, bool);

impl Dataset for ForOne {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        self.0
    }

    fn init(&mut self, worker: &WorkerInfo) -> AnyResult<()> {
        if self.1 {
            Fault::Stop.happens("init")?;
        }
        if worker.worker == Some(1) { Err("worker 1 has no GPU".into()) } else { Ok(()) }
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[], |item, _, row| {
            row[0] = item.index as u64;
            Ok(())
        })
    }
}

#[test]
fn failed_worker_start_is_reported_once() {
    listen();
    let loader = DataLoader::builder(ForOne(64, false)).batch_size(4).num_workers(2).build().unwrap();
    let epoch = |epoch| {
        let mut batches = loader.epoch(epoch);
        let made = std::iter::from_fn(|| next(&mut batches)).map(|batch| batch.unwrap().to_vec());
        assert_eq!(made.flatten().sum::<u64>(), 63 * 64 / 2);
    };
    epoch(0);
    let failed = || loader.metrics().failed_starts.first().map_or(0, |failed| failed.starts);
    eventually("it is tried a sixth time", || failed() >= 6);
    epoch(1);
    let metrics = loader.metrics();
    let [failed] = &metrics.failed_starts[..] else { panic!("{metrics}") };
    assert_eq!((failed.worker, &*failed.why), (1, "worker 1 has no GPU"));
    let text = metrics.to_string();
    assert!(text.contains("\nworker 1 can't begin: "), "{text}");
    assert!(!text.contains("prefetch more") && !text.contains("add workers"), "{text}");
    let said = SAID.lock().unwrap();
    let reported: Vec<&String> = said.iter().filter(|text| text.contains("has no GPU")).collect();
    assert_eq!(reported.len(), 1, "{reported:?}");
    let begin = "mp: pool \"data loader\": worker 1 can't begin: 5 starts have failed, \
                 the last one: worker 1 has no GPU\n";
    assert!(reported[0].starts_with(begin), "{reported:?}");
}

#[test]
fn wait_for_a_starting_worker_is_reported() {
    let loader = DataLoader::builder(ForOne(4, true)).num_workers(1).build().unwrap();
    let mut batches = loader.epoch(0);
    let late = batches.next_timeout(Duration::from_millis(1)).unwrap_err();
    assert!(late.running.len() == 1 && late.running[0].starts_with("worker 0 (pid "), "{late}");
    assert!(late.running[0].contains("): starting"), "{late}");
    let pid = loader.pids()[0];
    eventually("it stands still", || threads_are(pid, 'T'));
    signal(pid, Signal::CONT);
    assert!(next(&mut batches).unwrap().is_ok());
}

#[test]
fn late_batch_is_reported_with_worker_and_sample() {
    listen();
    report_hangs_after(Some(Duration::from_millis(300)));
    // The worker is stopped in batch 1, after sample 6 has begun.
    let samples = Samples::new(12).with(6, Fault::Stop, 1);
    let loader = builder_of(samples, 1).shuffle(false).build().unwrap();
    let mut batches = loader.epoch(0);
    drop(next(&mut batches).unwrap().unwrap());
    let pid = loader.pids()[0];
    eventually("it stands still", || threads_are(pid, 'T'));
    let late = batches.next_timeout(Duration::from_millis(10)).unwrap_err();
    assert_eq!(late.batch, Some((0, 1)));
    let line = format!(
        "worker 0 (pid {pid}, stopped by a signal or a debugger): batch 1 of epoch 0, sample 6 (number 6), \
         for "
    );
    assert!(late.running.len() == 1 && late.running[0].starts_with(&line), "{late}");
    let waits = std::thread::spawn(move || {
        let batch = next(&mut batches).unwrap().unwrap();
        (batch.info.number, batches)
    });
    eventually("it is reported of", || said("mp: batch 1 of epoch 0 has been waited for").is_some());
    let text = said("mp: batch 1 of epoch 0").unwrap();
    assert!(text.contains(&format!("\n  {line}")), "{text}");
    signal(pid, Signal::CONT);
    assert_eq!(waits.join().unwrap().0, 1);

    // Repeated calls with a short time-out count as one wait, from the first call on.
    let samples = Samples::new(12).with(2, Fault::Stop, 1);
    let loader = builder_of(samples, 1).shuffle(false).build().unwrap();
    let mut batches = loader.epoch(7);
    let first = Instant::now();
    batches.next_timeout(Duration::from_millis(20)).unwrap_err();
    let (began, mut before, mut longest) = (Instant::now(), Duration::ZERO, first.elapsed());
    // On a busy machine a single call may take as long as the interval of a report.
    eventually("the longest call is short compared with all calls", || {
        before = began.elapsed();
        batches.next_timeout(Duration::from_millis(20)).unwrap_err();
        longest = longest.max(began.elapsed() - before);
        before > 4 * longest + Duration::from_secs(1)
    });
    // The next report is due when the wait has lasted twice as long.
    let reported = {
        let all = SAID.lock().unwrap();
        all.iter().filter(|text| text.contains("mp: batch 0 of epoch 7")).map(|text| waited(text)).max()
    };
    assert!(
        reported.is_some_and(|reported| reported + Duration::from_millis(100) > before / 2),
        "{reported:?} of {before:?}, in calls of at most {longest:?}"
    );
    signal(loader.pids()[0], Signal::CONT);
    assert!(next(&mut batches).unwrap().is_ok());

    // A worker that has not started.
    let loader = builder(8, 1).build().unwrap();
    let pid = loader.pids()[0];
    signal(pid, Signal::STOP);
    let mut batches = loader.epoch(9);
    let waits = std::thread::spawn(move || batches.next_timeout(DEADLINE).map(|batch| batch.is_some()));
    eventually("it is reported of", || said("batch 0 of epoch 9 has been waited for").is_some());
    signal(pid, Signal::CONT);
    assert!(waits.join().unwrap().unwrap());
    report_hangs_after(None);
}
