//! Model of the kernel's queue of actors that sleep on one word (futex).

/// Queue of sleeping actors, and woken actors that have not run yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sleepers {
    asleep: Vec<usize>,
    woken: Vec<usize>,
    poll_interval: bool,
}

impl Sleepers {
    /// Creates an empty queue. With a poll interval, a sleeper may also continue without a wake-up.
    pub fn new(poll_interval: bool) -> Self {
        Self { poll_interval, ..Self::default() }
    }

    /// Models FUTEX_WAIT, which compares a word and falls asleep atomically. `same` makes the access, and
    /// returns `true` if the word has the expected value. Returns `true` if `me` still sleeps.
    pub fn sleep(&mut self, me: usize, same: impl FnOnce() -> bool) -> bool {
        if let Some(i) = self.woken.iter().position(|&w| w == me) {
            self.woken.remove(i);
        } else if self.asleep.contains(&me) {
            if !self.poll_interval {
                return true;
            }
        } else if same() {
            self.asleep.push(me);
            return true;
        }
        self.asleep.retain(|&i| i != me);
        false
    }

    /// Models FUTEX_WAKE: wakes one actor.
    pub fn wake_one(&mut self) {
        if let Some(&first) = self.asleep.iter().find(|i| !self.woken.contains(i)) {
            self.woken.push(first);
        }
    }

    /// Removes a killed actor from the queue.
    pub fn forget(&mut self, actor: usize) {
        self.asleep.retain(|&i| i != actor);
        self.woken.retain(|&i| i != actor);
    }
}
