//! Greeting of a caller: the proofs of the key, the checks of version, cluster and job, and the session.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;

use super::Home;
use crate::auth::{self, ProofSide};
use crate::home::session::Session;
use crate::link::NodeIdentity;
use crate::link::stream::BESIDE;
use crate::wire::messages::{
    CallOutcome, CallerGreeting, CallerMessage, CallerMessageKind, Challenge, HomeMessage, HomeMessageKind,
    VERSION, Welcome,
};
use crate::wire::receive::{Part, StreamReader};
use crate::wire::send::StreamPacket;

impl Home {
    /// Proves and verifies the key, and begins or resumes a session.
    pub(super) async fn greet(
        &self,
        me: &NodeIdentity,
        from: &mut StreamReader,
        to: &UnboundedSender<StreamPacket>,
    ) -> Result<(Arc<Session>, u64), String> {
        let send = |kind| _ = to.send(StreamPacket::of(&HomeMessage { kind: Some(kind) }));
        let nonce = auth::nonce().map_err(|e| e.to_string())?.to_vec();
        let needs_key = me.config.key.is_some();
        send(HomeMessageKind::Challenge(Challenge { version: VERSION, nonce: nonce.clone(), needs_key }));
        let hello = match from.next::<CallerMessage>().await.map_err(|e| e.to_string())? {
            Part::Message(CallerMessage { kind: Some(CallerMessageKind::Hello(hello)) }) => hello,
            _ => return Err("it began with another message than its name".into()),
        };
        let mut welcome = Welcome {
            home: me.node.home,
            calls: me.config.calls,
            bytes: me.config.bytes,
            largest: me.config.largest,
            from: Some(me.node.clone()),
            ..Welcome::default()
        };
        if let Err((outcome, why)) = check(me, &nonce, &hello) {
            welcome = Welcome { refusal: why.clone(), ..Welcome::default() };
            welcome.set_outcome(outcome);
            send(HomeMessageKind::Welcome(welcome));
            return Err(why);
        }
        if let Some(key) = &me.config.key {
            welcome.proof = auth::prove(key, ProofSide::Home, &nonce, &hello.nonce);
        }
        let caller = hello.from.unwrap_or_default();
        let mut sessions = self.sessions.lock();
        let known = sessions.get(&hello.session).cloned();
        welcome.resumed = known.is_some();
        let session = known.unwrap_or_else(|| Session::new(caller, hello.largest));
        // Sent before the new stream can send replies.
        send(HomeMessageKind::Welcome(welcome));
        let stream = session.begin_stream(to.clone()).ok_or("its session has just ended")?;
        sessions.insert(hello.session, session.clone());
        from.allow(usize::try_from(me.config.largest.saturating_add(BESIDE)).unwrap_or(usize::MAX));
        Ok((session, stream))
    }
}

/// Checks the greeting of a caller: its version, proof, cluster and job.
fn check(me: &NodeIdentity, nonce: &[u8], hello: &CallerGreeting) -> Result<(), (CallOutcome, String)> {
    if hello.version != VERSION {
        let why =
            format!("its protocol has version {}, and this process has version {VERSION}", hello.version);
        return Err((CallOutcome::WrongVersion, why));
    }
    match &me.config.key {
        Some(key) if !auth::is_proof(key, ProofSide::Caller, &hello.nonce, nonce, &hello.proof) => {
            let why = "the keys differ: give all members of a cluster the same key";
            return Err((CallOutcome::WrongKey, why.into()));
        }
        _ => {}
    }
    if hello.home != 0 && hello.home != me.node.home {
        let why = "another process listens at its address, so it has ended";
        return Err((CallOutcome::WrongCluster, why.into()));
    }
    let (theirs, ours) = (&hello.job, &me.config.job);
    if !theirs.is_empty() && !ours.is_empty() && theirs != ours {
        let theirs = mp_core::printable(theirs);
        let why = format!(
            "it belongs to job {ours:?}, and the caller to job {theirs:?}: give each job its own MP_PORT"
        );
        return Err((CallOutcome::WrongCluster, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClusterConfig;

    #[test]
    fn hello_of_another_version_or_cluster_is_refused() {
        let node = crate::wire::messages::Node { home: 7, ..Default::default() };
        let me = NodeIdentity { config: ClusterConfig::new(0, 1, "127.0.0.1:0"), node };
        let refusal = |version, home| {
            check(&me, &[], &CallerGreeting { version, home, ..CallerGreeting::default() }).unwrap_err()
        };
        let (outcome, why) = refusal(VERSION + 1, 0);
        assert!(outcome == CallOutcome::WrongVersion && why.contains("version 3"), "{why}");
        assert_eq!(refusal(VERSION, 8).0, CallOutcome::WrongCluster);
        let hello = CallerGreeting { version: VERSION, home: 7, ..CallerGreeting::default() };
        assert_eq!(check(&me, &[], &hello), Ok(()));
    }
}
