//! Members of a cluster and names of objects, at the first rank.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mp_core::mutex::Mutex;
use tokio::sync::watch;

use crate::home::object::{Answer, Answering};
use crate::wire::messages::{CallOutcome, MemberPresence, Node};

/// Maximum number of names in the text of an error.
const MOST_NAMES: usize = 16;

#[derive(Default)]
struct Tables {
    members: BTreeMap<u32, Node>,
    /// Key of the session in which each member has joined, by the session number of the member's home.
    sessions: HashMap<u64, usize>,
    /// Published names, each with the member that has the object and the number of the publication.
    names: BTreeMap<String, (Node, u64)>,
    /// Number of the last publication. Publications are counted from 1.
    published: u64,
}

/// Members of a cluster, and published names.
pub(crate) struct ClusterRegistry {
    ranks: u32,
    tables: Mutex<Tables>,
    /// Number of changes of members and names so far.
    changes: watch::Sender<u64>,
}

/// Returns a description of a member for texts, such as `rank 1 (host b, process 12)`.
pub(crate) fn describe(node: &Node) -> String {
    format!("rank {} ({}, process {})", node.rank, node.host, node.pid)
}

impl ClusterRegistry {
    pub(crate) fn new(ranks: u32) -> Arc<Self> {
        Arc::new(Self { ranks, tables: Mutex::default(), changes: watch::Sender::new(0) })
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Adds a member, for as long as its session lasts.
    pub(crate) fn join(&self, node: Node, session: usize) -> Answer {
        if node.ranks != self.ranks || node.rank >= self.ranks {
            let text = format!(
                "{} has a world of {} ranks, and this cluster has one of {}: start all members with the same \
                 number of ranks",
                describe(&node),
                node.ranks,
                self.ranks
            );
            return Answer::with_text(CallOutcome::WrongCluster, text);
        }
        let mut tables = self.tables.lock();
        match tables.members.get(&node.rank) {
            Some(other) if other.home != node.home && other.presence() == MemberPresence::Present => {
                let other = describe(other);
                let text = format!(
                    "rank {} is taken by {other}: start each process with its own rank, or end that one",
                    node.rank
                );
                return Answer::with_text(CallOutcome::Taken, text);
            }
            _ => {
                tables.sessions.insert(node.home, session);
                tables.members.insert(node.rank, node);
            }
        }
        drop(tables);
        self.changed();
        Answer::plain(CallOutcome::Done)
    }

    /// Removes a member and its names, unless the member has joined again by another session than `session`.
    pub(crate) fn remove(&self, home: u64, session: Option<usize>, presence: MemberPresence) {
        let mut tables = self.tables.lock();
        if session.is_some_and(|session| tables.sessions.get(&home) != Some(&session)) {
            return;
        }
        tables.sessions.remove(&home);
        tables.names.retain(|_, (node, _)| node.home != home);
        let member = tables.members.values_mut().find(|node| node.home == home);
        if let Some(member) = member.filter(|node| node.presence() == MemberPresence::Present) {
            member.set_presence(presence);
            drop(tables);
            self.changed();
        }
    }

    /// Returns a future that is ready after more than `seen` changes of members and names. The answer has all
    /// members and, if `prefix` isn't empty, all names that begin with `prefix`.
    pub(crate) fn watch(self: Arc<Self>, seen: u64, prefix: String) -> Answering {
        Box::pin(async move {
            let mut changes = self.changes.subscribe();
            // The sender lives as long as this registry.
            let number = changes.wait_for(|changes| *changes > seen).await.map_or(0, |changes| *changes);
            let mut answer = Answer::number(number);
            answer.reply.members = self.tables.lock().members.values().cloned().collect();
            answer.reply.text = self.names();
            if !prefix.is_empty() {
                let tables = self.tables.lock();
                let named = tables.names.iter().filter(|(name, _)| name.starts_with(&prefix));
                (answer.reply.names, answer.reply.publications) =
                    named.map(|(name, (_, number))| (name.clone(), *number)).unzip();
            }
            answer
        })
    }

    /// Registers a name for an object of a member.
    pub(crate) fn publish(&self, name: String, node: Node) -> Answer {
        let mut tables = self.tables.lock();
        let is_member =
            |member: &Node| member.home == node.home && member.presence() == MemberPresence::Present;
        if !tables.members.values().any(is_member) {
            let text = "rank 0 has lost this process: join again".into();
            return Answer::with_text(CallOutcome::Failed, text);
        }
        if let Some(other) =
            tables.names.get(&name).map(|(other, _)| other).filter(|other| other.home != node.home)
        {
            return Answer::with_text(CallOutcome::Taken, describe(other));
        }
        tables.published += 1;
        let number = tables.published;
        tables.names.insert(name, (node, number));
        drop(tables);
        self.changed();
        Answer::plain(CallOutcome::Done)
    }

    /// Removes a name, if the member with this home has published it.
    pub(crate) fn withdraw(&self, name: &str, home: u64) -> Answer {
        let mut tables = self.tables.lock();
        if tables.names.get(name).is_none_or(|(node, _)| node.home != home) {
            return Answer::plain(CallOutcome::NotFound);
        }
        tables.names.remove(name);
        drop(tables);
        self.changed();
        Answer::plain(CallOutcome::Done)
    }

    /// Returns the member that has the object of a name. Waits until a member has published the name.
    pub(crate) fn find(self: Arc<Self>, name: String) -> Answering {
        Box::pin(async move {
            let mut changes = self.changes.subscribe();
            loop {
                if let Some((node, _)) = self.tables.lock().names.get(&name) {
                    let mut answer = Answer::plain(CallOutcome::Done);
                    answer.reply.members = vec![node.clone()];
                    return answer;
                }
                if changes.changed().await.is_err() {
                    return Answer::plain(CallOutcome::NotFound);
                }
            }
        })
    }

    /// Returns a text with the published names for errors. If there are many names, the text has the first
    /// names and the number of the other names.
    fn names(&self) -> String {
        let tables = self.tables.lock();
        let names: Vec<_> = tables.names.keys().take(MOST_NAMES).map(|name| format!("{name:?}")).collect();
        match tables.names.len().saturating_sub(MOST_NAMES) {
            0 if names.is_empty() => "none".into(),
            0 => names.join(", "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_names_beyond_the_limit_are_counted() {
        let registry = ClusterRegistry::new(1);
        assert_eq!(registry.names(), "none");
        registry.join(Node { ranks: 1, ..Node::default() }, 1);
        for number in 0..MOST_NAMES + 2 {
            let answer = registry.publish(format!("queue {number:02}"), Node::default());
            assert_eq!(answer.reply.outcome(), CallOutcome::Done);
            let names = registry.names();
            assert_eq!(names.contains("more"), number >= MOST_NAMES, "{names}");
        }
        let names = registry.names();
        assert!(names.ends_with("\"queue 15\" and 2 more"), "{names}");
    }
}
