//! Handling of the messages, timeouts and ends of watched children.

use std::time::Instant;

use rustix::event::epoll;

use crate::parent::supervisor::child::WatchedChild;
use crate::parent::supervisor::children::try_listen;
use crate::parent::supervisor::shared::Supervisor;
use crate::sys::log_event;

impl Supervisor {
    /// Handles the timer: processes whose time is over. Then sets the timer for the others.
    pub(super) fn handle_timeouts(&self) {
        let mut children = self.children.lock();
        children.timer = None;
        let now = Instant::now();
        let over = |time: Option<Instant>| time.is_some_and(|time| time <= now);
        let mut unwatchable = Vec::new();
        for (&id, child) in &mut children.by_id {
            if over(child.unwatched_deadline) && !try_listen(&self.poll, id, child) {
                unwatchable.push(id);
            }
            if over(child.hello_until) {
                child.handle_hello_timeout();
            }
        }
        let unwatchable: Vec<_> = unwatchable.iter().filter_map(|id| children.by_id.remove(id)).collect();
        let next = children.by_id.values().filter_map(WatchedChild::next_timeout).min();
        children.set_timer(&self.timer, next);
        drop(children);
        unwatchable.into_iter().for_each(WatchedChild::abandon);
    }

    pub(super) fn begin_watching(&self, id: u64) {
        let mut children = self.children.lock();
        let Some(child) = children.by_id.get_mut(&id).filter(|child| child.unwatched_deadline.is_some())
        else {
            return;
        };
        if !try_listen(&self.poll, id, child)
            && let Some(child) = children.by_id.remove(&id)
        {
            drop(children);
            child.abandon();
        }
    }

    /// Handles an event of a process or of its socket.
    pub(super) fn handle_event(&self, id: u64, ended: bool, flags: epoll::EventFlags) {
        let mut children = self.children.lock();
        let Some(child) = children.by_id.get_mut(&id) else { return };
        if ended {
            if child.reap()
                && let Some(child) = children.by_id.remove(&id)
            {
                children.record_end(&child.handle);
                drop(children);
                if log_event::wanted() {
                    child.log_end();
                }
                self.remove(child);
            }
            return;
        }
        if flags.contains(epoll::EventFlags::OUT)
            && child.send()
            && let Some(socket) = &child.socket
        {
            let listen = epoll::EventFlags::IN;
            // If this fails, the socket stays writable and the next turn tries again.
            let _ = epoll::modify(&self.poll, socket, epoll::EventData::new_u64(id << 1), listen);
        }
        let more = child.receive();
        if let Some(socket) = &child.socket
            && (!more || child.reported)
        {
            // Deleted explicitly, because a forked process may hold the socket too. It may have been deleted
            // before. A process that has reported is about to end, and a wake-up for each step of its end
            // would cost as much as the rest.
            let _ = epoll::delete(&self.poll, socket);
        }
        if !more {
            child.socket = None;
        }
    }

    fn remove(&self, child: WatchedChild) {
        if child.unwatched_deadline.is_none() {
            // Can't fail, because the sentinel was added. The socket may have been deleted.
            let _ = epoll::delete(&self.poll, child.handle.sentinel());
            if let Some(socket) = child.socket.as_ref().filter(|_| !child.reported) {
                let _ = epoll::delete(&self.poll, socket);
            }
        }
        child.close();
    }
}
