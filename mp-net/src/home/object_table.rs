//! Names and numbers of objects, and subscriptions to channels.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Weak};

use tokio::sync::watch;

use super::Home;
use crate::home::object::{Answer, CallerHold, SharedObject};
use crate::wire::messages::CallOutcome;

/// Objects that this process has published, by name and by number.
#[derive(Default)]
pub(super) struct ObjectTable {
    pub(super) by_name: BTreeMap<String, u64>,
    pub(super) by_number: HashMap<u64, Arc<dyn SharedObject>>,
    /// Withdrawn objects by number. Each exists only while one of its calls runs.
    withdrawn: HashMap<u64, Weak<dyn SharedObject>>,
    subscriptions: HashMap<u64, ChannelSubscription>,
    last: u64,
}

/// Subscription to a channel of this process. Dropping it ends the calls that wait for its messages.
struct ChannelSubscription {
    channel: u64,
    receiver: Arc<dyn SharedObject>,
    end: watch::Sender<()>,
}

/// Holder of a caller's subscription to a channel. Dropping it ends the subscription.
struct HeldSubscription {
    home: Weak<Home>,
    number: u64,
}

impl CallerHold for HeldSubscription {
    fn acknowledge(self: Box<Self>) {}
}

impl Drop for HeldSubscription {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            let ended = home.objects.lock().subscriptions.remove(&self.number);
            drop(ended);
        }
    }
}

impl Home {
    /// Adds an object. Returns `false` if the name is taken.
    pub(crate) fn add(&self, name: &str, object: Arc<dyn SharedObject>) -> bool {
        let mut objects = self.objects.lock();
        if objects.by_name.contains_key(name) {
            return false;
        }
        objects.last += 1;
        let number = objects.last;
        objects.by_name.insert(name.to_owned(), number);
        objects.by_number.insert(number, object);
        true
    }

    /// Removes the object of a name, and ends its subscriptions.
    pub(crate) fn remove(&self, name: &str) {
        let mut objects = self.objects.lock();
        let Some(number) = objects.by_name.remove(name) else { return };
        let object = objects.by_number.remove(&number);
        objects.withdrawn.retain(|_, object| object.strong_count() > 0);
        objects.withdrawn.extend(object.iter().map(|object| (number, Arc::downgrade(object))));
        let ended: Vec<_> = objects.subscriptions.extract_if(|_, one| one.channel == number).collect();
        drop(objects);
        // A service may have a user-defined `Drop`, which must not run under the lock.
        drop((object, ended));
    }

    pub(super) fn object(&self, number: u64) -> Option<Arc<dyn SharedObject>> {
        let objects = self.objects.lock();
        let subscription = || objects.subscriptions.get(&number).map(|one| &one.receiver);
        objects.by_number.get(&number).or_else(subscription).cloned()
    }

    pub(super) fn withdrawn(&self, number: u64) -> Option<Arc<dyn SharedObject>> {
        self.objects.lock().withdrawn.get(&number)?.upgrade()
    }

    /// Subscribes a caller to the channel with this number.
    pub(super) fn subscribe(self: &Arc<Self>, channel: u64) -> Answer {
        let mut objects = self.objects.lock();
        let Some(object) = objects.by_number.get(&channel) else {
            return Answer::plain(CallOutcome::NotFound);
        };
        let Some((receiver, capacity)) = object.subscribe() else { return Answer::unknown_method() };
        objects.last += 1;
        let number = objects.last;
        let end = watch::Sender::new(());
        objects.subscriptions.insert(number, ChannelSubscription { channel, receiver, end });
        let mut answer = Answer::number(number);
        answer.reply.size = capacity as u64;
        answer.hold = Some(Box::new(HeldSubscription { home: Arc::downgrade(self), number }));
        answer
    }

    /// Returns a future that waits until the channel of subscription `number` is withdrawn. Returns `None` if
    /// no subscription has this number.
    pub(super) fn withdrawal(&self, number: u64) -> Option<impl Future<Output = ()> + use<>> {
        let mut end = self.objects.lock().subscriptions.get(&number)?.end.subscribe();
        let closed = self.closed.subscribe();
        Some(async move {
            // An error means that the sender was dropped, so the subscription has ended.
            _ = end.changed().await;
            if *closed.borrow() {
                // The home was closed, which also ends the session: the caller gets `PeerLost`.
                std::future::pending().await
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::channels::SharedBroadcast;

    #[test]
    fn subscription_ends_with_its_holder_or_its_channel() {
        let home = Home::new(None);
        let (_sender, receiver) = mp_queue::broadcast::channel::<u32>(1).unwrap();
        assert!(home.add("news", Arc::new(SharedBroadcast(receiver))));
        let (one, other) = (home.subscribe(1), home.subscribe(1));
        let (first, second) = (one.reply.number, other.reply.number);
        assert!(home.object(first).is_some() && home.object(second).is_some());
        drop(one);
        assert!(home.object(first).is_none() && home.object(second).is_some());
        home.remove("news");
        assert!(home.object(1).is_none() && home.object(second).is_none());
    }
}
