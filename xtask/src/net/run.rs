//! A run: its nodes, and the checks of their events.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use super::hosts::{CERTIFICATES, Hosts};
use super::node::{Line, Node, begins};

/// Number of the last lines of a node that are printed after a failure.
const TAIL: usize = 12;
/// Longest wait for one event of a node that is not disturbed.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// Figures of a run, as the table prints them.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) acknowledged: usize,
    pub(super) arrived: usize,
    pub(super) lost: usize,
    pub(super) doubled: usize,
    pub(super) in_doubt: usize,
    /// Milliseconds between a fault and the last error that a process returned because of the fault.
    pub(super) known: Option<f64>,
    /// Peak memory of the home in MiB.
    pub(super) peak: Option<u64>,
}

/// A run with one fault.
pub(super) struct Run<'a> {
    pub(super) hosts: &'a Hosts,
    nodes: Vec<Rc<Node>>,
    pub(super) figures: Figures,
    /// Descriptions of violated expectations.
    pub(super) violations: Vec<String>,
    /// Reason why the run can't be made here.
    pub(super) skipped: Option<&'static str>,
    /// Lease and grace of all nodes in milliseconds.
    pub(super) grace: u32,
    /// `true` if all nodes have certificates.
    pub(super) is_encrypted: bool,
}

/// Returns `true` if the text of an event reports a call that failed because the home was lost.
pub(super) fn is_error(text: &str) -> bool {
    ["lost", "unacked"].iter().any(|word| begins(text, word))
}

/// Lease of all nodes in milliseconds.
pub(super) const LEASE: u32 = 2000;

impl<'a> Run<'a> {
    pub(super) fn new(hosts: &'a Hosts) -> Self {
        Self {
            hosts,
            nodes: Vec::new(),
            figures: Figures::default(),
            violations: Vec::new(),
            skipped: None,
            grace: 0,
            is_encrypted: false,
        }
    }

    /// Starts a node, and blocks until it is ready.
    pub(super) fn start(&mut self, host: usize, role: &str, options: &str) -> Result<Rc<Node>, String> {
        let mut options = format!("lease={LEASE} grace={} limit=240 {options}", self.grace);
        if self.is_encrypted {
            options.push_str(&format!(" certificates={CERTIFICATES}"));
        }
        let node = Rc::new(self.hosts.start(host, role, options.trim_end())?);
        self.nodes.push(node.clone());
        node.wait_for(if role == "watch" { "joined" } else { "ready" }, (1, 0), LIMIT)?;
        Ok(node)
    }

    /// Starts an example on a host.
    pub(super) fn start_example(&mut self, host: usize, name: &str, args: &str) -> Result<Rc<Node>, String> {
        let node = self.hosts.start_example(host, name, args)?;
        Ok(self.add(node))
    }

    /// Adds a node, whose output is printed after a failure.
    pub(super) fn add(&mut self, node: Node) -> Rc<Node> {
        let node = Rc::new(node);
        self.nodes.push(node.clone());
        node
    }

    /// Records that the run can't be made here.
    pub(super) fn skip(&mut self, reason: &'static str) -> Result<(), String> {
        self.skipped = Some(reason);
        Ok(())
    }

    /// Records a violation if a condition does not hold.
    pub(super) fn expect(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(violation());
        }
    }

    /// Compares the messages that producers have put with the messages that a home has taken.
    pub(super) fn count_puts(&mut self, home: &Node, producers: &[&Node]) {
        let of = |word| producers.iter().flat_map(move |node| node.numbers(word)).map(|(number, _)| number);
        let (begun, acknowledged) = (of("put").collect::<BTreeSet<_>>(), of("ack").collect::<BTreeSet<_>>());
        self.compare(&begun, &acknowledged, home.numbers("arrived").into_iter().map(|(number, _)| number));
    }

    /// Checks that the messages of a producer with one thread arrived in their order.
    pub(super) fn in_order(&mut self, home: &Node, producer: &Node) {
        let begun: BTreeSet<_> = producer.numbers("put").into_iter().map(|(number, _)| number).collect();
        let arrived = home.numbers("arrived").into_iter().map(|(number, _)| number);
        let arrived: Vec<_> = arrived.filter(|number| begun.contains(number)).collect();
        let wrong = arrived.windows(2).find(|pair| pair[0] > pair[1]);
        self.expect(wrong.is_none(), || format!("{}: out of order: {wrong:?}", producer.name));
    }

    /// Compares the messages that a home has offered with the messages that consumers have taken.
    pub(super) fn count_gets(&mut self, home: &Node, consumers: &[&Node]) {
        let filled: BTreeSet<_> = home.numbers("filled").into_iter().map(|(number, _)| number).collect();
        let got = consumers.iter().flat_map(|node| node.numbers("got")).map(|(number, _)| number);
        self.compare(&filled, &filled, got);
    }

    /// Compares the tasks given to a pool with their outcomes, and checks the number of errors.
    pub(super) fn count_tasks(&mut self, pool: &Node, errors: usize) {
        let of = |word| pool.numbers(word).into_iter().map(|(number, _)| number);
        let given: BTreeSet<_> = of("put").collect();
        self.compare(&given, &given, of("done").chain(of("error")));
        self.at_most(0, 0, 0);
        let failed = of("error").count();
        self.expect(failed == errors, || format!("{failed} tasks failed, {errors} are expected"));
    }

    fn compare(
        &mut self,
        begun: &BTreeSet<u64>,
        acknowledged: &BTreeSet<u64>,
        arrived: impl Iterator<Item = u64>,
    ) {
        let mut times = BTreeMap::<u64, usize>::new();
        arrived.for_each(|number| *times.entry(number).or_default() += 1);
        let figures = &mut self.figures;
        figures.acknowledged += acknowledged.len();
        figures.arrived += times.len();
        figures.lost += acknowledged.iter().filter(|number| !times.contains_key(number)).count();
        figures.doubled += times.values().filter(|count| **count > 1).count();
        figures.in_doubt += begun.difference(acknowledged).count();
        let unknown = times.keys().filter(|number| !begun.contains(number)).count();
        self.expect(unknown == 0, || format!("{unknown} messages arrived that were not put"));
        self.expect(!times.is_empty(), || "no message arrived".into());
    }

    /// Checks the numbers of messages that were lost, arrived twice, and are in doubt.
    pub(super) fn at_most(&mut self, lost: usize, doubled: usize, in_doubt: usize) {
        let Figures { lost: is_lost, doubled: is_doubled, in_doubt: is_in_doubt, .. } = self.figures;
        self.expect(is_lost <= lost, || format!("{is_lost} messages were lost, at most {lost} may be"));
        self.expect(is_doubled <= doubled, || format!("{is_doubled} arrived twice, at most {doubled} may"));
        self.expect(is_in_doubt <= in_doubt, || {
            format!("{is_in_doubt} are in doubt, at most {in_doubt} may be")
        });
    }

    /// Records the time between a fault and its detection, and checks it.
    pub(super) fn known(&mut self, who: &str, fault: i64, known: i64, limit: u32) {
        let after = (known - fault) as f64 / 1000.0;
        self.figures.known = Some(self.figures.known.map_or(after, |other| other.max(after)));
        let violation = || format!("{who}: known after {after:.0} ms, at most {limit} ms are promised");
        self.expect(after <= f64::from(limit), violation);
    }

    /// Checks that no call of a node failed because the home was lost.
    pub(super) fn no_loss(&mut self, node: &Node) {
        let errors = node.lines().iter().filter(|line| is_error(&line.text)).count();
        self.expect(errors == 0, || format!("{}: {errors} calls failed, none may", node.name));
    }

    /// Ends the home after its consumer has taken all messages.
    pub(super) fn drain(&mut self, home: &Node) -> Result<(), String> {
        self.figures.peak = Some(home.peak()?);
        home.finish(LIMIT)
    }

    /// Checks the events that no run allows.
    pub(super) fn check_all(&mut self) {
        for node in self.nodes.clone() {
            for line in node.lines() {
                let bad = ["corrupt", "failed", "hang", "stderr thread"]
                    .iter()
                    .any(|word| begins(&line.text, word));
                self.expect(!bad, || format!("{}: {}", node.name, line.text));
            }
        }
    }

    /// Returns the last lines of all nodes.
    pub(super) fn outputs(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            let lines = node.lines();
            text.push_str(&format!("  {}, {} lines:\n", node.name, lines.len()));
            let quiet = |line: &&Line| {
                !["put", "ack", "arrived", "filled", "got", "acked", "begun", "done", "batch"]
                    .iter()
                    .any(|w| begins(&line.text, w))
            };
            // Events come first, because numbers alone would fill all printed lines.
            let events: Vec<_> = lines.iter().filter(quiet).collect();
            let shown = events.iter().rev().take(TAIL).rev().copied().chain(lines.iter().rev().take(2).rev());
            shown.for_each(|line| text.push_str(&format!("    {} {}\n", line.at, line.text)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_counts_find_lost_and_doubled_messages() {
        let hosts = Hosts;
        let mut run = Run::new(&hosts);
        let (begun, acknowledged) = (BTreeSet::from([1, 2, 3, 4]), BTreeSet::from([1, 2, 3]));
        run.compare(&begun, &acknowledged, [1, 2, 2, 4, 9].into_iter());
        let Figures { acknowledged, arrived, lost, doubled, in_doubt, .. } = run.figures;
        assert_eq!((acknowledged, arrived, lost, doubled, in_doubt), (3, 4, 1, 1, 1));
        assert_eq!(run.violations, ["1 messages arrived that were not put"]);
        run.at_most(1, 1, 1);
        assert_eq!(run.violations.len(), 1);
        run.at_most(0, 0, 0);
        assert_eq!(run.violations.len(), 4);
    }

    #[test]
    fn output_words_of_hosts_are_compared_whole() {
        assert!(begins("ack 7", "ack") && begins("end", "end") && begins("event lost 1", "event lost"));
        assert!(!begins("acked 7", "ack") && !begins("", "ack"));
    }
}
