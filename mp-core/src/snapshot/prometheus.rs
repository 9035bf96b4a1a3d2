//! Snapshots as metrics for Prometheus, in its text format.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use super::{PoolSnapshot, ProcessState, Snapshot};
use crate::wait_times::WaitTimes;

/// Text of the metrics written so far.
struct Metrics(String);

/// Names and values of labels.
type Labels<'a> = &'a [(&'a str, &'a str)];

impl Metrics {
    /// Writes all samples of a metric.
    fn metric<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = (Vec<(&'a str, String)>, u64)>,
    ) {
        self.head(name, help, if name.ends_with("_total") { "counter" } else { "gauge" });
        for (labels, value) in samples {
            let labels: Vec<_> = labels.iter().map(|(name, value)| (*name, &**value)).collect();
            self.sample(name, &labels, value);
        }
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn histogram(&mut self, name: &str, labels: Labels<'_>, times: &WaitTimes) {
        let mut passed = 0;
        for (i, count) in times.counts().enumerate() {
            passed = count.saturating_add(passed);
            let limit = (Duration::from_micros(1 << i)).as_secs_f64().to_string();
            let limit = if i + 1 == WaitTimes::BUCKETS { "+Inf" } else { &limit };
            self.sample(&format!("{name}_bucket"), &[labels, &[("le", limit)]].concat(), passed);
        }
        self.sample(&format!("{name}_sum"), labels, times.total().as_secs_f64());
        self.sample(&format!("{name}_count"), labels, passed);
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            _ = write!(self.0, "{}{label}=\"{text}\"", if i == 0 { '{' } else { ',' });
        }
        let end = if labels.is_empty() { "" } else { "}" };
        _ = writeln!(self.0, "{end} {value}");
    }

    fn number(&mut self, name: &str, help: &str, value: u64) {
        self.metric(name, help, std::iter::once((Vec::new(), value)));
    }
}

impl Snapshot {
    /// Returns the snapshot as metrics of Prometheus, in its text format (version 0.0.4).
    ///
    /// ```
    /// use mp_core::{Arena, Snapshot};
    ///
    /// let metrics = Snapshot::of(Arena::current()?).prometheus();
    /// assert!(metrics.contains("mp_processes{state=\"running\"} 1\n"));
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// Queues and locks are labeled by their names. If a name is missing or not unique, `#` and the number of
    /// the object's block are appended. Another object may get the same block later.
    pub fn prometheus(&self) -> String {
        let mut metrics = Metrics(String::new());
        let states = [
            ("running", ProcessState::Running),
            ("stopped", ProcessState::Stopped),
            ("dead", ProcessState::Dead),
        ];
        let counts = states.map(|(name, state)| {
            let count = self.processes.iter().filter(|process| process.state == state).count();
            (vec![("state", name.to_owned())], count as u64)
        });
        metrics.metric("mp_processes", "Number of processes.", counts.into_iter());
        let process = |pid: u32, name: &str| vec![("pid", pid.to_string()), ("process", name.to_owned())];
        let held = self.processes.iter().map(|its| (process(its.pid, &its.name), its.bytes));
        metrics.metric("mp_process_held_bytes", "Bytes in blocks that the process holds.", held);
        let waiting = self.processes.iter().map(|its| (process(its.pid, &its.name), its.waits.len() as u64));
        metrics.metric("mp_process_waiting_threads", "Threads that have waited for 100 ms.", waiting);

        let mut names: Vec<_> = self.queues.iter().map(|queue| &*queue.name).collect();
        names.extend(self.objects.iter().map(|found| &*found.name));
        names.extend(self.pools.iter().map(|pool| &*pool.name));
        names.sort_unstable();
        // No two series may have the same labels.
        let is_unique =
            |name: &str| names.partition_point(|n| *n <= name) - names.partition_point(|n| *n < name) == 1;
        let object = |block: u32, name: &str| match name {
            name if !name.is_empty() && is_unique(name) => name.to_owned(),
            name => format!("{name}#{block}"),
        };
        let rings: Vec<_> =
            self.queues.iter().filter_map(|queue| Some((queue, queue.ring.as_ref()?))).collect();
        type Value = fn(&super::RingState) -> Option<u64>;
        let values: [(&str, &str, Value); 4] = [
            ("mp_queue_messages", "Messages in the queue.", |ring| Some(ring.len)),
            ("mp_queue_capacity", "Messages that fit.", |ring| ring.capacity),
            ("mp_queue_puts_total", "Puts since the queue was created.", |ring| Some(ring.puts)),
            ("mp_queue_gets_total", "Gets since the queue was created.", |ring| Some(ring.gets)),
        ];
        for (name, help, value) in values {
            let samples = rings.iter().filter_map(|(queue, ring)| {
                let labels = [("queue", object(queue.block, &queue.name)), ("kind", ring.kind.clone())];
                Some((labels.to_vec(), value(ring)?))
            });
            metrics.metric(name, help, samples);
        }
        metrics.head("mp_queue_wait_seconds", "Durations of waits that have ended.", "histogram");
        for (queue, ring) in &rings {
            let name = object(queue.block, &queue.name);
            for (call, waits) in [("get", &ring.get_waits), ("put", &ring.put_waits)] {
                metrics.histogram("mp_queue_wait_seconds", &[("queue", &name), ("call", call)], waits);
            }
        }
        let waits = |block: u32| {
            let all = self.processes.iter().flat_map(|process| &process.waits);
            all.filter(|wait| wait.object == Some(block)).count() as u64
        };
        let queues = rings.iter().map(|(queue, ring)| {
            let labels = vec![("queue", object(queue.block, &queue.name)), ("kind", ring.kind.clone())];
            (labels, waits(queue.block))
        });
        metrics.metric("mp_queue_waiting_threads", "Threads that wait at the queue.", queues);
        let objects = self.objects.iter().filter(|found| found.kind != "object");
        let objects = objects.map(|found| {
            let labels = vec![("object", object(found.block, &found.name)), ("kind", found.kind.clone())];
            (labels, waits(found.block))
        });
        metrics.metric(
            "mp_object_waiting_threads",
            "Threads that wait at a lock or another object.",
            objects,
        );

        self.pool_metrics(&mut metrics, object);

        let memory = &self.memory;
        for (name, help, value) in [
            ("mp_memory_reserved_bytes", "Bytes of the arena that have pages.", memory.reserved),
            ("mp_memory_allocated_bytes", "Bytes in held blocks.", memory.allocated),
            ("mp_memory_cached_bytes", "Bytes in free blocks that have pages.", memory.cached),
            ("mp_memory_blocks", "Held blocks.", memory.blocks),
            ("mp_messages_queued", "Messages in queues.", memory.queued),
            ("mp_deaths_total", "Dead processes whose resources were released.", memory.deaths),
        ] {
            metrics.number(name, help, value);
        }
        metrics.0
    }

    fn pool_metrics(&self, metrics: &mut Metrics, object: impl Fn(u32, &str) -> String) {
        let label = |pool: &PoolSnapshot| ("pool", object(pool.block, &pool.name));
        type Value = fn(&PoolSnapshot) -> u64;
        let values: [(&str, &str, Value); 5] = [
            ("mp_pool_workers", "Workers that the pool is to have.", |pool| pool.wanted_workers),
            ("mp_pool_busy_workers", "Workers that have tasks.", PoolSnapshot::busy_workers),
            ("mp_pool_pending_tasks", "Tasks that wait or run.", |pool| pool.pending),
            ("mp_pool_retries_total", "Retries of tasks.", |pool| pool.retried),
            ("mp_pool_replaced_workers_total", "Replaced workers.", |pool| pool.restarts),
        ];
        for (name, help, value) in values {
            metrics.metric(name, help, self.pools.iter().map(|pool| (vec![label(pool)], value(pool))));
        }
        let ends = self.pools.iter().flat_map(|pool| {
            let PoolSnapshot { done, failed, lost, cancelled, .. } = *pool;
            let ends = [("done", done), ("failed", failed), ("lost", lost), ("cancelled", cancelled)];
            ends.map(|(outcome, count)| (vec![label(pool), ("outcome", outcome.to_owned())], count))
        });
        metrics.metric("mp_pool_tasks_total", "Tasks by outcome.", ends);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{HeapMem, Word};

    #[test]
    fn prometheus_label_values_are_escaped() {
        let mut metrics = Metrics(String::new());
        metrics.sample("a", &[("b", "c\\\"\n"), ("d", "")], 7);
        assert_eq!(metrics.0, "a{b=\"c\\\\\\\"\\n\",d=\"\"} 7\n");
    }

    #[test]
    fn prometheus_histogram_has_cumulative_buckets() {
        let (words, at) = (HeapMem::new(WaitTimes::WORDS as usize), Word::at(0));
        [0, 3, 3].iter().for_each(|us| WaitTimes::record(&words, at, Duration::from_micros(*us)));
        let times = WaitTimes::read(&words, at);
        let mut metrics = Metrics(String::new());
        metrics.histogram("w", &[("queue", "jobs")], &times);
        let lines: Vec<_> = metrics.0.lines().collect();
        assert_eq!(lines.len(), WaitTimes::BUCKETS + 2);
        assert_eq!(lines[2], "w_bucket{queue=\"jobs\",le=\"0.000004\"} 3");
        assert_eq!(
            lines[WaitTimes::BUCKETS - 1..],
            [
                "w_bucket{queue=\"jobs\",le=\"+Inf\"} 3",
                "w_sum{queue=\"jobs\"} 0.000006",
                "w_count{queue=\"jobs\"} 3",
            ]
        );
    }
}
